"""LSA: single-head linear self-attention with a fixed initial guess (eq. 3).

  python -m launch.main --config=configs/lsa.py
@@lsa@@
"""

from typing import Any

from ml_collections import FieldReference

from configs import defaults


def get_config(variant: str = '') -> Any:
  """The config of lsa; the variants are `paper` and `smoke`."""
  config = defaults.get_config(variant)
  config.model.name = 'lsa'
  model = config.model
  model.initial_guess = FieldReference(0.0, field_type=object)  # g: a number or [d]
  model.initial_bias = 0.0  # β, in units of the labels
  model.init_scale = 0.1  # ≥ 0, standard deviation of the initial matrices
  config.lock()
  return config
