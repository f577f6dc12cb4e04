"""Deep linear attention: layers of multi-head LSA (arXiv 2512.04268, eqs. 3, 5, 6).

python -m launch.main --config=configs/deep_lsa.py
python -m launch.main --config=configs/deep_lsa.py --config.model.form=sparse
"""

from configs import defaults
from zoo.config.types import Config


def get_config(variant: str = '') -> Config:
  """The config of deep_lsa; the variants are those of configs/defaults.py."""
  config = defaults.get_general_config(variant)
  model = config.model
  model.name = 'deep_lsa'
  model.num_layers = 3  # 1 to 1000
  model.num_heads = 1  # ≥ 1
  model.shared = False  # True: all layers have the same weights
  model.form = 'dense'  # dense, sparse (arXiv 2306.00297), gd_plus_plus or scalar
  defaults.set_guess(config)
  model.readout = 'last'  # last entry of the query's token, or linear
  model.init_scale = 0.1  # ≥ 0, standard deviation of the initial matrices
  config.objective.positions = 'query'  # each example's token contains its label
  config.lock()
  return config
