"""MLPs across the tokens alternate with MLPs across their entries.

  python -m launch.main --config=configs/mlp_mixer.py

The task is noiseless linear regression with 5 features, 10 examples and a prior mean
of 0; `:task=NAME` takes another task, with that task's own sizes.
"""

from ml_collections import ConfigDict

from configs import common


def get_config(variant: str = '') -> ConfigDict:
  """The config of mlp_mixer; zoo/config/fields.py has all other fields."""
  config = common.get_config()
  # The class is in zoo/models/mlp.py.
  config.model = model = ConfigDict({'name': 'mlp_mixer'})
  model.num_layers = 2  # ≥ 1
  model.width = 64  # entries of each hidden vector, ≥ 1
  # The initial guess of each label: zero, fixed, linear, network, or what these leave
  # (residual, residual_network).
  model.guess = 'zero'
  model.guess_weights = common.number_or_vector(0.0)  # g of the fixed guess g·x + β
  model.guess_bias = 0.0  # β, in the units of the labels
  model.head = 'point'  # or a distribution: gaussian, bars (with the objective nll)

  config.task.num_features = 5
  config.task.prior_mean = 0.0
  config.objective.positions = 'query'  # a token holds the label of its example
  config.optimizer.learning_rate = 2e-3
  config.optimizer.warmup_steps = common.a_tenth_of_the_steps(config, at_most=200)
  config.optimizer.clip_norm = 1.0
  config.train.batch_size = 256
  return common.with_variant(config, variant)
