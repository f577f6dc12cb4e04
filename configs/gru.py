"""A GRU that reads the examples one by one.

  python -m launch.main --config=configs/gru.py

The task is linear regression without noise, with 5 features, 10 examples and the prior
mean 0. The variant `:task=NAME` trains on another task, with that task's own sizes.
"""

from ml_collections import ConfigDict

from configs import common


def get_config(variant: str = '') -> ConfigDict:
  """Returns the config of gru; zoo/config/run.py has the other fields."""
  config = common.get_config()
  # The class is in zoo/models/recurrent.py.
  config.model = model = ConfigDict({'name': 'gru'})
  model.num_layers = 2  # Number of layers (1 to 1000).
  model.width = 64  # Number of entries of each hidden vector (≥ 1).
  # How a prompt becomes tokens: shifted (a token has x and the label of the example
  # before it), interleaved (x and y in turn) or joint (x and y in one token).
  model.tokens = 'shifted'
  # The model's guess of each label before it sees an example: zero, fixed, linear,
  # network, residual or residual_network. zoo/models/initial_guess.py explains each.
  model.guess = 'zero'
  # g of the fixed guess g·x + β: a number, or one for each feature.
  model.guess_weights = common.number_or_vector(0.0)
  model.guess_bias = 0.0  # β of the fixed guess, in the units of the labels.
  # What is predicted of a label: a number ('point'), or a distribution ('gaussian' or
  # 'bars', a histogram), which is trained with objective.name = 'nll'.
  model.head = 'point'

  config.task.num_features = 5
  # One pass predicts the label of every example from the examples before it.
  config.objective.positions = 'every'
  config.optimizer.learning_rate = 2e-3
  # A tenth of the steps, and 200 at most.
  config.optimizer.warmup_share, config.optimizer.warmup_steps = 0.1, 200
  config.optimizer.clip_norm = 1.0
  config.train.batch_size = 256
  return common.with_variant(config, variant)
