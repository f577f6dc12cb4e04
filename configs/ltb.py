"""LTB: linear attention followed by a linear MLP (arXiv 2402.14951, 2512.04268 eq. 30).

  python -m launch.main --config=configs/ltb.py

Training ends at a risk of 5.2389; one step of gradient descent from the prior mean has
5.2381, which is the optimum. `:paper` ends at 5.2477. 5000 steps take 8 s on 2 CPU
cores, imports and compilation included.
"""

from ml_collections.config_dict import placeholder

from configs import defaults
from zoo.config.types import Config


def get_config(variant: str = '') -> Config:
  """The config of ltb; the variants are `paper` and `smoke`."""
  config = defaults.get_config(variant)
  config.model.name = 'ltb'
  model = config.model
  model.num_heads = 1  # H ≥ 1; the paper has one
  model.hidden_features = placeholder(int)  # f ≥ d + 1, width of the MLP; None: d + 1
  model.init_scale = 0.1  # ≥ 0, standard deviation of the initial matrices
  config.lock()
  return config
