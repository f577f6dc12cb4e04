"""Linear weights that learn one example at a time, as by the delta rule.

  python -m launch.main --config=configs/sequential.py

On linear regression, the default task, training minimises the exact risk.
"""

from ml_collections import ConfigDict

from configs import common


def get_config(variant: str = '') -> ConfigDict:
  """The config of sequential; zoo/config/fields.py has all other fields."""
  config = common.get_config()
  # The class is in zoo/models/sequential.py.
  config.model = model = ConfigDict({'name': 'sequential'})
  model.rule = 'delta'  # or linear, retention, gated_delta: how a step changes weights
  model.guess = 'linear'  # the first weights: trained from 0, or 'zero'
  model.init_scale = 0.1  # standard deviation of the initial coefficients, ≥ 0

  config = common.with_variant(config, variant)
  if config.task.name == 'linear_regression':  # the risk of other tasks has no formula
    config.objective.name = 'exact'
  return config
