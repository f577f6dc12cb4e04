"""Trains a small GPT-2 on a mixture of two tasks, of which each prompt shows one.

  python -m launch.main --config=configs/mixture.py

The model has to find from the examples whether the weights are dense or sparse, and how
noisy the labels are (Bai et al., arXiv 2306.04637). `:smoke` ends in seconds.
"""

from ml_collections import ConfigDict

from configs import common, transformer


def get_config(variant: str = '') -> ConfigDict:
  """The config of a mixture; configs/transformer.py has the fields of the model."""
  config = transformer.get_config()
  with config.unlocked():
    config.task = task = ConfigDict({'name': 'mixture'})
    # The tasks by name, with their fields but for the sizes, which all share.
    task.parts = (
      {'name': 'linear_regression', 'noise_std': 1.0},
      {'name': 'sparse_regression', 'num_nonzero': 1, 'noise_std': 0.1},
    )
    task.weights = (1.0, 1.0)  # > 0, by whose share of the sum a task is drawn
    task.num_features = 5  # d ≥ 1
    task.context_length = 10  # C ≥ 1, labelled examples of a prompt
  return common.with_variant(config, variant)
