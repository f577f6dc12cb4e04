"""Classification of Gaussian clusters (Lee et al., arXiv 2310.08049)."""

from typing import Any

from ml_collections import ConfigDict

from zoo.config_types import Section


def get_config() -> Section:
  """The section of gaussian_clusters."""
  task: Any = ConfigDict()
  task.name = 'gaussian_clusters'
  task.num_features = 16  # d ≥ 1
  task.context_length = 31  # C ≥ 1, labelled examples per prompt
  task.num_classes = 2  # K ≥ 2; outputs are the logits of the classes
  return task
