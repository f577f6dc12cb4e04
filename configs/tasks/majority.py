"""Majorities of a few features (Bhattamishra et al., arXiv 2310.03016)."""

from typing import Any

from ml_collections import ConfigDict

from zoo.config_types import Section


def get_config() -> Section:
  """The section of majority."""
  task: Any = ConfigDict()
  task.name = 'majority'
  task.num_features = 28  # d ≥ 1 features ±1
  task.context_length = 60  # C ≥ 1, labelled examples per prompt
  return task
