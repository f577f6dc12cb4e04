"""Layers of linear attention (arXiv 2512.04268, eqs. 3, 5 and 6).

  python -m launch.main --config=configs/deep_lsa.py

The task is noiseless linear regression with 5 features, 10 examples and a prior mean
of 0; `:task=NAME` takes another task, with that task's own sizes.
"""

from ml_collections import ConfigDict

from configs import common


def get_config(variant: str = '') -> ConfigDict:
  """The config of deep_lsa; zoo/config/fields.py has all other fields."""
  config = common.get_config()
  # The class is in zoo/models/deep_lsa.py.
  config.model = model = ConfigDict({'name': 'deep_lsa'})
  model.num_layers = 3  # ≥ 1
  model.num_heads = 1  # ≥ 1
  model.shared = False  # whether all layers have the same weights
  model.form = 'dense'  # of a layer; or sparse, gd_plus_plus, scalar
  model.readout = 'last'  # the query token's last entry, or 'linear', a map of it
  model.init_scale = 0.1  # standard deviation of the initial matrices, ≥ 0
  # The initial guess of each label: zero, fixed, linear, network, or what these leave
  # (residual, residual_network).
  model.guess = 'zero'
  model.guess_weights = common.number_or_vector(0.0)  # g of the fixed guess g·x + β
  model.guess_bias = 0.0  # β, in the units of the labels

  config.task.num_features = 5
  config.task.prior_mean = 0.0
  config.objective.positions = 'query'  # a token holds the label of its example
  config.optimizer.learning_rate = 2e-3
  config.optimizer.warmup_steps = common.a_tenth_of_the_steps(config, at_most=200)
  config.optimizer.clip_norm = 1.0
  config.train.batch_size = 256
  return common.with_variant(config, variant)
