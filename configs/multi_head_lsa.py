"""Multi-head LSA, fixed initial guess, d + 1 heads (arXiv 2512.04268, eqs. 5 and 6).

  python -m launch.main --config=configs/multi_head_lsa.py

Training ends at a risk of 6.0244; the infimum for ten heads or more is 6.0224, which is
40/51 above one step of gradient descent. `:paper` ends at 6.0410. 5000 steps take 8 s
on 2 CPU cores, imports and compilation included.
"""

from ml_collections import FieldReference

from configs import defaults
from zoo.config.types import Config


def get_config(variant: str = '') -> Config:
  """The config of multi_head_lsa; the variants are `paper` and `smoke`."""
  config = defaults.get_config(variant)
  config.model.name = 'multi_head_lsa'
  model = config.model
  model.num_heads = 11  # H ≥ 1
  model.initial_guess = FieldReference(0.0, field_type=object)  # g: a number or [d]
  model.initial_bias = 0.0  # β, in units of the labels
  model.init_scale = 0.1  # ≥ 0, standard deviation of the initial matrices
  config.lock()
  return config
