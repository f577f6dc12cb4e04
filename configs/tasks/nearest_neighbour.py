"""The label of the nearest example (Bhattamishra et al., arXiv 2310.03016)."""

from typing import Any

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from zoo.config_types import Section


def get_config() -> Section:
  """The section of nearest_neighbour."""
  task: Any = ConfigDict()
  task.name = 'nearest_neighbour'
  task.num_features = 28  # d ≥ 1 features ±1
  task.context_length = 60  # C ≥ 1, labelled examples per prompt
  task.num_random = placeholder(int)  # ≥ 1 random labels at first; None: a third of C
  return task
