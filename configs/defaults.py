"""Configs without a model, and the variants that all configs have."""

from collections.abc import Collection
from typing import Any

from zoo import UserError
from zoo.config import schema
from zoo.config.schema import Config
from zoo.core.errors import check_name

_VARIANTS = 'paper', 'smoke'


def get_config(variant: str = '', own: Collection[str] = ()) -> Config:
  """A config in the setting of Table 1 (arXiv 2512.04268), without a model.

  The variant `task=NAME` replaces its linear regression by the task of that name.
  `paper` is exactly the paper's training, and `smoke` ends in seconds; a comma joins
  variants: `smoke,task=logistic_regression`. By default the learning rate is ten times
  the paper's and decays, since Adam changes a weight by at most the learning rate per
  step, and a guess has to grow from 0 to 2. `own` names further variants, which the
  caller handles. Raises UserError for an unknown variant or task.
  """
  names, task_name = _parse(variant, own)
  config = schema.default_config()
  config.task = schema.section('task', task_name)
  if task_name == 'linear_regression':  # most other papers centre their labels
    config.task.prior_mean = 2.0
  if 'paper' in names:
    config.optimizer.learning_rate, config.optimizer.schedule = 5e-4, 'constant'
  if 'smoke' in names:
    config.train.num_steps, config.train.batch_size = 20, 64
    config.train.log_every = 5
    config.checkpoint.every, config.eval.every = 10, 10
    config.eval.num_batches, config.eval.num_compared = 4, 256
  return config


def get_general_config(variant: str = '', own: Collection[str] = ()) -> Config:
  """Like `get_config`, for models that are not linear attention.

  Without `task=NAME` the task is noiseless linear regression with d = 5, C = 10 and a
  prior mean of 0. The loss covers every example, since one pass predicts all of them.
  """
  config: Any = get_config(variant, own)
  if config.task.name == 'linear_regression':
    config.task.num_features, config.task.context_length = 5, 10
    config.task.prior_mean = 0.0
  config.objective.positions = 'every'
  config.optimizer.learning_rate, config.optimizer.clip_norm = 2e-3, 1.0
  # A tenth of the steps, but at most 200, also if num_steps is set later.
  tenth = config.train.get_ref('num_steps') // 10
  config.optimizer.warmup_steps = (tenth + 200 - abs(tenth - 200)) // 2
  config.train.batch_size = min(config.train.batch_size, 256)
  return config


def _parse(variant: str, own: Collection[str]) -> tuple[list[str], str]:
  """The names of the variants, and the name of the task."""
  names = variant.split(',') if variant else []
  task_names = [name[5:] for name in names if name.startswith('task=')]
  names = [name for name in names if not name.startswith('task=')]
  for name in names:
    check_name('variant', name, [*own, *_VARIANTS, 'task=NAME'])
  if len(task_names) > 1:
    raise UserError(f'the variant {variant!r} names several tasks; it can name one')
  if task_names and 'paper' in names:
    raise UserError(f'the variant {variant!r} has a task that the paper does not have')
  return names, task_names[0] if task_names else 'linear_regression'
