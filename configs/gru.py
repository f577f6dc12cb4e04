"""A GRU that reads the examples one by one.

python -m launch.main --config=configs/gru.py
python -m launch.main --config=configs/gru.py:task=markov_chain
"""

from configs import defaults
from zoo.config.types import Config


def get_config(variant: str = '') -> Config:
  """The config of gru; the variants are those of configs/defaults.py."""
  config = defaults.get_general_config(variant)
  config.model.name = 'gru'
  config.model.num_layers = 2  # 1 to 1000
  config.model.width = 64  # ≥ 1
  defaults.set_tokens(config, 'shifted')
  config.lock()
  return config
