"""A transformer of table rows, trained on random tables: a small TabPFN.

  python -m launch.main --config=configs/tabular.py
  python -m launch.main --config=configs/tabular.py --config.model.num_layers=4

One set of weights predicts numbers and classes (Hollmann et al., arXiv 2207.01848).
docs/tabular.md describes the random tables.

The checkpoint `checkpoints/tabular`, which ships, was trained with this file as it is.
Its card, checkpoints/tabular/card.json, has the results. The variant `:smoke` ends in
seconds.
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from configs import common


def get_config(variant: str = '') -> ConfigDict:
  """Returns the config of tabular; zoo/config/run.py has the other fields."""
  config = common.get_config()
  # The class is in zoo/models/tabular.py.
  config.model = model = ConfigDict({'name': 'tabular'})
  model.num_classes = 10  # Largest number of classes (≥ 2).
  model.num_layers = 3  # Number of layers (1 to 1000).
  model.num_loops = 2  # Number of times that the layers are applied (1 to 1000).
  model.num_heads = 4  # Number of heads, a divisor of the width.
  model.width = 96  # Number of entries of each token (≥ 1).
  # Network after attention: gelu, swiglu, linear or none.
  model.feed_forward = 'gelu'
  # Number of hidden entries of that network (≥ 1). None means 2 · width.
  model.hidden_features = placeholder(int)
  # Norm before attention, the network and the readout: rms, layer or none.
  model.norm = 'rms'
  # Number of bars of the histogram that predicts a number (≥ 2).
  model.num_bars = 64

  # The class is in zoo/tasks/tabular.py.
  config.task = task = common.task_section('tabular')
  task.num_features = 32  # Largest number of features of a table (1 to 60).
  task.context_length = 127  # Number of rows of a table, less one (≥ 1).
  # Share of the tables with missing entries (0 to 1). In each of them an entry is
  # missing with a probability that is uniform from 0 to 0.3.
  task.share_missing = 0.15

  config.objective.name = 'rows'  # Many rows of each table are queries.
  config.optimizer.name = 'muon'
  config.optimizer.learning_rate = 5e-3
  # The rate is constant, and falls linearly to 0 over the last half of the steps.
  config.optimizer.schedule = 'wsd'
  config.optimizer.decay_share = 0.5
  # A tenth of the steps, and 100 at most.
  config.optimizer.warmup_share, config.optimizer.warmup_steps = 0.1, 100
  config.optimizer.clip_norm = 1.0
  config.train.num_steps = 16_000
  config.train.batch_size = 64  # Number of tables of a step (≥ 1).
  config.train.log_every = 100
  config.eval.every = 1000
  return common.with_variant(config, variant)
