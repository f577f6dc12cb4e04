"""Two layers of attention on Gaussian clusters whose labels are fixed (Reddy's task).

  python -m launch.main --config=configs/clusters.py
  python -m launch.main --config=configs/clusters.py --config.task.num_classes=32 \\
      --config.task.burstiness=0 --workdir=runs/in_weights

A label can be learned in weights, or read from an example of the same class; the data
are those of arXiv 2312.03002. The tests of the task, `task.shifts()`, tell which. These
8192 classes in bursts of 4 are read from the context: after 1000 steps (one seed, some
two minutes on two cores) the accuracy on 8192 prompts is 0.996 for new classes, 0.995
for swapped labels, and 0.035 if the class is not in the context, where chance is 0.031.
The 32 classes of the second command, without bursts, are learned in weights: 0.025 for
new classes and 1.00 if the class is not in the context. `:smoke` is a short run.
"""

from typing import Any

from ml_collections import ConfigDict

from configs import common, transformer


def get_config(variant: str = '') -> ConfigDict:
  """The config of clusters; configs/transformer.py has the fields of the model."""
  config: Any = transformer.get_config()
  with config.unlocked():
    config.task = task = common.task_section('labelled_clusters')
  task.num_features = 63  # D
  task.context_length = 8  # N
  task.num_classes = 8192  # K, a multiple of L
  task.num_labels = 32  # L
  task.burstiness = 4  # B, examples of the query's class; 0, or a divisor of N
  config.model.num_layers, config.model.num_heads = 2, 1
  # A token holds an example and its label, so that a layer can compare the query with
  # examples; with a token for each, new classes are read far less well.
  config.model.tokens, config.model.positions = 'joint', 'none'
  config.objective.positions = 'query'
  config.optimizer.learning_rate, config.optimizer.schedule = 3e-3, 'constant'
  config.optimizer.warmup_steps = common.a_tenth_of_the_steps(config, at_most=100)
  config.train.num_steps, config.train.batch_size = 1000, 128
  config.train.log_every = 50
  config.checkpoint.every = config.eval.every = 500
  config.eval.num_batches, config.eval.num_compared = 16, 0
  return common.with_variant(config, variant)
