"""Linear attention with 11 heads and a fixed initial guess (arXiv 2512.04268, eq. 6).

  python -m launch.main --config=configs/multi_head_lsa.py

The default task is linear regression with 10 features, 10 examples and the prior mean
2. Training takes 28 s on 2 CPU cores, imports and compilation included, and ends at a
risk of 6.0244; the infimum for ten heads or more is 6.0224, which is 40/51 above the
risk of one step of gradient descent. The variant `:paper` ends at 6.0410.
"""

from ml_collections import ConfigDict

from configs import common


def get_config(variant: str = '') -> ConfigDict:
  """Returns the config of multi_head_lsa; zoo/config/run.py has the other fields."""
  config = common.get_config()
  # The class is in zoo/models/linear_attention.py.
  config.model = model = ConfigDict({'name': 'multi_head_lsa'})
  model.num_heads = 11  # Number of heads (≥ 1), here d + 1.
  # g of the fixed guess g·x + β of the query's label: a number, or one for each
  # feature.
  model.initial_guess = common.number_or_vector(0.0)
  model.initial_bias = 0.0  # β of that guess, in the units of the labels.
  model.init_scale = 0.1  # Standard deviation of the initial matrices (≥ 0).

  config.task.prior_mean = 2.0  # w*: a number, or one for each feature.
  return common.with_variant(config, variant)
