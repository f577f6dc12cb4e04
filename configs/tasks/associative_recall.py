"""Recall of the value paired with a key (Arora et al.; Lee et al.)."""

from typing import Any

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from zoo.config_types import Section


def get_config() -> Section:
  """The section of associative_recall."""
  task: Any = ConfigDict()
  task.name = 'associative_recall'
  task.num_keys = 16  # ≥ 1; features are one-hot keys
  task.num_values = 16  # ≥ num_keys, or num_pairs; outputs are logits of values
  task.context_length = 32  # C ≥ 1, pairs of a key and its value per prompt
  # ≥ 1 distinct keys that are first shown, then queried; None: any keys
  task.num_pairs = placeholder(int)
  return task
