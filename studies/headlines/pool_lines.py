"""The errors of the two predictors for task pools: the posterior mean, and ridge."""

import math

import numpy as np

from studies.runner import Trainer
from studies.study import Expected, Measurement, Study, at_most, near
from zoo.measure.curve import sample_losses
from zoo.reports.plots import Panel, series
from zoo.reports.style import BLUE, VERMILION
from zoo.tasks import TaskPool

_SIZES = 1, 4, 16, 64, 256, 1024
_NUM_PROMPTS = 2048


def measure(train: Trainer) -> Measurement:
  del train  # nothing is trained
  ridge = _mean('ridge', _SIZES[-1], new=True, num_prompts=65536)
  new = [_mean('dmmse', size, new=True, num_prompts=_NUM_PROMPTS) for size in _SIZES]
  old = [_mean('dmmse', size, new=False, num_prompts=_NUM_PROMPTS) for size in _SIZES]
  numbers = {'ridge': ridge, 'one_task': old[0]}
  for size in (64, 1024):
    numbers[f'new_tasks_{size}'] = new[_SIZES.index(size)]
    numbers[f'pool_{size}'] = old[_SIZES.index(size)]
  panel = Panel(
    'a',
    'tasks in the pool, M',
    'squared error / D, mean over k = 0 … 15',
    (
      series('dMMSE on new tasks', 'line', BLUE, _SIZES, new),
      series('dMMSE on its pool', 'dashed', BLUE, _SIZES, old),
      series('ridge on new tasks', 'line', VERMILION, _SIZES, [ridge] * len(_SIZES)),
    ),
    x_scale='log',
  )
  return Measurement(numbers, (panel,))


def _mean(name: str, size: int, new: bool, num_prompts: int) -> float:
  """Returns the error of a baseline over D, averaged over 0 to 15 examples."""
  pool = TaskPool(num_tasks=size)
  task = pool.shifts()['new_tasks'] if new else pool
  losses = sample_losses({name: pool.baselines()[name]}, task, num_prompts)[name]
  return float(np.mean(losses[:, :16])) / pool.num_features


def _pool(value: float, spread: float) -> Expected:
  """Returns `value` ± three standard deviations of the difference of two pools."""
  return near(
    value,
    3 * math.sqrt(2) * spread,
    f'measured independently on one pool; pools spread by {spread:g}',
  )


HEADLINE = Study(
  name='pool_lines',
  statement='The posterior mean over a pool of tasks, and ridge, have known errors.',
  setting='D = 8, σ² = 0.25, the mean over k = 0 … 15 examples of the squared error '
  'to the label without noise, over D; pools of M tasks ~ N(0, I).',
  source='Raventós et al., arXiv 2306.15063, section 2',
  expected={
    'ridge': near(
      0.3458, 3 * 0.0008 * math.sqrt(2), 'measured independently, ± 0.0008; 3 s.e.'
    ),
    'one_task': at_most(1e-10, 'a pool of one task is known: 0'),
    'new_tasks_64': _pool(0.87, 0.017),
    'pool_64': _pool(0.145, 0.007),
    'new_tasks_1024': _pool(0.603, 0.007),
    'pool_1024': _pool(0.224, 0.008),
  },
  minutes=1,
  measure=measure,
)
