"""LSA: one head of linear attention, fixed initial guess (arXiv 2512.04268, eq. 3).

  python -m launch.main --config=configs/lsa.py

Training ends at a risk of 14.4330; the lowest known for one head is 14.4306. One
step of gradient descent has 5.2381, which no number of heads reaches with a fixed guess
of 0.
`:paper` ends at 14.4558. 5000 steps take 8 s on 2 CPU cores, imports and compilation
included.
"""

from ml_collections import FieldReference

from configs import defaults
from zoo.config.types import Config


def get_config(variant: str = '') -> Config:
  """The config of lsa; the variants are `paper` and `smoke`."""
  config = defaults.get_config(variant)
  config.model.name = 'lsa'
  model = config.model
  model.initial_guess = FieldReference(0.0, field_type=object)  # g: a number or [d]
  model.initial_bias = 0.0  # β, in units of the labels
  model.init_scale = 0.1  # ≥ 0, standard deviation of the initial matrices
  config.lock()
  return config
