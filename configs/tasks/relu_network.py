"""Two-layer ReLU networks (Garg et al., arXiv 2208.01066)."""

from typing import Any

from ml_collections import ConfigDict

from zoo.config_types import Section


def get_config() -> Section:
  """The section of relu_network."""
  task: Any = ConfigDict()
  task.name = 'relu_network'
  task.num_features = 20  # d ≥ 1
  task.context_length = 100  # C ≥ 1, labelled examples per prompt
  task.hidden_features = 100  # r ≥ 1, width of the network
  task.noise_std = 0.0  # σ ≥ 0, in units of the labels
  task.output_mean = 0.0  # m, mean of the output weights
  return task
