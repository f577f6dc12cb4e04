"""Linear attention with separate keys and queries learns from saddle to saddle.

The source shows this for initial weights that tend to 0. Here the ranges must hold for
each of five seeds with small initial weights. Initial weights that are a thousand times
smaller are measured, too, and have no ranges.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import scipy.signal
from jaxtyping import Float

from studies.runner import Trainer
from studies.study import Expected, Measurement, Study, at_most
from zoo import theory
from zoo.reports.plots import Panel, level, series
from zoo.reports.style import BLUE, GREEN, ORANGE, PURPLE, VERMILION
from zoo.tasks import LinearRegression
from zoo.theory import dynamics
from zoo.theory.dynamics.flow import Trajectory
from zoo.theory.dynamics.heads import LinearHeads

_SPECTRUM = 0.4, 0.3, 0.2, 0.1
_TASK = LinearRegression(
  num_features=4, context_length=31, feature_covariance=np.diag(_SPECTRUM)
)
_SCALE, _SMALLER = 1e-3, 1e-6
_SEEDS = range(5)
_COLOURS = BLUE, GREEN, ORANGE, VERMILION, PURPLE
_TIMES = np.geomspace(1, 1e7, 400)
# A drop counts if the risk falls this much faster, per e-fold of time, than beside it.
_LEAST_DROP = 0.01


def measure(train: Trainer) -> Measurement:
  del train  # the gradient flow is integrated, and no model is trained
  known = theory.plateaus(_SPECTRUM, _TASK.context_length)
  optimum = float(theory.exact_risk(theory.optimal_rule(_TASK), _TASK))
  separate = _flows(
    [dynamics.separate_heads(4, 4, 1, _SCALE, seed) for seed in _SEEDS], _TIMES
  )
  merged = _flows(
    [dynamics.merged_heads(4, 4, _SCALE, seed) for seed in _SEEDS], _TIMES
  )
  # With three factors in each head, the time to leave 0 grows as 1 / scale.
  smaller = _flows(
    [dynamics.separate_heads(4, 4, 1, _SMALLER, seed) for seed in _SEEDS],
    _TIMES * (_SCALE / _SMALLER),
  )
  both = [*zip(separate, merged, strict=True)]
  numbers = {
    'plateaus': [_distance(flow.risks, known) for flow in separate],
    'drops': [_num_drops(flow.risks) for flow in separate],
    'merged_drops': [_num_drops(flow.risks) for flow in merged],
    'end': [max(abs(flow.risks[-1] / optimum - 1) for flow in pair) for pair in both],
    'end_gradient': [max(flow.gradient_norms[-1] for flow in pair) for pair in both],
    'plateaus_smaller': [_distance(flow.risks, known) for flow in smaller],
    'drops_smaller': [_num_drops(flow.risks) for flow in smaller],
  }
  levels = [level(f'L_{m}', risk, _TIMES[[0, -1]]) for m, risk in enumerate(known)]
  x_axis = 'time of the gradient flow (log scale)'
  two_kinds = Panel(
    'a',
    x_axis,
    'exact in-context risk, seed 0',
    (
      series('separate keys and queries', 'line', BLUE, _TIMES, separate[0].risks),
      series('merged', 'line', VERMILION, _TIMES, merged[0].risks),
      *levels,
    ),
    x_scale='log',
  )
  lines = [
    series(f'seed {seed}', 'line', colour, _TIMES, flow.risks)
    for seed, colour, flow in zip(_SEEDS, _COLOURS, separate, strict=True)
  ]
  starts = Panel(
    'b',
    x_axis,
    'exact in-context risk, separate',
    (*lines, *levels),
    x_scale='log',
  )
  return Measurement(numbers, (two_kinds, starts))


def _flows(
  starts: Sequence[LinearHeads], times: Float[np.ndarray, ' n']
) -> tuple[Trajectory, ...]:
  """Integrates the gradient flow from each start, in one compiled program."""
  return dynamics.gradient_flows(starts, _TASK, times, tolerance=1e-10)


def _num_drops(risks: Float[np.ndarray, ' n']) -> int:
  return pauses(risks).size - 1


def _distance(risks: Float[np.ndarray, ' n'], known: Float[np.ndarray, ' k']) -> float:
  """Returns the largest relative distance of a pause from the nearest known plateau."""
  return float(np.max(np.min(np.abs(pauses(risks)[:, None] / known - 1), axis=1)))


def pauses(risks: Float[np.ndarray, ' n']) -> Float[np.ndarray, ' k']:
  """Returns the risks at which the gradient flow pauses.

  They are the first risk, the risk between each two drops where it falls slowest, and
  the last risk.

  Args:
    risks: The risks at times that grow by the constant factor of `_TIMES`.
  """
  speed = -np.gradient(risks, np.log(_TIMES[1] / _TIMES[0]))
  drops, _ = scipy.signal.find_peaks(speed, prominence=_LEAST_DROP)
  between = [
    risks[start + np.argmin(speed[start:stop])]
    for start, stop in itertools.pairwise(drops)
  ]
  return np.array([risks[0], *between, risks[-1]])


HEADLINE = Study(
  name='saddles',
  statement='Rank-one keys and queries learn one eigenvector at a time.',
  setting=(
    'Linear regression, weights ~ N(0, I), features ~ N(0, diag(.4, .3, .2, .1)), 31 '
    'examples; four heads with weights from N(0, 1e-6), five seeds; the exact gradient '
    'flow of the exact risk, without sampling; and the same with weights from '
    'N(0, 1e-12) (smaller).'
  ),
  source='Zhang, Singh, Latham and Saxe, arXiv 2501.16265',
  expected={
    'plateaus': at_most(0.02, 'of each pause from the nearest of L_0 … L_4 (Dynamics)'),
    'end': at_most(1e-6, 'relative to the optimum of all learning rules'),
    'drops': Expected(4, 4, 'one for each eigenvector, in the source'),
    'merged_drops': Expected(1, 1, 'one abrupt drop, in the source'),
    'end_gradient': at_most(1e-10, 'both flows end at stationary points'),
  },
  minutes=4,
  measure=measure,
)
