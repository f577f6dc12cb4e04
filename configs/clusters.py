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
if the query's class is not in the context. The variant `:smoke` is a short run.
"""

from typing import Any

from ml_collections import ConfigDict

from configs import common, transformer


def get_config(variant: str = '') -> ConfigDict:
  """Returns the config of clusters; configs/transformer.py has the model's fields."""
  config: Any = transformer.get_config()
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
  config.optimizer.warmup_steps = common.a_tenth_of_the_steps(config, at_most=100)
  config.train.num_steps, config.train.batch_size = 1000, 128
  config.train.log_every = 50
  config.checkpoint.every = config.eval.every = 500
  config.eval.num_batches, config.eval.num_compared = 16, 0
  return common.with_variant(config, variant)
