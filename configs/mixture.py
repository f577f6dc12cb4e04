"""A small GPT-2 on a mixture of two tasks, one of which each prompt shows.

  python -m launch.main --config=configs/mixture.py

The model has to infer from the examples whether the weights are dense or sparse, and
how noisy the labels are (Bai et al., arXiv 2306.04637). The variant `:smoke` ends in
seconds.
"""

from ml_collections import ConfigDict

from configs import common, transformer


def get_config(variant: str = '') -> ConfigDict:
  """Returns the config of a mixture; configs/transformer.py has the model's fields."""
  config = transformer.get_config()
  with config.unlocked():
    config.task = task = ConfigDict({'name': 'mixture'})
    # Name and fields of each task. All tasks share the sizes below.
    task.parts = (
      {'name': 'linear_regression', 'noise_std': 1.0},
      {'name': 'sparse_regression', 'num_nonzero': 1, 'noise_std': 0.1},
    )
    # Weight of each task (> 0); a task is drawn with the probability weight / sum.
    task.weights = (1.0, 1.0)
    task.num_features = 5  # Number d of features (≥ 1).
    task.context_length = 10  # Number C of examples of a prompt (≥ 1).
  return common.with_variant(config, variant)
