"""Linear weights that learn one example at a time, as by the delta rule.

python -m launch.main --config=configs/sequential.py
python -m launch.main --config=configs/sequential.py --config.model.rule=gated_delta

By default training minimises the exact risk, on the task of arXiv 2512.04268, Table 1.
"""

from configs import defaults
from zoo.config.types import Config


def get_config(variant: str = '') -> Config:
  """The config of sequential; the variants are those of configs/defaults.py."""
  config = defaults.get_config(variant)
  config.model.name = 'sequential'
  config.model.rule = 'delta'  # linear, retention, delta or gated_delta
  config.model.guess = 'linear'  # the first weights: zero, or linear: trained
  config.model.init_scale = 0.1  # ≥ 0, standard deviation of the initial writes K
  if config.task.name == 'linear_regression':
    config.objective.name = 'exact'
  config.lock()
  return config
