"""Attention that learns the labels of Gaussian clusters, in context or in weights.

  python -m launch.main --config=configs/clusters.py
  python -m launch.main --config=configs/clusters.py --config.task.num_classes=32 \\
      --config.task.burstiness=0 --workdir=runs/in_weights

The data are those of Reddy (arXiv 2312.03002). A model of two layers can store the
label of each class in its weights, or read it from an example of the same class in the
context. The tests of the task, `task.shifts()`, tell which of the two it does.

The first command has 8192 classes, and 4 examples of the query's class in each context.
The model then reads labels from the context. After 1000 steps (one seed, some two
minutes on two cores) its accuracy on 8192 prompts is 0.996 for new classes, 0.995 for
swapped labels, and 0.035 if the query's class is not in the context; chance is 0.031.

The second command has 32 classes and draws the examples independently of the query. The
model then stores labels in its weights: its accuracy is 0.025 for new classes, and 1.00
if the query's class is not in the context.

The variant `:half_bursty` is the setting in which learning in context comes and goes
(Singh et al., arXiv 2311.08360): half of the prompts have bursts of 4, the other half
have none, there are 2048 classes, and the optimizer is AdamW. Which of the two ways the
model takes at each step of training is shown by

  python -m launch.strategies --config=configs/clusters.py:half_bursty \\
      --predictors=context_1,weights --sweep=optimizer.weight_decay=0,2 \\
      --sweep=seed=0..4

The variant `:smoke` is a short run.
"""

from typing import Any

from ml_collections import ConfigDict

from configs import common, transformer


def get_config(variant: str = '') -> ConfigDict:
  """Returns the config of clusters; configs/transformer.py has the model's fields."""
  config: Any = transformer.get_config()
  names = variant.split(',')
  with config.unlocked():
    config.task = task = common.task_section('labelled_clusters')
  task.num_features = 63  # Number D of features (≥ 1).
  task.context_length = 8  # Number N of examples of a prompt (≥ 1).
  task.num_classes = 8192  # Number K of classes, a multiple of L.
  task.num_labels = 32  # Number L of labels (≥ 2).
  # Number B of examples of each class in a context, a divisor of N. With 0 the query's
  # class is independent of the context.
  task.burstiness = 4
  config.model.num_layers, config.model.num_heads = 2, 1
  # A token holds an example and its label, so that one layer can compare the query with
  # the examples. With separate tokens the accuracy for new classes is far lower.
  config.model.tokens, config.model.positions = 'joint', 'none'
  config.objective.positions = 'query'
  config.optimizer.learning_rate, config.optimizer.schedule = 3e-3, 'constant'
  # A tenth of the steps, and 100 at most.
  config.optimizer.warmup_share, config.optimizer.warmup_steps = 0.1, 100
  config.train.num_steps, config.train.batch_size = 1000, 128
  config.train.log_every = 50
  config.checkpoint.every = config.eval.every = 500
  config.eval.num_batches, config.eval.num_compared = 16, 0
  if 'half_bursty' in names:
    with config.unlocked():
      config.task = _half_bursty()
    config.optimizer.name, config.optimizer.decay = 'adamw', 'hidden,embedding'
    config.train.num_steps = 3000
  return common.with_variant(config, variant, own=('half_bursty',))


def _half_bursty() -> ConfigDict:
  """Returns a mixture of prompts with bursts of four and of prompts without bursts."""
  clusters = {'name': 'labelled_clusters', 'num_classes': 2048}
  parts = tuple({**clusters, 'burstiness': burstiness} for burstiness in (4, 0))
  return ConfigDict(
    {
      'name': 'mixture',
      'parts': parts,
      'weights': (1.0, 1.0),
      'num_features': 63,
      'context_length': 8,
    }
  )
