"""Linear regression among outliers (Park et al., arXiv 2402.04248)."""

from typing import Any

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from zoo.config_types import Section


def get_config() -> Section:
  """The section of outlier_regression."""
  task: Any = ConfigDict()
  task.name = 'outlier_regression'
  task.num_features = 20  # d ≥ 1
  task.context_length = 100  # C ≥ 1, labelled examples per prompt
  task.kind = 'many'  # or orthogonal
  # From 0 to 1; None: 0.9 or 0.5, by kind.
  task.outlier_probability = placeholder(float)
  return task
