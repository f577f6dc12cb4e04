"""Linear regression with few non-zero weights (Garg et al., arXiv 2208.01066)."""

from typing import Any

from ml_collections import ConfigDict

from zoo.config_types import Section


def get_config() -> Section:
  """The section of sparse_regression."""
  task: Any = ConfigDict()
  task.name = 'sparse_regression'
  task.num_features = 20  # d ≥ 1
  task.context_length = 10  # C ≥ 1, labelled examples per prompt
  task.num_nonzero = 3  # from 1 to d weights that are not 0
  task.noise_std = 0.0  # σ ≥ 0, in units of the labels
  return task
