"""Linear regression with a Gaussian prior, as in Table 1 of arXiv 2512.04268."""

from typing import Any

from ml_collections import ConfigDict, FieldReference
from ml_collections.config_dict import placeholder

from zoo.config_types import Section


def get_config() -> Section:
  """The section of linear_regression."""
  task: Any = ConfigDict()
  task.name = 'linear_regression'
  task.num_features = 10  # d ≥ 1
  task.context_length = 10  # C ≥ 1, labelled examples per prompt
  task.prior_mean = FieldReference(2.0, field_type=object)  # w*: a number or [d]
  task.prior_covariance = placeholder(object)  # Λ [d, d], None: the identity
  task.feature_covariance = placeholder(object)  # Σ [d, d], None: the identity
  task.noise_std = 0.0  # σ ≥ 0, in units of the labels
  return task
