"""Phase diagrams: the strategy of many models by a field of their config and the step.

(Wurgaft et al., arXiv 2506.17859; Park et al., arXiv 2412.01003.)
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from zoo.core.tables import format_table
from zoo.measure.intervals import interval
from zoo.probing.strategy_series import FittedRun

SEED = 'seed'


@dataclasses.dataclass(frozen=True)
class Diagram:
  """The weights of predictors for each value of a field and step, means over seeds."""

  title: str  # the other fields, and their values
  field: str
  values: tuple[Any, ...]
  steps: tuple[int, ...]
  names: tuple[str, ...]  # of the predictors
  num_seeds: int
  weights: Float[np.ndarray, 'seed m value step']
  unexplained: Float[np.ndarray, 'seed value step']  # NaN for a constant model
  # Log odds of the first against the second of two predictors, by the labels of all
  # prompts that were trained on, in nats; NaN for more predictors, or without noise.
  odds: Float[np.ndarray, 'value step']

  @property
  def winners(self) -> np.ndarray:
    """The number of the predictor with the largest mean weight, `[value, step]`."""
    return self.weights.mean(axis=0).argmax(axis=0)


def diagrams(
  points: Sequence[Mapping[str, Any]], runs: Sequence[FittedRun]
) -> list[Diagram]:
  """A diagram for each combination of the fields besides the first and the seed.

  The first field of the points, other than the seed, is the vertical axis. Predictors
  that share a weight at a step each have an equal part of it.
  """
  field, *others = [name for name in points[0] if name != SEED] or [SEED]
  panels: dict[tuple, list[int]] = {}
  for i, point in enumerate(points):
    panels.setdefault(tuple(point[name] for name in others), []).append(i)
  return [
    _diagram(
      ', '.join(f'{name}={value}' for name, value in zip(others, chosen, strict=True)),
      field,
      [points[i] for i in members],
      [runs[i] for i in members],
    )
    for chosen, members in panels.items()
  ]


def _diagram(
  title: str,
  field: str,
  points: Sequence[Mapping[str, Any]],
  runs: Sequence[FittedRun],
) -> Diagram:
  values = tuple(dict.fromkeys(point[field] for point in points))
  seeds = [*dict.fromkeys(point.get(SEED) for point in points)]
  if field == SEED:
    seeds = [None]
  steps = tuple(sorted(set.intersection(*[{*run.fits} for run in runs])))
  names = tuple(runs[0].losses)
  size = len(values), len(steps)
  weights = np.full((len(seeds), len(names), *size), np.nan)
  unexplained = np.full((len(seeds), *size), np.nan)
  odds = np.full(size, np.nan)
  for point, run in zip(points, runs, strict=True):
    seed = 0 if field == SEED else seeds.index(point.get(SEED))
    row = values.index(point[field])
    for column, step in enumerate(steps):
      fit = run.fits[step]
      for group, weight in fit.weights.items():
        for name in group.split(', '):
          share = weight / (group.count(', ') + 1)
          weights[seed, names.index(name), row, column] = share
      if fit.unexplained is not None:
        unexplained[seed, row, column] = fit.unexplained.mean
      odds[row, column] = _odds(run, step)
  return Diagram(
    title,
    field,
    values,
    steps,
    names,
    len(seeds),
    weights,
    unexplained,
    odds,
  )


def _odds(run: FittedRun, step: int) -> float:
  """The log odds of the first of two predictors by all labels up to a step, in nats."""
  if len(run.losses) != 2:
    return math.nan
  first, second = (loss.mean for loss in run.losses.values())
  return step * run.nats_per_step * (second - first)


def sentences(diagram: Diagram) -> list[str]:
  """Which predictors win at the last step, where all intervals over seeds say so."""
  last = diagram.steps[-1]
  if diagram.num_seeds < 2:
    return ['One seed has no interval: sweep the seed, too.']
  told: dict[str, list[str]] = {}
  open_values: list[str] = []
  weights, winners = diagram.weights[..., -1], diagram.winners[:, -1]
  for row, value in enumerate(diagram.values):
    best = winners[row]
    gaps = weights[:, best, row][:, None] - np.delete(weights[:, :, row], best, axis=1)
    if len(diagram.names) == 1 or all(interval(gap).low > 0 for gap in gaps.T):
      told.setdefault(diagram.names[best], []).append(str(value))
    else:
      open_values.append(str(value))
  where = f' ({diagram.title})' if diagram.title else ''
  lines = [
    f'After {last} steps{where} {name} has the largest weight for {diagram.field} = '
    f'{", ".join(values)}.'
    for name, values in told.items()
  ]
  if open_values:
    lines.append(
      f'For {diagram.field} = {", ".join(open_values)}{where} {diagram.num_seeds} '
      'seeds do not tell.'
    )
  return lines


def table(diagram: Diagram) -> str:
  """The weights and what they leave at the last step, with 95 % intervals over seeds.

  `since` is the first step from which the winner at the end is that of all later steps.
  """
  winners = diagram.winners
  cells = []
  for row, value in enumerate(diagram.values):
    same = winners[row] == winners[row, -1]
    since = len(same) - int(np.argmin(same[::-1])) if not same.all() else 0
    cells.append(
      [
        str(value),
        *[_mean_and_half(column) for column in diagram.weights[:, :, row, -1].T],
        _mean_and_half(diagram.unexplained[:, row, -1]),
        diagram.names[winners[row, -1]],
        str(diagram.steps[since]),
      ]
    )
  header = [diagram.field, *diagram.names, 'unexplained', 'largest', 'since']
  lines = format_table(cells, header)
  return f'{diagram.title}\n{lines}' if diagram.title else lines


def summary(shown: Sequence[Diagram]) -> str:
  """The table and the sentences of each diagram."""
  return '\n\n'.join(
    f'{table(diagram)}\n\n' + '\n'.join(sentences(diagram)) for diagram in shown
  )


def series_table(run: FittedRun) -> str:
  """The fits of one run by step."""
  cells = [
    [
      str(step),
      ', '.join(f'{name} {weight:.2f}' for name, weight in fit.weights.items()),
      '-' if fit.unexplained is None else f'{fit.unexplained.mean:.3f}',
    ]
    for step, fit in run.fits.items()
  ]
  return format_table(cells, ['step', 'weights', 'unexplained'])


def _mean_and_half(values: Float[np.ndarray, ' seed']) -> str:
  if np.isnan(values).all():
    return '-'
  mean = interval(values)
  return f'{mean.mean:.3f}' + (f' ± {mean.half:.3f}' if len(values) > 1 else '')


def rows(
  points: Sequence[Mapping[str, Any]], runs: Sequence[FittedRun]
) -> list[dict[str, Any]]:
  """A row for each point and step: weights and their errors, and what they leave."""
  return [
    {
      **point,
      'step': step,
      **{f'weight of {name}': weight for name, weight in fit.weights.items()},
      **{f'error of {name}': error for name, error in fit.stderrs.items()},
      'unexplained': fit.unexplained and fit.unexplained.mean,
      'unexplained_stderr': fit.unexplained and fit.unexplained.stderr,
      'unexplained_by_prompt': fit.by_prompt and fit.by_prompt.mean,
    }
    for point, run in zip(points, runs, strict=True)
    for step, fit in run.fits.items()
  ]
