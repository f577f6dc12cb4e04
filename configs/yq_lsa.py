"""Linear attention with a learned initial guess (arXiv 2512.04268, Definition 3).

  python -m launch.main --config=configs/yq_lsa.py

One layer predicts linear functions of d = 10 features, whose weights have the mean 2,
from C = 10 examples. Training takes 20 s on 2 CPU cores, imports and compilation
included, and ends at a risk of 5.2387; the optimum is one step of gradient descent from
the prior mean, whose risk is d (d + 1) / (C + d + 1) = 5.2381.

The variant `:paper` ends at 6.0117: at its learning rate Adam needs 4000 of the 5000
steps to carry the guess from 0 to 2. The variant `:smoke` ends in seconds.
"""

from ml_collections import ConfigDict

from configs import common


def get_config(variant: str = '') -> ConfigDict:
  """Returns the config of yq_lsa; zoo/config/run.py has the other fields."""
  config = common.get_config()
  # The class is in zoo/models/linear_attention.py.
  config.model = model = ConfigDict({'name': 'yq_lsa'})
  model.num_heads = 1  # Number of heads (≥ 1).
  model.init_scale = 0.1  # Standard deviation of the initial matrices (≥ 0).

  config.task.num_features = 10  # Number d of features (≥ 1).
  config.task.context_length = 10  # Number C of examples of a prompt (≥ 1).
  config.task.prior_mean = 2.0  # w*: a number, or one for each feature.

  config.optimizer.learning_rate = 5e-3  # Peak of the schedule (> 0).
  config.train.num_steps = 5000  # Number of steps (≥ 1).
  config.train.batch_size = 2048  # Number of prompts of a step (≥ 1).
  return common.with_variant(config, variant)
