"""One head of linear attention with a fixed initial guess (arXiv 2512.04268, eq. 3).

  python -m launch.main --config=configs/lsa.py

On the default task (10 features, 10 examples, prior mean 2) training ends
at a risk of 14.4330 in 26 s on 2 CPU cores, with imports and compilation; the infimum
for one head is 14.4306. One step of gradient descent has 5.2381, which no number of
heads reaches with a fixed guess of 0. `:paper` ends at 14.4558.
"""

from ml_collections import ConfigDict

from configs import common


def get_config(variant: str = '') -> ConfigDict:
  """The config of lsa; zoo/config/fields.py has all other fields."""
  config = common.get_config()
  # The class is in zoo/models/linear_attention.py.
  config.model = model = ConfigDict({'name': 'lsa'})
  model.initial_guess = common.number_or_vector(0.0)  # g of the fixed guess g·x + β
  model.initial_bias = 0.0  # β, in the units of the labels
  model.init_scale = 0.1  # standard deviation of the initial matrices, ≥ 0
  return common.with_variant(config, variant)
