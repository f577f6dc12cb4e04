"""Curves of the distance from Bayes by minutes: their file, tables and picture.

`benchmarks.learning_time` measures them.
"""

from __future__ import annotations

import csv
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from zoo.core.tables import to_csv as write_csv
from zoo.reports import Table, plots, style

# The panels of the picture, with their models.
PANELS = {
  'transformers': (
    'softmax',
    'relu',
    'linear',
    'gla',
    'mamba2',
    'delta',
    'rwkv7',
    'looped',
    'set',
  ),
  'other models': ('lstm', 'gru', 'deep_set', 'mlp_mixer', 'deep_lsa'),
}
# Each model has its own colour in all panels. There are eight more than in the palette.
_COLOURS = dict(
  zip(
    itertools.chain(*PANELS.values()),
    (
      *style.PALETTE,
      style.BASELINES['gd'],
      style.BLACK,
      style.BASELINES['ridge'],
      style.BASELINES['gd_beta'],
      style.BASELINES['ols'],
      style.BASELINES['averaging'],
      style.BASELINES['nearest_neighbours'],
      style.BASELINES['lasso'],
    ),
    strict=True,
  )
)
SHARES = 0.1, 0.01  # These are distances from Bayes, as shares of the Bayes risk.


class Point(NamedTuple):
  """The distance of one model from Bayes at one time of its training.

  Attributes:
    features: The number of features of the task, d.
    model: The name of the model in the atlas.
    seed: The seed of the training.
    rate: The learning rate at the beginning.
    minutes: The minutes of processor time since the beginning.
    steps: The number of training steps.
    distance: The distance from Bayes, as a share of the Bayes risk. It is infinite if
      the training has diverged.
  """

  features: int
  model: str
  seed: int
  rate: float
  minutes: float
  steps: int
  distance: float


def to_csv(points: Iterable[Point]) -> str:
  """Returns points as CSV, which `points_from` reads."""
  return write_csv(
    Point._fields,
    (
      point._asdict()
      | {
        'rate': f'{point.rate:g}',
        'minutes': f'{point.minutes:.3f}',
        'distance': f'{point.distance:.4g}',
      }
      for point in points
    ),
  )


def points_from(text: str) -> list[Point]:
  """Returns the points that are kept as CSV."""
  header, *lines = csv.reader(text.splitlines())
  assert header == [*Point._fields]
  return [
    Point(int(features), model, int(seed), float(rate), float(m), int(n), float(far))
    for features, model, seed, rate, m, n, far in lines
  ]


def tables(points: Iterable[Point]) -> dict[int, Table]:
  """Returns the table of all models, by the number of features.

  A table has the number of seeds, the minutes to each share, and the distances after a
  minute and at the end: the median over seeds, and the range in brackets. The first
  model is the one that comes within 1 % soonest, then the one that comes within 10 %
  soonest. Models that come within neither are in the order of their distance at the
  end. A seed that diverges does not come within any later share.
  """
  return {features: _table(curves) for features, curves in _curves(points).items()}


def picture(points: Iterable[Point]) -> plots.Plot:
  """Returns the distance by minutes: the median and the range of each model's seeds.

  A seed that was stopped keeps its last distance. A line ends where half of the seeds
  or more have diverged.
  """
  panels = []
  for features, curves in _curves(points).items():
    for title, models in PANELS.items():
      lines = [
        _line(model, curves[model], _COLOURS[model])
        for model in models
        if model in curves
      ]
      shown = [line for line in lines if line is not None]
      if shown:
        panels.append(
          plots.Panel(
            f'd = {features}, {title}',
            'minutes of one core (log scale)',
            'distance from Bayes, % (log scale)',
            tuple(shown),
            x_scale='log',
            y_scale='log',
          )
        )
  return plots.Plot('learning_time', tuple(panels))


def _line(
  model: str, curves: Sequence[Sequence[Point]], colour: str
) -> plots.Series | None:
  """Returns the median and the range of a model's curves, once all have begun.

  Seeds that have diverged are left out of the range. The result is None if the median
  is never finite.
  """
  first = max(curve[0].minutes for curve in curves)
  last = max(curve[-1].minutes for curve in curves)
  times = np.geomspace(first, last, 30)
  distances = [[_distance_after(time, curve) for time in times] for curve in curves]
  middle = np.median(distances, axis=0)
  is_shown = np.isfinite(middle)
  if not is_shown.any():
    return None
  known = np.array(distances)[:, is_shown]
  known = np.where(np.isfinite(known), known, np.nan)
  shares = middle[is_shown], np.nanmin(known, 0), np.nanmax(known, 0)
  columns = times[is_shown], *(100 * values for values in shares)
  return plots.Series(model, 'curve', colour, *(tuple(c.tolist()) for c in columns))


def _curves(points: Iterable[Point]) -> dict[int, dict[str, list[list[Point]]]]:
  """Returns the curve of each seed, by number of features and by model."""
  seeds: dict[int, dict[str, dict[int, list[Point]]]] = {}
  for point in points:
    models = seeds.setdefault(point.features, {})
    models.setdefault(point.model, {}).setdefault(point.seed, []).append(point)
  return {
    features: {model: [*curves.values()] for model, curves in models.items()}
    for features, models in seeds.items()
  }


def _table(curves: Mapping[str, Sequence[Sequence[Point]]]) -> Table:
  """Returns the table of models from the curves of their seeds."""
  end = max(curve[-1].minutes for seeds in curves.values() for curve in seeds)

  def minutes_text(minutes: float) -> str:
    return f'{minutes:.1f}' if math.isfinite(minutes) else f'> {_shown(end)}'

  times = (1.0, end) if _shown(end) != '1' else (end,)

  lines = []
  for model, seeds in sorted(curves.items(), key=lambda item: _place(item[1])):
    to_shares = [
      _ranged([_minutes_to(share, curve) for curve in seeds], minutes_text)
      for share in SHARES
    ]
    after = [
      _ranged([_distance_after(minutes, curve) for curve in seeds], _percent)
      for minutes in times
    ]
    lines.append([model, str(len(seeds)), *to_shares, *after])
  header = [
    'model',
    'seeds',
    *(f'minutes to {100 * share:g} %' for share in SHARES),
    *(
      f'after {_shown(time)} minute{"" if _shown(time) == "1" else "s"}, %'
      for time in times
    ),
  ]
  return Table(lines, header)


def _shown(minutes: float) -> str:
  return f'{minutes:.0f}' if minutes >= 1 else f'{minutes:.2g}'


def _place(curves: Sequence[Sequence[Point]]) -> tuple[float, ...]:
  """Returns the medians by which models are sorted."""
  soonest = [
    [_minutes_to(share, curve) for curve in curves] for share in sorted(SHARES)
  ]
  ends = [curve[-1].distance for curve in curves]
  return tuple(float(np.median(values)) for values in (*soonest, ends))


def _minutes_to(share: float, curve: Sequence[Point]) -> float:
  """Returns the minutes to the first point within a share; infinite without one."""
  return min(
    (point.minutes for point in curve if point.distance <= share), default=math.inf
  )


def _distance_after(minutes: float, curve: Sequence[Point]) -> float:
  """Returns the last distance that was measured in some minutes; NaN without one."""
  measured = [point.distance for point in curve if point.minutes <= minutes]
  return measured[-1] if measured else math.nan


def _ranged(values: Sequence[float], text: Callable[[float], str]) -> str:
  """Returns the median of values, and their range in brackets if it is not a point."""
  # NumPy's minimum and maximum of NaN and numbers are NaN.
  middle, low, high = (text(float(f(values))) for f in (np.median, np.min, np.max))
  return middle if low == high else f'{middle} ({low} to {high})'


def _percent(share: float) -> str:
  if math.isnan(share):
    return 'not measured'
  if math.isinf(share):
    return 'diverged'
  return f'{100 * share:.0f}' if share >= 0.1 else f'{100 * share:.1f}'
