"""A transformer learns a small pool's posterior mean, and ridge from a large pool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float
from scipy import stats

from studies.runner import Trainer, load
from studies.study import Measurement, Study, at_least, at_most, near
from zoo.probing import strategies
from zoo.reports.plots import Panel, level, series
from zoo.reports.style import PALETTE
from zoo.tasks import TaskPool

_SIZES = 4, 16, 64, 256, 1024
_FEATURES, _LENGTH = 4, 4
_STEPS = 250, 500, 1000, 2000, 3000  # a mixture is fitted after each of these
_NUM_PROMPTS = 2048
_FIELDS = {
  'task.num_features': _FEATURES,
  'task.context_length': _LENGTH,
  'objective.positions': 'query',
  'model.num_layers': 2,
  'model.width': 64,
  # One token holds an example and its label. With separate tokens models do not come
  # near to ridge in 4000 steps.
  'model.tokens': 'joint',
  'model.positions': 'none',
  'train.batch_size': 128,
  'optimizer.learning_rate': 3e-3,
  'optimizer.warmup_steps': 100,
  'optimizer.schedule': 'constant',
  'eval.num_batches': 16,
  'eval.num_compared': 0,
}


def measure(train: Trainer) -> Measurement:
  shares = np.array([_shares(train, size) for size in _SIZES])
  at_end = shares[:, -1]
  switches = np.array([switch(of_pool) for of_pool in shares.tolist()], float)
  numbers = {
    'smallest_pool': float(at_end[0]),
    'largest_pool': float(at_end[-1]),
    'rank_correlation': _rank_correlation(_SIZES, at_end),
    'crossings': float(np.sum(np.diff(at_end > 0.5) != 0)),
    'delay': _rank_correlation(_SIZES, switches),
  }
  by_pool = Panel(
    'a',
    'tasks in the pool, M (log scale)',
    'weight of dMMSE over both',
    (
      series('trained', 'curve', PALETTE[0], _SIZES, at_end),
      level('one half', 0.5, _SIZES),
    ),
    x_scale='log',
  )
  by_step = Panel(
    'b',
    'training step (log scale)',
    'weight of dMMSE over both',
    tuple(
      series(f'M = {size}', 'curve', colour, _STEPS, of_pool)
      for size, of_pool, colour in zip(_SIZES, shares, PALETTE, strict=False)
    ),
    x_scale='log',
  )
  return Measurement(numbers, (by_pool, by_step))


def _shares(train: Trainer, size: int) -> list[float]:
  """Trains on a pool, and returns `share` after each number of steps."""
  fields = {
    **_FIELDS,
    'task.num_tasks': size,
    'train.num_steps': _STEPS[-1],
    'train.log_every': _STEPS[0],
    'checkpoint.every': _STEPS[0],
    'checkpoint.keep': _STEPS[-1] // _STEPS[0],
  }
  (row,) = train(f'pool_{size}', 'transformer:gpt2_tiny,task=task_pool', fields)
  pool = TaskPool(_FEATURES, _LENGTH, size)
  known = {name: pool.baselines()[name] for name in ('dmmse', 'ridge', 'zero')}
  shares = []
  for step in _STEPS:
    mixtures = strategies(load(row, step), pool, known, _NUM_PROMPTS).by_length
    # The last mixture is that after C examples, the only number in training.
    shares.append(share(mixtures[-1].weights))
  return shares


def share(weights: Mapping[str, float]) -> float:
  """Returns the weight of dMMSE divided by the weight of dMMSE and ridge together.

  Args:
    weights: The weights of a mixture by name. Predictors that cannot be told apart have
      one name together.

  Returns:
    The share. One half if dMMSE and ridge cannot be told apart, or if neither has a
    weight.
  """
  dmmse, ridge = (weights.get(name, 0.0) for name in ('dmmse', 'ridge'))
  return dmmse / (dmmse + ridge) if dmmse + ridge else 0.5


def switch(shares: Sequence[float]) -> int:
  """Returns the index of the first measurement from which on shares exceed one half.

  Args:
    shares: The shares in the order of the steps.

  Returns:
    The index. The number of measurements if the last share is not above one half.
  """
  below = np.flatnonzero(~(np.asarray(shares) > 0.5))
  return int(below[-1]) + 1 if below.size else 0


def _rank_correlation(sizes: Sequence[int], values: Float[np.ndarray, ' m']) -> float:
  """Returns Spearman's rank correlation; 0 if all values are equal."""
  if np.ptp(values) == 0:
    return 0.0
  # SciPy's types do not say that the result unpacks into a pair.
  correlation, _ = np.asarray(stats.spearmanr(sizes, values))
  return float(correlation)


HEADLINE = Study(
  name='diversity',
  statement=(
    'One seed: as pools grow, a transformer goes from their posterior mean to ridge.'
  ),
  setting=(
    'Linear regression, d = 4, σ² = 0.25, C = 4 examples, pools of 4 … 1024 '
    'tasks; two layers of width 64, joint tokens, 3000 steps of 128 prompts, Adam '
    '3e-3. Of the mixture of dMMSE, ridge and 0 that is nearest on prompts of the '
    'pool: the weight of dMMSE over that of dMMSE and ridge; and the rank correlation '
    'of pool size and the measurement from which on it is above one half.'
  ),
  source='Raventós et al., arXiv 2306.15063; Wurgaft et al., arXiv 2506.17859',
  expected={
    # dMMSE is Bayes on its pool, so a loss exceeds that of dMMSE by the squared
    # distance to dMMSE. Ridge exceeds it by 1.02 at M = 4 and by 0.12 at M = 1024, and
    # a mixture with the weight s for dMMSE by (1 − s)² times as much.
    'smallest_pool': at_least(0.75, 'at most 1/16 of what ridge has beyond dMMSE'),
    'largest_pool': at_most(0.5, 'nearer to ridge than to dMMSE'),
    'rank_correlation': at_most(
      -0.9, 'it falls with the pool: 5 % level of Spearman’s rank test for 5 pools'
    ),
    'crossings': near(1, 0, 'there is one threshold'),
    # Pools that are not learned by heart in time are ties. With three such pools the
    # highest rank correlation is 0.89.
    'delay': at_least(0.8, 'larger pools are learned by heart later'),
  },
  minutes=7,
  measure=measure,
)
