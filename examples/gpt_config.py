"""The GPT of examples/gpt.py on noiseless linear regression, d = 5 and C = 10.

python -m launch.main --config=examples/gpt_config.py
python -m launch.main --config=examples/gpt_config.py:task=decision_tree
"""

from ml_collections import ConfigDict

from configs import common
from examples import gpt  # noqa: F401, registers the model


def get_config(variant: str = '') -> ConfigDict:
  """The config of gpt; zoo/config/run.py has all other fields."""
  config = common.get_config()
  config.model = model = ConfigDict({'name': 'gpt'})
  model.num_layers = 2  # ≥ 1
  model.num_heads = 2  # ≥ 1, a divisor of the width
  model.width = 32  # ≥ 1

  config.task.num_features = 5
  config.objective.positions = 'every'
  config.optimizer.learning_rate = 3e-3
  config.train.batch_size = 256
  return common.with_variant(config, variant)
