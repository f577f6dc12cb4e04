"""yq-LSA: linear self-attention that learns its initial guess (Definition 3).

  python -m launch.main --config=configs/yq_lsa.py
@@yq_lsa@@
"""

from typing import Any

from configs import defaults


def get_config(variant: str = '') -> Any:
  """The config of yq_lsa; the variants are `paper` and `smoke`."""
  config = defaults.get_config(variant)
  config.model.name = 'yq_lsa'
  model = config.model
  model.num_heads = 1  # H ≥ 1; the paper has one
  model.init_scale = 0.1  # ≥ 0, standard deviation of the initial matrices
  config.lock()
  return config
