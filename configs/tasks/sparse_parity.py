"""Parities of a few features, which differ between prompts."""

from typing import Any

from ml_collections import ConfigDict

from zoo.config_types import Section


def get_config() -> Section:
  """The section of sparse_parity."""
  task: Any = ConfigDict()
  task.name = 'sparse_parity'
  task.num_features = 10  # d ≥ 1 features ±1
  task.context_length = 15  # C ≥ 1, labelled examples per prompt
  task.num_relevant = 2  # from 1 to d features that matter
  return task
