"""A small transformer on pools of regression tasks, for `launch.strategies`.

  python -m launch.strategies --config=configs/strategies.py --predictors=bayes,ridge \\
      --sweep=task.num_tasks=4,8,16,32,64,128,256,512,1024 --sweep=seed=0..2

On few tasks it comes to know the pool, and predicts like its Bayes predictor; on many
it predicts like ridge regression, which is right for new tasks, too (Raventós et al.,
arXiv 2306.15063; Wurgaft et al., arXiv 2506.17859). `--config.model.mixer=delta` takes
another mixer, as in configs/transformer.py, and `:task=NAME` another task.
"""

from ml_collections import ConfigDict

from configs import common, transformer


def get_config(variant: str = '') -> ConfigDict:
  """The config of two layers of width 64; configs/transformer.py has all fields."""
  config = transformer.get_config('task=task_pool').unlock()
  config.model.num_layers, config.model.width = 2, 64
  # A token holds an example and its label: models with a token for each need longer.
  config.model.tokens, config.model.positions = 'joint', 'none'
  config.task.num_features, config.task.context_length = 4, 8
  config.objective.positions = 'query'
  config.objective.labels = 'observed'  # as in the papers
  config.optimizer.schedule = 'constant'  # so that each step is one of a longer run
  config.checkpoint.steps = 'log'
  config.train.num_steps, config.train.batch_size = 2000, 128
  config.train.log_every, config.eval.every = 250, 500
  config.checkpoint.every = 1000
  return common.with_variant(config, variant)
