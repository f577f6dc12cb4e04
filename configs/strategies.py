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
  """The config of two layers of width 32; configs/transformer.py has all fields."""
  config = transformer.get_config('task=task_pool').unlock()
  config.model.num_layers, config.model.width, config.model.num_heads = 2, 32, 2
  config.task.num_features, config.task.context_length = 4, 12
  config.objective.labels = 'observed'  # as in the papers
  config.checkpoint.steps = 'log'
  config.train.num_steps, config.train.batch_size = 4000, 64
  config.train.log_every, config.eval.every = 500, 1000
  config.checkpoint.every = 1000
  return common.with_variant(config, variant)
