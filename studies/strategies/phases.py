"""Phase diagrams: the strategy of models, by a field of their config and by step.

References:
  Wurgaft et al., arXiv 2506.17859; Park et al., arXiv 2412.01003.
"""

from __future__ import annotations

import collections
import csv
import dataclasses
import io
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from studies.strategies.series import FittedRun
from zoo.core.tables import format_table
from zoo.measure.intervals import estimate
from zoo.measure.tests import LEVEL, holm, t_test

SEED, _STEP, _WEIGHT, _ERROR = 'seed', 'step', 'weight of ', 'error of '


@dataclasses.dataclass(frozen=True)
class Diagram:
  """The weights of predictors in nearest mixtures, by value of a field and by step.

  Several predictors may predict the same on the prompts of a run, so that only the sum
  of their weights is determined. The first of them then has the sum, and the others
  have the weight 0.

  Attributes:
    title: The other fields of the config and their values.
    field: The field of the config on the vertical axis.
    values: The values of the field.
    steps: The training steps that all runs have.
    names: The names of the predictors.
    num_seeds: The number of seeds.
    weights: The weights by seed, predictor, value and step. NaN without a model.
    is_tied: Whether, in some seed, the largest weight is the sum of several predictors,
      `[value, step]`.
    is_shared: Whether two predictors share one weight in some seed,
      `[m, m, value, step]`.
    unexplained: The distance of a model from its mixture, divided by the variation over
      contexts of the model. NaN for a model that ignores its context.
    odds: The log odds of the first against the second of two predictors, given the
      labels of all prompts up to a step, in nats. NaN for another number of predictors,
      or for numeric labels without noise.
  """

  title: str
  field: str
  values: tuple[Any, ...]
  steps: tuple[int, ...]
  names: tuple[str, ...]
  num_seeds: int
  weights: Float[np.ndarray, 'seed m value step']
  is_tied: np.ndarray
  is_shared: np.ndarray
  unexplained: Float[np.ndarray, 'seed value step']
  odds: Float[np.ndarray, 'value step']

  @property
  def winners(self) -> np.ndarray:
    """The index of the predictor with the largest mean weight, `[value, step]`."""
    return np.nan_to_num(mean_over_seeds(self.weights)).argmax(axis=0)


def mean_over_seeds(values: np.ndarray) -> np.ndarray:
  """Returns the mean over the first axis, without NaN; NaN if all values are NaN."""
  count = np.sum(~np.isnan(values), axis=0)
  with np.errstate(invalid='ignore'):
    return np.nansum(values, axis=0) / np.where(count, count, np.nan)


def rows_of(
  points: Sequence[Mapping[str, Any]], runs: Sequence[FittedRun]
) -> list[dict[str, Any]]:
  """Returns the rows of `strategies.csv`, one for each run and step.

  If predictors cannot be told apart at a step, the column `together` names them. The
  first of them has the sum of their weights with its error, and the others have the
  weight 0 and no error.

  Args:
    points: The fields of each run. Lists and tuples are written as JSON.
    runs: The fits of each run, in the order of `points`.
  """
  rows = []
  for fields, run in zip(points, runs, strict=True):
    point = {
      name: json.dumps(value) if isinstance(value, list | tuple) else value
      for name, value in fields.items()
    }
    for step, fit in run.fits.items():
      row: dict[str, Any] = {**point, _STEP: step}
      for group in fit.weights:
        first, *others = group.split(', ')
        row[f'{_WEIGHT}{first}'] = fit.weights[group]
        error = fit.stderrs[group]
        row[f'{_ERROR}{first}'] = None if math.isnan(error) else error
        row |= {f'{_WEIGHT}{name}': 0.0 for name in others}
        row |= {f'{_ERROR}{name}': None for name in others}
      shares = {'unexplained': fit.unexplained, 'unexplained_by_prompt': fit.by_prompt}
      for name, share in shares.items():
        row[name] = None if share is None else share.mean
        row[f'{name}_stderr'] = None if share is None else share.stderr
      row['together'] = '; '.join(group for group in fit.weights if ', ' in group)
      row['odds'] = _odds(run, step)
      weights = {f'{_WEIGHT}{name}': row[f'{_WEIGHT}{name}'] for name in run.losses}
      rows.append({**point, _STEP: step, **weights, **row})
  return rows


def _odds(run: FittedRun, step: int) -> float | None:
  """Returns the log odds of the first of two predictors, given all labels, in nats."""
  if len(run.losses) != 2 or math.isnan(run.nats_per_step):
    return None
  first, second = (loss.mean for loss in run.losses.values())
  return step * run.nats_per_step * (second - first)


def from_csv(text: str) -> list[dict[str, Any]]:
  """Reads the rows of `strategies.csv`."""
  return [
    {name: _number(value) for name, value in row.items()}
    for row in csv.DictReader(io.StringIO(text))
  ]


def _number(text: str) -> Any:
  try:
    return json.loads(text) if text else None
  except ValueError:
    return text


def diagrams(rows: Sequence[Mapping[str, Any]]) -> list[Diagram]:
  """Makes a diagram for each combination of values of the further fields.

  The first field that is not the seed is the vertical axis. Every combination of values
  of the other fields, without the seed, has a diagram of its own.

  Args:
    rows: The rows of `rows_of`, of at least one run.

  Returns:
    The diagrams.
  """
  fields = [*rows[0]][: [*rows[0]].index(_STEP)]
  field, *others = [name for name in fields if name != SEED] or [SEED]
  panels: dict[tuple, list[Mapping[str, Any]]] = {}
  for row in rows:
    panels.setdefault(tuple(row[name] for name in others), []).append(row)
  return [
    _diagram(
      ', '.join(f'{name}={value}' for name, value in zip(others, chosen, strict=True)),
      field,
      members,
    )
    for chosen, members in panels.items()
  ]


def _diagram(title: str, field: str, rows: Sequence[Mapping[str, Any]]) -> Diagram:
  values = [*dict.fromkeys(row[field] for row in rows)]
  seeds: list[Any] = [*dict.fromkeys(row.get(SEED) for row in rows)]
  if field == SEED:
    seeds = [0]
  # Only steps that all runs have are kept.
  count = collections.Counter(int(row[_STEP]) for row in rows)
  steps = sorted(step for step in count if count[step] == max(count.values()))
  columns = [name for name in rows[0] if name.startswith(_WEIGHT)]
  weights = np.full((len(seeds), len(columns), len(values), len(steps)), np.nan)
  unexplained = np.full_like(weights[:, 0], np.nan)
  odds = np.full_like(weights[0, 0], np.nan)
  is_tied = np.zeros(odds.shape, bool)
  names = tuple(column.removeprefix(_WEIGHT) for column in columns)
  is_shared = np.zeros((len(names), len(names), *odds.shape), bool)
  for row in rows:
    step = int(row[_STEP])
    if step not in steps:
      continue
    at = values.index(row[field]), steps.index(step)
    seed = 0 if field == SEED else seeds.index(row.get(SEED))
    weights[(seed, slice(None), *at)] = [row[column] for column in columns]
    unexplained[(seed, *at)] = _or_nan(row['unexplained'])
    odds[at] = _or_nan(row['odds'])
    best = max(columns, key=lambda column, row=row: row[column])
    groups = [group.split(', ') for group in (row['together'] or '').split('; ')]
    is_tied[at] |= best.removeprefix(_WEIGHT) in [group[0] for group in groups]
    for group in groups:
      members = [i for i, name in enumerate(names) if name in group]
      is_shared[(*np.ix_(members, members), *at)] = True
  return Diagram(
    title,
    field,
    tuple(values),
    tuple(steps),
    names,
    len(seeds),
    weights,
    is_tied,
    is_shared,
    unexplained,
    odds,
  )


def _or_nan(value: float | None) -> float:
  return math.nan if value is None else value


def sentences(diagram: Diagram) -> list[str]:
  """Returns sentences that say which predictor has the largest weight at the last step.

  For each value of the field, paired t-tests over seeds compare the largest mean weight
  with each other one, with Holm's correction over all values and predictors. Values
  for which a test is not significant are listed as undecided.
  """
  last = diagram.steps[-1]
  if diagram.field == SEED:
    return []
  if diagram.num_seeds < 2:
    return ['One seed has no interval: sweep the seed, too.']
  told: dict[str, list[str]] = {}
  open_values: list[str] = []
  weights, winners = diagram.weights[..., -1], diagram.winners[:, -1]
  # The weight of the winner minus that of each other predictor, by value and seed.
  gaps = [
    weights[:, best, row][:, None] - np.delete(weights[:, :, row], best, axis=1)
    for row, best in enumerate(winners)
  ]
  # The tests are two-sided, since the winner is chosen by the mean of the same seeds.
  p_values = holm([_p_value(gap) for of_value in gaps for gap in of_value.T])
  adjusted = np.reshape(p_values, (len(gaps), -1))
  for row, value in enumerate(diagram.values):
    is_clear = bool(np.all(adjusted[row] < LEVEL)) and np.mean(gaps[row]) >= 0
    if is_clear and not (np.isnan(gaps[row]).any() or diagram.is_tied[row, -1]):
      told.setdefault(diagram.names[winners[row]], []).append(str(value))
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


def _p_value(gaps: Float[np.ndarray, ' s']) -> float:
  """Returns the p value of the gaps of the seeds having the mean 0.

  Equal gaps have no variance, so the t test has no p value for them. They occur if the
  weights are 1 and 0 with every seed, which tells two predictors apart.
  """
  if len(gaps) > 1 and gaps[0] != 0 and np.all(gaps == gaps[0]):
    return 0.0
  return t_test(gaps)


def table(diagram: Diagram) -> str:
  """Returns the weights at the last step as text, with 95 % intervals over seeds.

  Predictors that share one weight in some seed are printed as one: the first has the
  sum of their weights. The column `unexplained` has the distance from the mixture,
  divided by the variation over contexts. The column `since` has the first step from
  which on the largest weight is that of the predictor which has it at the end.
  """
  winners = diagram.winners
  cells = []
  for row, value in enumerate(diagram.values):
    same = winners[row] == winners[row, -1]
    since = len(same) - int(np.argmin(same[::-1])) if not same.all() else 0
    cells.append(
      [
        str(value),
        *_weights_in_words(
          diagram.names,
          diagram.weights[:, :, row, -1],
          diagram.is_shared[:, :, row, -1],
        ),
        _mean_and_half(diagram.unexplained[:, row, -1]),
        'together' if diagram.is_tied[row, -1] else diagram.names[winners[row, -1]],
        str(diagram.steps[since]),
      ]
    )
  header = [diagram.field, *diagram.names, 'unexplained', 'largest', 'since']
  lines = format_table(cells, header)
  return f'{diagram.title}\n{lines}' if diagram.title else lines


def _weights_in_words(
  names: Sequence[str], weights: Float[np.ndarray, 'seed m'], is_shared: np.ndarray
) -> list[str]:
  """Returns a cell for each predictor: its weight, or whose weight it shares."""
  groups: list[list[int]] = []
  for i in range(len(names)):
    near = [group for group in groups if is_shared[i, group].any()]
    groups = [group for group in groups if group not in near]
    groups.append(sorted([i, *(j for group in near for j in group)]))
  cells = [''] * len(names)
  for first, *others in groups:
    total = weights[:, [first, *others]].sum(axis=1)
    is_all = len(groups) == 1 and not np.isnan(total).all()
    cells[first] = '1.000 ± –' if is_all else _mean_and_half(total)
    for j in others:
      cells[j] = f'= {names[first]}'
  return cells


def summary(shown: Sequence[Diagram]) -> str:
  """Returns the table and the sentences of each diagram as text."""
  return '\n\n'.join(
    f'{table(diagram)}\n\n' + '\n'.join(sentences(diagram)) for diagram in shown
  )


def series_table(run: FittedRun) -> str:
  """Returns the fits of one run as a table with a line for each step."""
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
  known = values[~np.isnan(values)]
  if not known.size:
    return '-'
  mean = estimate(known)
  return f'{mean.mean:.3f}' + (f' ± {mean.half:.3f}' if len(known) > 1 else '')
