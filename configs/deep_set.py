"""A deep set: one network encodes the examples, another reads their mean and the query.

python -m launch.main --config=configs/deep_set.py
"""

from configs import defaults
from zoo.config.types import Config


def get_config(variant: str = '') -> Config:
  """The config of deep_set; the variants are those of configs/defaults.py."""
  config = defaults.get_general_config(variant)
  config.model.name = 'deep_set'
  config.model.num_layers = 2  # 1 to 1000 hidden layers of each network
  config.model.width = 64  # ≥ 1
  defaults.set_guess(config)
  config.lock()
  return config
