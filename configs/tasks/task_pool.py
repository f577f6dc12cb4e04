"""Linear regression with weights from a pool (Raventós et al., arXiv 2306.15063)."""

from typing import Any

from ml_collections import ConfigDict

from zoo.config_types import Section


def get_config() -> Section:
  """The section of task_pool."""
  task: Any = ConfigDict()
  task.name = 'task_pool'
  task.num_features = 8  # d ≥ 1
  task.context_length = 16  # C ≥ 1, labelled examples per prompt
  task.num_tasks = 64  # M ≥ 1 weight vectors in the pool
  task.noise_std = 0.5  # σ ≥ 0, in units of the labels
  task.seed = 0  # ≥ 0, draws the pool
  return task
