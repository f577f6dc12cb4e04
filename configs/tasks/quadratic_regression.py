"""Regression on the squares of the features (Garg et al., arXiv 2208.01066)."""

from typing import Any

from ml_collections import ConfigDict, FieldReference

from zoo.config_types import Section


def get_config() -> Section:
  """The section of quadratic_regression."""
  task: Any = ConfigDict()
  task.name = 'quadratic_regression'
  task.num_features = 20  # d ≥ 1
  task.context_length = 40  # C ≥ 1, labelled examples per prompt
  task.noise_std = 0.0  # σ ≥ 0, in units of the labels
  task.prior_mean = FieldReference(0.0, field_type=object)  # w*: a number or [d]
  return task
