"""A transformer learns a small pool of tasks by heart, and ridge from a large one."""

import numpy as np
from jaxtyping import Float

from studies.headlines.short import SHORT
from studies.runner import Trainer, load
from studies.study import Measurement, Study, at_least, at_most, near
from zoo.measure.curve import sample_predictions
from zoo.reports.plots import Panel, series
from zoo.reports.style import BLUE, VERMILION
from zoo.tasks import TaskPool

_SIZES = 4, 32, 256, 2048, 16384
_NUM_PROMPTS = 2048


def measure(train: Trainer) -> Measurement:
  numbers, panels = {}, []
  for key, labels, suffix in ('a', 'clean', ''), ('b', 'observed', '_observed'):
    ratios, panel = _distances(train, key, labels)
    panels.append(panel)
    numbers |= {
      f'smallest_pool{suffix}': float(ratios[0]),
      f'largest_pool{suffix}': float(ratios[-1]),
      f'crossings{suffix}': float(np.sum(np.diff(ratios > 1) != 0)),
    }
  return Measurement(numbers, tuple(panels))


def _distances(
  train: Trainer, key: str, labels: str
) -> tuple[Float[np.ndarray, ' size'], Panel]:
  """Trains on pools, and measures how far each model is from dMMSE and from ridge.

  Returns:
    The squared distance to dMMSE over that to ridge for each pool, and a panel of both.
  """
  to_pool, to_ridge = [], []
  for size in _SIZES:
    fields = {**SHORT, 'objective.labels': labels, 'task.num_tasks': size}
    (row,) = train(f'pool_{size}', 'transformer:gpt2_tiny,task=task_pool', fields)
    pool = TaskPool(num_tasks=size)
    known = {name: pool.baselines()[name] for name in ('dmmse', 'ridge')}
    subjects = {'model': load(row), **known}
    predictions = sample_predictions(subjects, pool.shifts()['new_tasks'], _NUM_PROMPTS)
    for name, distances in (('dmmse', to_pool), ('ridge', to_ridge)):
      squares = np.square(predictions['model'] - predictions[name])[:, :16]
      distances.append(float(squares.mean()) / pool.num_features)
  panel = Panel(
    key,
    'tasks in the pool, M',
    'squared distance / D on new tasks (log scale)',
    (
      series('model to dMMSE', 'curve', BLUE, _SIZES, to_pool),
      series('model to ridge', 'curve', VERMILION, _SIZES, to_ridge),
    ),
    x_scale='log',
    y_scale='log',
  )
  return np.divide(to_pool, to_ridge), panel


_FIGURE = 'Figs. 2 and 3: '

# The threshold, between 2^14 and 2^15 tasks in the source, depends on the size of the
# model and on training. That a tiny pool is below it and a huge pool above does not.
_EXPECTED = {
  'smallest_pool': at_most(1, _FIGURE + 'below the threshold it is nearer to dMMSE'),
  'largest_pool': at_least(1, _FIGURE + 'above the threshold it is nearer to ridge'),
  'crossings': near(1, 0, _FIGURE + 'there is one threshold'),
}

HEADLINE = Study(
  name='pool_crossing',
  statement=(
    'One seed: from some pool size on, a transformer is nearer to ridge than to dMMSE.'
  ),
  setting=(
    'D = 8, σ² = 0.25, pools of M = 4 … 16384 tasks; a transformer of 2 layers, width '
    '64, after 4000 steps of 64 prompts: on new tasks, the mean over k = 0 … 15 '
    'examples of the squared distance of its predictions to dMMSE, over that to ridge. '
    'Trained on labels without noise (a), and with it, as in the source (b).'
  ),
  source='Raventós et al., arXiv 2306.15063, section 3.1',
  expected=_EXPECTED
  | {f'{name}_observed': range_ for name, range_ in _EXPECTED.items()},
  minutes=32,
  measure=measure,
)
