"""One head of linear attention with a fixed initial guess (arXiv 2512.04268, eq. 3).

  python -m launch.main --config=configs/lsa.py

The default task is linear regression with 10 features, 10 examples and the prior mean
2. Training takes 26 s on 2 CPU cores, imports and compilation included, and ends at a
risk of 14.4330; the infimum for one head is 14.4306. One step of gradient descent has
the risk 5.2381, which no number of heads reaches with a fixed guess of 0. The variant
`:paper` ends at 14.4558.
"""

from ml_collections import ConfigDict

from configs import common


def get_config(variant: str = '') -> ConfigDict:
  """Returns the config of lsa; zoo/config/run.py has the other fields."""
  config = common.get_config()
  # The class is in zoo/models/linear_attention.py.
  config.model = model = ConfigDict({'name': 'lsa'})
  # g of the fixed guess g·x + β of the query's label: a number, or one for each
  # feature.
  model.initial_guess = common.number_or_vector(0.0)
  model.initial_bias = 0.0  # β of that guess, in the units of the labels.
  model.init_scale = 0.1  # Standard deviation of the initial matrices (≥ 0).

  config.task.prior_mean = 2.0  # w*: a number, or one for each feature.
  return common.with_variant(config, variant)
