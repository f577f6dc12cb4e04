"""Linear weights that are updated after each example, by default by the delta rule.

  python -m launch.main --config=configs/sequential.py

On linear regression, the default task, training minimises the exact risk. On other
tasks it minimises the loss on sampled prompts.
"""

from ml_collections import ConfigDict

from configs import common


def get_config(variant: str = '') -> ConfigDict:
  """Returns the config of sequential; zoo/config/run.py has the other fields."""
  config = common.get_config()
  # The class is in zoo/models/sequential.py.
  config.model = model = ConfigDict({'name': 'sequential'})
  # How an example changes the weights: delta, linear, retention or gated_delta.
  model.rule = 'delta'
  # The weights before the first example: trained from 0 ('linear'), or 0 ('zero').
  model.guess = 'linear'
  model.init_scale = 0.1  # Standard deviation of the initial coefficients (≥ 0).

  config.task.prior_mean = 2.0  # w*: a number, or one for each feature.
  config = common.with_variant(config, variant)
  # Only the risk of linear regression has a formula.
  if config.task.name == 'linear_regression':
    config.objective.name = 'exact'
  return config
