"""Linear classification with any Gaussian prior."""

from typing import Any

from ml_collections import ConfigDict, FieldReference
from ml_collections.config_dict import placeholder

from zoo.config_types import Section


def get_config() -> Section:
  """The section of logistic_regression."""
  task: Any = ConfigDict()
  task.name = 'logistic_regression'
  task.num_features = 20  # d ≥ 1
  task.context_length = 40  # C ≥ 1, labelled examples per prompt
  task.link = 'logistic'  # or probit, or sign: labels without noise
  task.prior_mean = FieldReference(0.0, field_type=object)  # w*: a number or [d]
  task.prior_covariance = placeholder(object)  # Λ [d, d], None: the identity
  return task
