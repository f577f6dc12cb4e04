"""An MLP-mixer: networks over the tokens, and over the entries of each token.

python -m launch.main --config=configs/mlp_mixer.py
"""

from configs import defaults
from zoo.config_types import Config


def get_config(variant: str = '') -> Config:
  """The config of mlp_mixer; the variants are those of configs/defaults.py."""
  config = defaults.get_general_config(variant)
  config.model.name = 'mlp_mixer'
  config.model.num_layers = 2  # ≥ 1
  config.model.width = 64  # ≥ 1
  # Zero, fixed, linear, network, residual or residual_network.
  config.model.guess = 'zero'
  config.objective.positions = 'query'  # the tokens of examples see their own labels
  config.lock()
  return config
