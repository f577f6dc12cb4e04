"""yq-LSA: linear attention that learns its guess (arXiv 2512.04268, Definition 3).

  python -m launch.main --config=configs/yq_lsa.py

Training ends at a risk of 5.2387; one step of gradient descent from the prior mean has
5.2381, which is the optimum. `:paper` ends at 6.0117: at its learning rate Adam needs
4000 of the 5000 steps to carry the guess from 0 to 2. 5000 steps take 8 s on 2 CPU
cores, imports and compilation included.
"""

from configs import defaults
from zoo.config.types import Config


def get_config(variant: str = '') -> Config:
  """The config of yq_lsa; the variants are `paper` and `smoke`."""
  config = defaults.get_config(variant)
  config.model.name = 'yq_lsa'
  model = config.model
  model.num_heads = 1  # H ≥ 1; the paper has one
  model.init_scale = 0.1  # ≥ 0, standard deviation of the initial matrices
  config.lock()
  return config
