"""The pictures of an atlas."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from matplotlib.colors import LogNorm

from zoo.measure.intervals import Interval
from zoo.reports.heat_maps import HeatMap, plot_heat_maps
from zoo.reports.plots import Panel, Series, render_grid, series
from zoo.reports.rows import Point, plot_rows
from zoo.reports.style import (
  BLACK,
  BLUE,
  GREEN,
  GREY,
  ORANGE,
  PALETTE,
  PURPLE,
  SKY,
  VERMILION,
  WIDTH,
  Figure,
)
from zoo.studies.atlas.results import Change, Result, changes

_LEAST = 1e-3  # the least share that has its own colour
_COLOURS = {
  'guess: zero': BLUE,
  'guess: linear': VERMILION,
  'guess: network': GREEN,
  'guess: residual': PURPLE,
  'guess: residual_network': ORANGE,
  'no choice of guess': SKY,
}
# Baselines shown with the models, and their colours.
_SHOWN = {'bayes': BLACK, 'gd': GREY, 'ridge': GREY, 'least_squares': GREY}


def heat_map(results: Sequence[Result]) -> Figure:
  """The share of the learnable loss that is not learned, by architecture and task."""
  columns = list(dict.fromkeys(map(_column, results)))
  by_place = {(one.cell.model, _column(one)): one for one in results}
  rows = _by_mean_excess(results)
  grid = [[by_place.get((model, name)) for name in columns] for model in rows]
  shares = [
    [math.nan if one is None else max(one.excess, _LEAST) for one in row]
    for row in grid
  ]
  texts = [
    [
      '' if one is None else f'{one.excess:.2g}' + ('↓' if one.still_falls else '')
      for one in row
    ]
    for row in grid
  ]
  shown = HeatMap(
    np.array(shares),
    LogNorm(_LEAST, 1),
    'share of the learnable loss that is not learned (log scale)',
    rows=dict(enumerate(rows)),
    columns=dict(enumerate(columns)),
    texts=texts,
  )
  width = min(max(2 + 0.85 * len(columns), 4.8), WIDTH)
  # More than 16 columns of numbers do not fit into a page.
  width = max(width, 1.8 + 0.38 * len(columns))
  return plot_heat_maps([[shown]], 2.4 + 0.27 * len(rows), width)


def losses(results: Sequence[Result]) -> Figure:
  """The losses of one task: a row per model, a mark per guess, a line per baseline."""
  points = [
    Point(one.cell.model, _guess(one), one.loss.mean, one.loss.half)
    for one in sorted(results, key=lambda one: one.loss.mean)
  ]
  most = max(one.value for one in points)
  levels = {
    name: results[0].baseline(name)
    for name in ('bayes', 'gd', 'zero')
    if name in results[0].baselines and results[0].baseline(name) < 1.5 * most
  }
  axis = 'loss at the query, mean of the seeds with its 95 % interval'
  return plot_rows({'': points}, axis, _COLOURS, levels=levels)


def gains(found: Sequence[Change]) -> Figure:
  """How guesses change the losses of one task, with 95 % intervals."""
  points = [
    Point(one.result.cell.model, one.label, one.loss.mean, one.loss.half)
    for one in sorted(found, key=lambda one: one.reference.loss.mean)
  ]
  return plot_rows(
    {'': points},
    'loss minus that with the guess 0 (log scale beyond ±0.1); below 0 the guess helps',
    _COLOURS,
    levels={'': 0.0},
    value='symlog',
    linthresh=0.1,
  )


def shares(found: Sequence[Change]) -> Figure:
  """How guesses change the loss, in % of that with the guess 0, in one panel per task.

  The intervals are of 95 %.
  """
  panels: dict[str, list[Point]] = {}
  for one in found:
    cell, share = one.result.cell, one.share
    point = Point(cell.model, one.label, 100 * share.mean, 100 * share.half)
    panels.setdefault(cell.prompts, []).append(point)
  axis = 'change of the loss, in % of that with the guess 0; below 0 the guess helps'
  return plot_rows(panels, axis, _COLOURS, levels={'': 0.0})


def curves(results: Sequence[Result]) -> Figure:
  """The losses of one task by number of examples, in one panel per model."""
  first = results[0]
  lengths = range(len(first.lengths))
  axes = 'examples before the query', 'loss (log scale)'
  references = [
    series(
      *(name, 'dashed', colour, first.lengths),
      [first.baseline(name, i) for i in lengths],
    )
    for name, colour in _SHOWN.items()
    if name in first.baselines
  ]
  references.append(series('in training', 'mark', GREY, [first.context_length], [0.0]))
  panels = []
  for model in dict.fromkeys(one.cell.model for one in results):
    shown = [
      _intervals(
        *(_guess(one), 'curve', _COLOURS[_guess(one)], one.lengths),
        [one.at(i) for i in lengths],
      )
      for one in results
      if one.cell.model == model
    ]
    panels.append(Panel(model, *axes, (*references, *shown), y_scale='log'))
  least = min(one.at(i).mean for one in results for i in range(one.trained + 1))
  most = max(2 * first.baselines['zero'].mean(axis=0).max(), 10 * least)
  return render_grid(
    panels, 4, 1.6, y_range=(least / 2, most), sharex='all', sharey='all'
  )


def contexts(results: Sequence[Result]) -> Figure:
  """The losses of one task by the context length of training, above their ratios.

  Each model has a panel. Models of linear attention, each with its own guess, share
  one, with their lowest known exact risks as lines.
  """
  results = sorted(results, key=lambda one: one.context_length)
  models: dict[str, list[Result]] = {}
  for one in sorted(results, key=lambda one: one.cell.guess is not None):
    name = one.cell.model if one.cell.guess else 'one layer of linear attention'
    models.setdefault(name, []).append(one)
  axis = 'examples before the query, in training and in the test (log scale)'
  panels = [
    Panel(model, axis, 'loss (log scale)', _losses_by_context(of), 'log', 'log')
    for model, of in models.items()
  ]
  panels += [
    Panel('', axis, 'with the guess / with 0', _ratios_by_context(of), 'log')
    for of in models.values()
  ]
  return render_grid(panels, len(models), 2.3, sharex='all', sharey='row')


def _losses_by_context(results: Sequence[Result]) -> tuple[Series, ...]:
  """The losses of some models, and those of baselines."""
  by_length = {one.context_length: one for one in results}
  lines = {'the prior mean': [one.without_examples for one in by_length.values()]}
  for name in ('gd', 'bayes'):
    if all(name in one.baselines for one in by_length.values()):
      lines[name] = [one.baseline(name) for one in by_length.values()]
  shown = [
    series(name, 'dashed', BLACK if name == 'bayes' else GREY, [*by_length], values)
    for name, values in lines.items()
    if min(values) > 1e-6 * max(values)  # a log axis cannot show a loss of 0
  ]
  for label, colour, of in _by_label(results):
    lengths = [one.context_length for one in of]
    lowest = [one.lowest_known for one in of if one.lowest_known is not None]
    if len(lowest) == len(of):
      shown.append(series(f'{label}, lowest known', 'line', colour, lengths, lowest))
    kind = 'dots' if lowest else 'curve'
    shown.append(_intervals(label, kind, colour, lengths, [one.loss for one in of]))
  return tuple(shown)


def _ratios_by_context(results: Sequence[Result]) -> tuple[Series, ...]:
  """The losses with a guess divided by those with the guess 0."""
  ends = [results[0].context_length, results[-1].context_length]
  shown = [series('', 'dashed', BLACK, ends, [1.0, 1.0])]
  found = changes(results)
  for label, colour, every in _by_label(results):
    cells = {one.cell for one in every}
    of = [one for one in found if one.result.cell in cells]
    if not of:
      continue
    lengths = [one.result.context_length for one in of]
    ratios = [Interval(*(1 + end for end in one.share)) for one in of]
    lowest = [(one.result.lowest_known, one.reference.lowest_known) for one in of]
    exact = [above / below for above, below in lowest if above and below]
    if len(exact) == len(of):
      shown.append(series(f'{label}, lowest known', 'line', colour, lengths, exact))
    shown.append(_intervals(label, 'dots', colour, lengths, ratios))
  return tuple(shown)


def _intervals(
  name: str, kind: str, colour: str, x: Sequence[int], found: Iterable[Interval]
) -> Series:
  """Means with their 95 % intervals; without them for one seed."""
  ends = [
    (one.low, one.mean, one.high) if math.isfinite(one.half) else [one.mean] * 3
    for one in found
  ]
  return series(name, kind, colour, x, np.transpose(ends))


def _by_label(results: Sequence[Result]) -> list[tuple[str, str, list[Result]]]:
  """The results of each guess or, if they have no choice, model; with a colour."""
  found: dict[str, list[Result]] = {}
  for one in results:
    label = one.cell.model if one.cell.guess is None else _guess(one)
    found.setdefault(label, []).append(one)
  others = itertools.cycle(reversed(PALETTE))
  return [
    (label, _COLOURS.get(label) or next(others), of) for label, of in found.items()
  ]


def _guess(result: Result) -> str:
  guess = result.cell.guess
  return 'no choice of guess' if guess is None else f'guess: {guess}'


def by_prompts(results: Sequence[Result]) -> Mapping[str, list[Result]]:
  """The results of each task at each requested context length."""
  found: dict[str, list[Result]] = {}
  for one in results:
    found.setdefault(one.cell.prompts, []).append(one)
  return found


def _column(result: Result) -> str:
  cell = result.cell
  guessed = cell.guess not in (None, 'zero')
  return f'{cell.prompts}, {cell.guess}' if guessed else cell.prompts


def _by_mean_excess(results: Sequence[Result]) -> list[str]:
  """The models, the one with the least mean excess first."""
  excess: dict[str, list[float]] = {}
  for one in results:
    excess.setdefault(one.cell.model, []).append(math.log(max(one.excess, _LEAST)))
  return sorted(excess, key=lambda model: float(np.mean(excess[model])))
