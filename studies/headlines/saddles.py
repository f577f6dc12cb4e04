"""Linear attention with separate keys and queries learns from saddle to saddle.

This is one start, with bounds that were chosen here; other starts may skip a saddle.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import scipy.signal
from jaxtyping import Float

from studies.runner import Trainer
from studies.study import Expected, Measurement, Study, at_most
from zoo import theory
from zoo.reports.plots import Panel, level, series
from zoo.reports.style import BLUE, VERMILION
from zoo.tasks import LinearRegression
from zoo.theory import dynamics

_SPECTRUM = 0.4, 0.3, 0.2, 0.1
_TASK = LinearRegression(
  num_features=4, context_length=31, feature_covariance=np.diag(_SPECTRUM)
)
_SCALE = 1e-3
_TIMES = np.geomspace(1, 1e7, 400)
_LEAST_DROP = 0.01  # in units of the risk per e-fold of time


def measure(train: Trainer) -> Measurement:
  del train  # training is exact
  separate = theory.gradient_flow(
    dynamics.separate_heads(4, 4, 1, _SCALE), _TASK, _TIMES
  )
  merged = theory.gradient_flow(dynamics.merged_heads(4, 4, _SCALE), _TASK, _TIMES)
  known = theory.plateaus(_SPECTRUM, _TASK.context_length)
  separate_pauses, merged_pauses = pauses(separate.risks), pauses(merged.risks)
  deviation = math.inf
  if separate_pauses.size == known.size:
    deviation = float(np.max(np.abs(separate_pauses / known - 1)))
  optimum = float(theory.exact_risk(theory.optimal_rule(_TASK), _TASK))
  ends = separate.risks[-1], merged.risks[-1]
  numbers = {
    'plateaus': deviation,
    'end': max(abs(risk / optimum - 1) for risk in ends),
    'drops': separate_pauses.size - 1,
    'merged_drops': merged_pauses.size - 1,
    'end_gradient': max(separate.gradient_norms[-1], merged.gradient_norms[-1]),
  }
  levels = [level(f'L_{m}', risk, _TIMES[[0, -1]]) for m, risk in enumerate(known)]
  panel = Panel(
    'a',
    'time of the gradient flow (log scale)',
    'exact in-context risk',
    (
      series('separate keys and queries', 'line', BLUE, _TIMES, separate.risks),
      series('merged', 'line', VERMILION, _TIMES, merged.risks),
      *levels,
    ),
    x_scale='log',
  )
  return Measurement(numbers, (panel,))


def pauses(risks: Float[np.ndarray, ' n']) -> Float[np.ndarray, ' k']:
  """The first risk, those where the risk falls slowest between drops, and the last.

  The risks are for times that grow by a constant factor.
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
  statement='One start: rank-one keys and queries learn one eigenvector at a time.',
  setting=(
    'Linear regression, weights ~ N(0, I), features ~ N(0, diag(.4, .3, .2, .1)), 31 '
    'examples; four heads with weights from N(0, 1e-6); the exact gradient flow of the '
    'exact risk, without sampling.'
  ),
  source='Zhang, Singh, Latham and Saxe, arXiv 2501.16265',
  expected={
    'plateaus': at_most(0.02, 'relative to L_0 … L_4 (docs/dynamics.md, section 2)'),
    'end': at_most(1e-6, 'relative to the optimum of all learning rules'),
    'drops': Expected(4, 4, 'one for each eigenvector, in the source'),
    'merged_drops': Expected(1, 1, 'one abrupt drop, in the source'),
    'end_gradient': at_most(1e-10, 'both flows end at stationary points'),
  },
  minutes=0.5,
  measure=measure,
)
