"""A transformer of table rows, trained on a prior over tables: a small TabPFN.

  python -m launch.main --config=configs/tabular.py
  python -m launch.main --config=configs/tabular.py --config.model.num_layers=4

The variant `smoke` ends in seconds. The frozen `checkpoints/tabular` comes from this
file as it is; its card, checkpoints/tabular/card.json, has the numbers.

One set of weights predicts numbers and classes (Hollmann et al., arXiv 2207.01848). The
task is described in docs/tabular.md.
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from configs import common


def get_config(variant: str = '') -> ConfigDict:
  """The config of tabular; zoo/config/fields.py has all other fields."""
  config = common.get_config()
  # The class is in zoo/models/tabular.py.
  config.model = model = ConfigDict({'name': 'tabular'})
  model.num_classes = 10  # the most, ≥ 2
  model.num_layers = 3  # ≥ 1
  model.num_loops = 2  # how often the layers are applied, ≥ 1
  model.num_heads = 4  # divides the width
  model.width = 96  # entries of each token, ≥ 1
  model.feed_forward = 'gelu'  # after attention; or swiglu, linear, none
  model.hidden_features = placeholder(int)  # of that network; None: 2 · width
  model.norm = 'rms'  # before attention and network; or layer, none
  model.num_bars = 64  # of the histogram that is the distribution of a number, ≥ 2

  # The class is in zoo/tasks/tabular.py.
  config.task = task = common.task_section('tabular')
  task.num_features = 32  # the most of a table, ≥ 1
  task.context_length = 127  # rows of a table but one, ≥ 1
  task.share_missing = 0.15  # of tables, which miss up to 30 % of their features

  config.objective.name = 'rows'  # many queries of each table
  config.optimizer.name = 'muon'
  config.optimizer.learning_rate = 5e-3
  config.optimizer.schedule = 'wsd'  # constant, then linear to 0 over the last half
  config.optimizer.decay_share = 0.5
  config.optimizer.warmup_steps = common.a_tenth_of_the_steps(config, at_most=100)
  config.optimizer.clip_norm = 1.0
  config.train.num_steps = 16_000
  config.train.batch_size = 64  # tables
  config.train.log_every = 100
  config.eval.every = 1000
  return common.with_variant(config, variant)
