"""Random decision trees (Garg et al., arXiv 2208.01066)."""

from typing import Any

from ml_collections import ConfigDict

from zoo.config_types import Section


def get_config() -> Section:
  """The section of decision_tree."""
  task: Any = ConfigDict()
  task.name = 'decision_tree'
  task.num_features = 20  # d ≥ 1
  task.context_length = 100  # C ≥ 1, labelled examples per prompt
  task.depth = 4  # from 1 to 20 levels of inner nodes
  return task
