"""A transformer learns a small pool of tasks by heart, and ridge from a large one."""

import numpy as np

from zoo.measure.curves import sample_predictions
from zoo.reports.plots import Panel, series
from zoo.reports.style import BLUE, VERMILION
from zoo.studies.headlines.short import SHORT
from zoo.studies.runner import Trainer, load
from zoo.studies.study import Measurement, Study, at_least, at_most, near
from zoo.tasks import TaskPool

_SIZES = 4, 32, 256, 2048, 16384
_NUM_PROMPTS = 2048


def measure(train: Trainer) -> Measurement:
  to_pool, to_ridge = [], []
  for size in _SIZES:
    fields = {**SHORT, 'task.num_tasks': size}
    (row,) = train(f'pool_{size}', 'transformer:gpt2_tiny,task=task_pool', fields)
    pool = TaskPool(num_tasks=size)
    known = {name: pool.baselines()[name] for name in ('dmmse', 'ridge')}
    subjects = {'model': load(row), **known}
    predictions = sample_predictions(subjects, pool.shifts()['new_tasks'], _NUM_PROMPTS)
    for name, distances in (('dmmse', to_pool), ('ridge', to_ridge)):
      squares = np.square(predictions['model'] - predictions[name])[:, :16]
      distances.append(float(squares.mean()) / pool.num_features)
  ratios = np.divide(to_pool, to_ridge)
  panel = Panel(
    'a',
    'tasks in the pool, M',
    'squared distance / D on new tasks (log scale)',
    (
      series('model to dMMSE', 'curve', BLUE, _SIZES, to_pool),
      series('model to ridge', 'curve', VERMILION, _SIZES, to_ridge),
    ),
    x_scale='log',
    y_scale='log',
  )
  numbers = {
    'smallest_pool': float(ratios[0]),
    'largest_pool': float(ratios[-1]),
    'crossings': float(np.sum(np.diff(ratios > 1) != 0)),
  }
  return Measurement(numbers, (panel,))


_FIGURE = 'Figs. 2 and 3: '

HEADLINE = Study(
  name='pool_crossing',
  statement='From some pool size on, a transformer is nearer to ridge than to dMMSE.',
  setting=(
    'D = 8, σ² = 0.25, pools of M = 4 … 16384 tasks; a transformer of 2 layers, width '
    '64, after 4000 steps of 64 prompts: on new tasks, the mean over k = 0 … 15 '
    'examples of the squared distance of its predictions to dMMSE, over that to ridge.'
  ),
  source='Raventós et al., arXiv 2306.15063, section 3.1',
  expected={
    # The threshold itself, between 2^14 and 2^15 in the source, moves with model size
    # and training; which side of it a tiny and a huge pool are on does not.
    'smallest_pool': at_most(1, _FIGURE + 'below the threshold it is nearer to dMMSE'),
    'largest_pool': at_least(1, _FIGURE + 'above the threshold it is nearer to ridge'),
    'crossings': near(1, 0, _FIGURE + 'there is one threshold'),
  },
  minutes=10,
  measure=measure,
)
