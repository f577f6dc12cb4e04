"""A small transformer that predicts draws from urns, for `launch.strategies`.

  python -m launch.strategies --config=configs/strategies.py \\
      --predictors=memorising,generalising \\
      --sweep=task.num_urns=4,16,64,256,1024 --sweep=seed=0..2

With few urns in training the model memorises them: it predicts from the posterior over
these urns. With many urns it generalises: it counts the balls that it has seen, which
also suits new urns (Wurgaft et al., arXiv 2506.17859).

`--config.model.mixer=linear` chooses another mixer, as in configs/transformer.py. A
mixer without positions, such as `mamba`, also needs `--config.model.positions=none`.
The variant `:task=NAME` chooses another task, such as markov_chain or task_pool.
"""

from typing import Any

from ml_collections import ConfigDict

from configs import common, transformer


def get_config(variant: str = '') -> ConfigDict:
  """Returns the config of two layers of width 32; see configs/transformer.py."""
  config: Any = transformer.get_config('task=urns').unlock()
  config.model.num_layers, config.model.width, config.model.num_heads = 2, 32, 1
  config.model.tokens, config.model.positions = 'shifted', 'rotary'
  config.task.context_length = 32
  config.objective.labels = 'observed'  # The papers train on observed labels.
  # With a constant rate each step is also a step of a longer run.
  config.optimizer.schedule = 'constant'
  config.checkpoint.steps = 'log'
  config.train.num_steps, config.train.batch_size = 2000, 64
  config.train.log_every, config.eval.every = 250, 500
  config.eval.num_compared = 0
  config.checkpoint.every = 1000
  return common.with_variant(config, variant)
