"""Attention that learns the labels of characters, in context or in weights.

  tfds build omniglot --data_dir=data --file_format=array_record
  python -m launch.main --config=configs/omniglot.py

The first command downloads the characters and needs TensorFlow. The second command
reads them and needs only the extra `data`.

As in configs/clusters.py, the model can store the label of each character in its
weights, or read it from the context (Chan et al., arXiv 2205.05055; Reddy, arXiv
2312.03002). Of the 1623 characters the first 1504 are used in training, each with one
of 32 labels. The last 100 are held out for the test `in_context`. Convolutions read the
images. The variant `:smoke` is a short run.
"""

from typing import Any

from ml_collections import ConfigDict

from configs import common, transformer


def get_config(variant: str = '') -> ConfigDict:
  """Returns the config of omniglot; configs/transformer.py has the model's fields."""
  config: Any = transformer.get_config()
  with config.unlocked():
    config.task = task = common.task_section('labelled_clusters')
  task.source = 'tfds'
  # Any data set of TensorFlow (TFDS) that has the features `image` and `label`.
  task.dataset = 'omniglot'
  # Folder in which TFDS has built the data set. None means the folder of TFDS.
  task.data_dir = 'data'
  # Number of pixels of a side (≥ 1). Images of 105 × 105 pixels are scaled to it.
  task.image_size = 28
  task.held_out_classes = 100  # Number of classes held out, the last ones.
  task.context_length = 8  # Number N of examples of a prompt (≥ 1).
  task.num_classes = 1504  # Number K of classes, a multiple of L.
  task.num_labels = 32  # Number L of labels (≥ 2).
  # Number B of examples of each class in a context, a divisor of N. With 0 the query's
  # class is independent of the context.
  task.burstiness = 4
  config.model.num_layers, config.model.num_heads = 2, 1
  config.model.read_in = 'convolutional'
  # configs/clusters.py says why each token holds an example and its label.
  config.model.tokens, config.model.positions = 'joint', 'none'
  config.objective.positions = 'query'
  config.optimizer.learning_rate = 1e-3
  config.train.num_steps, config.train.batch_size = 50_000, 128
  config.train.log_every = 500
  config.checkpoint.every = config.eval.every = 5000
  config.eval.num_batches, config.eval.num_compared = 16, 4096
  return common.with_variant(config, variant)
