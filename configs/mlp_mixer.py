"""An MLP-Mixer: MLPs across the tokens alternate with MLPs across their channels.

python -m launch.main --config=configs/mlp_mixer.py
"""

from configs import defaults
from zoo.config.types import Config


def get_config(variant: str = '') -> Config:
  """The config of mlp_mixer; the variants are those of configs/defaults.py."""
  config = defaults.get_general_config(variant)
  config.model.name = 'mlp_mixer'
  config.model.num_layers = 2  # 1 to 1000
  config.model.width = 64  # ≥ 1
  defaults.set_guess(config)
  config.objective.positions = 'query'  # each example's token contains its label
  config.lock()
  return config
