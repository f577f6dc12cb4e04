"""Linear attention followed by a linear MLP (arXiv 2402.14951; 2512.04268, eq. 30).

  python -m launch.main --config=configs/ltb.py

The default task is linear regression with 10 features, 10 examples and the prior mean
2. Training takes 26 s on 2 CPU cores, imports and compilation included, and ends at a
risk of 5.2389. One step of gradient descent from the prior mean has the risk 5.2381,
which is the optimum. The variant `:paper` ends at 5.2477.
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from configs import common


def get_config(variant: str = '') -> ConfigDict:
  """Returns the config of ltb; zoo/config/run.py has the other fields."""
  config = common.get_config()
  # The class is in zoo/models/linear_attention.py.
  config.model = model = ConfigDict({'name': 'ltb'})
  model.num_heads = 1  # Number of heads (≥ 1).
  # Number of hidden features of the MLP (≥ d + 1). None means d + 1.
  model.hidden_features = placeholder(int)
  model.init_scale = 0.1  # Standard deviation of the initial matrices (≥ 0).

  config.task.prior_mean = 2.0  # w*: a number, or one for each feature.
  return common.with_variant(config, variant)
