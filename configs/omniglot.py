"""Two layers of attention on handwritten characters whose labels are fixed.

  tfds build omniglot --data_dir=data --file_format=array_record
  python -m launch.main --config=configs/omniglot.py

The first command downloads the characters, and needs TensorFlow; the second reads them
(the extra `data`). As for configs/clusters.py a label can be learned in weights or read
from the context (Chan et al., arXiv 2205.05055; Reddy, 2312.03002): 1504 of the 1623
characters have one of 32 labels, and the last 100 are held out, for `in_context`. Each
image is read by convolutions. `:smoke` is a short run.
"""

from typing import Any

from ml_collections import ConfigDict

from configs import common, transformer


def get_config(variant: str = '') -> ConfigDict:
  """The config of omniglot; configs/transformer.py has the fields of the model."""
  config: Any = transformer.get_config()
  with config.unlocked():
    config.task = task = common.task_section('labelled_clusters')
  task.source = 'tfds'
  task.dataset = 'omniglot'  # or any of TFDS with the features image and label
  task.data_dir = 'data'  # where TFDS has built it; None: the folder of TFDS
  task.image_size = 28  # pixels of a side, to which images of 105 are scaled
  task.held_out_classes = 100  # the last
  task.context_length = 8  # N
  task.num_classes = 1504  # K, a multiple of L
  task.num_labels = 32  # L
  task.burstiness = 4  # B, examples of the query's class; 0, or a divisor of N
  config.model.num_layers, config.model.num_heads = 2, 1
  config.model.read_in = 'convolutional'
  config.model.tokens, config.model.positions = 'joint', 'none'  # as in clusters.py
  config.objective.positions = 'query'
  config.optimizer.learning_rate = 1e-3
  config.train.num_steps, config.train.batch_size = 50_000, 128
  config.train.log_every = 500
  config.checkpoint.every = config.eval.every = 5000
  config.eval.num_batches, config.eval.num_compared = 16, 4096
  return common.with_variant(config, variant)
