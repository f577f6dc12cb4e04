"""LTB: linear attention followed by a linear MLP (Zhang et al.; eq. 30).

  python -m launch.main --config=configs/ltb.py
@@ltb@@
"""

from typing import Any

from configs import defaults


def get_config(variant: str = '') -> Any:
  """The config of ltb; the variants are `paper` and `smoke`."""
  config = defaults.get_config(variant)
  config.model.name = 'ltb'
  model = config.model
  model.num_heads = 1  # H ≥ 1; the paper has one
  model.hidden_features = 11  # f ≥ d + 1, width of the MLP
  model.init_scale = 0.1  # ≥ 0, standard deviation of the initial matrices
  config.lock()
  return config
