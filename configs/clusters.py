"""Two layers of attention on Gaussian clusters whose labels are fixed (Reddy's task).

  python -m launch.main --config=configs/clusters.py
  python -m launch.main --config=configs/clusters.py --config.task.num_classes=64 \\
      --config.task.burstiness=0 --workdir=runs/in_weights

A label can be learned in weights, or read from an example of the same class; the data
are those of arXiv 2312.03002. The tests of the task, `task.shifts()`, tell which. These
2048 classes in bursts of 4 end in weights for the most part: after 15,000 steps (one
seed, 17 minutes on two busy cores) the accuracy on 4096 prompts is 1.00 in training,
0.61 if the class is not in the context, 0.25 for new classes and 0.19 for swapped
labels, where chance is 0.03. After 5000 of these steps it is 0.96, 0.23, 0.39 and 0.37.
`:smoke` is a short run.
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
  task.num_classes = 2048  # K, a multiple of L
  task.num_labels = 32  # L
  task.burstiness = 4  # B, examples of the query's class; 0, or a divisor of N
  config.model.num_layers, config.model.num_heads = 2, 1
  config.objective.positions = 'query'
  config.optimizer.learning_rate = 1e-3
  config.train.num_steps, config.train.batch_size = 15_000, 128
  config.train.log_every = 500
  config.checkpoint.every = config.eval.every = 5000
  config.eval.num_batches, config.eval.num_compared = 16, 0
  return common.with_variant(config, variant)
