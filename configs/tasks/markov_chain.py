"""Markov chains with random transitions (Edelman et al., arXiv 2402.11004)."""

from typing import Any

from ml_collections import ConfigDict

from zoo.config_types import Section


def get_config() -> Section:
  """The section of markov_chain."""
  task: Any = ConfigDict()
  task.name = 'markov_chain'
  task.num_symbols = 2  # S ≥ 2; features are one-hot, outputs logits
  task.context_length = 100  # C ≥ 1 transitions per prompt
  return task
