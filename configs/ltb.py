"""Linear attention followed by a linear MLP (arXiv 2402.14951; 2512.04268, eq. 30).

  python -m launch.main --config=configs/ltb.py

On the default task (10 features, 10 examples, prior mean 2) training ends
at a risk of 5.2389 in 26 s on 2 CPU cores, with imports and compilation; one step of
gradient descent from the prior mean has 5.2381, which is the optimum. `:paper` ends at
5.2477.
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from configs import common


def get_config(variant: str = '') -> ConfigDict:
  """The config of ltb; zoo/config/fields.py has all other fields."""
  config = common.get_config()
  # The class is in zoo/models/linear_attention.py.
  config.model = model = ConfigDict({'name': 'ltb'})
  model.num_heads = 1  # ≥ 1
  model.hidden_features = placeholder(int)  # of the MLP, ≥ d + 1; None: d + 1
  model.init_scale = 0.1  # standard deviation of the initial matrices, ≥ 0
  return common.with_variant(config, variant)
