"""The pictures of an atlas."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm

from zoo.measure.intervals import Interval
from zoo.reports.style import (
  BLACK,
  GREY,
  MARKERS,
  PALETTE,
  SMALL,
  WIDTH,
  Figure,
  in_style,
  label_log_axis,
  legend_above,
)
from zoo.studies.atlas.results import Change, Result, changes

_LEAST = 1e-3  # the least share that has its own colour
_SHOWN = 'gd', 'ridge', 'least_squares', 'bayes'  # baselines shown with the models
_STYLES = {'bayes': '-', 'gd': '--', 'zero': ':'}


@in_style()
def heat_map(results: Sequence[Result]) -> Figure:
  """The share of the learnable loss that is not learned, by architecture and task."""
  columns = list(dict.fromkeys(map(_column, results)))
  by_place = {(one.cell.model, _column(one)): one for one in results}
  models = _by_mean_excess(results)
  width = min(max(2 + 0.85 * len(columns), 4.8), WIDTH)
  # More than 16 columns of numbers do not fit into a page.
  width = max(width, 1.8 + 0.38 * len(columns))
  figure = Figure(2.4 + 0.27 * len(models), width)
  axes = figure.subplots()
  grid = np.full((len(models), len(columns)), np.nan)
  for row, model in enumerate(models):
    for column, name in enumerate(columns):
      one = by_place.get((model, name))
      if one is None:
        continue
      excess = max(one.excess, _LEAST)
      grid[row, column] = excess
      text = f'{one.excess:.2g}' + ('↓' if one.still_falls else '')
      light = excess > 0.03
      axes.text(
        *(column, row, text),
        ha='center',
        va='center',
        size=SMALL if len(columns) > 7 else 9,
        color=BLACK if light else 'white',
      )
  image = axes.imshow(grid, norm=LogNorm(_LEAST, 1), aspect='auto')
  axes.grid(visible=False)
  axes.set_xticks(range(len(columns)), columns, rotation=45, ha='left')
  axes.xaxis.tick_top()
  axes.set_yticks(range(len(models)), models)
  bar = figure.colorbar(image, ax=axes, location='bottom', shrink=0.8)
  bar.set_label('share of the learnable loss that is not learned (log scale)')
  label_log_axis(bar.ax.xaxis)
  return figure


class _Mark(NamedTuple):
  """A value with its interval, in the row of a model."""

  model: str
  label: str
  interval: Interval


@in_style()
def losses(results: Sequence[Result]) -> Figure:
  """The losses of one task: a row per model, a mark per guess, a line per baseline."""
  models = _models(sorted(results, key=lambda one: one.loss.mean))
  figure = Figure(1.5 + 0.28 * len(models))
  axes = figure.subplots()
  marks = [_Mark(one.cell.model, _guess(one), one.loss) for one in results]
  _rows(axes, models, marks, _colours(map(_guess, results)), apart=0.0)
  most = max(one.loss.mean for one in results)
  for name, style in _STYLES.items():
    if name in results[0].baselines and results[0].baseline(name) < 1.5 * most:
      level = results[0].baseline(name)
      axes.axvline(level, linestyle=style, color=GREY, label=name)
  axes.set_xlim(left=0)
  axes.set_xlabel('loss at the query, mean of the seeds with its 95 % interval')
  legend_above(figure)
  return figure


@in_style()
def curves(results: Sequence[Result]) -> Figure:
  """The losses of one task by number of examples, in one panel per model."""
  models = _models(results)
  width = 4
  height = math.ceil(len(models) / width)
  figure = Figure(0.9 + 1.6 * height)
  panels = figure.subplots(height, width, sharex=True, sharey=True, squeeze=False)
  colours = _colours(map(_guess, results))
  first = results[0]
  for axes in panels.flat[len(models) :]:
    axes.set_axis_off()
  for axes in panels.flat[max(len(models) - width, 0) : len(models)]:
    axes.tick_params(labelbottom=True)  # the lowest of each column
  for axes, model in zip(panels.flat, models, strict=False):
    _baseline_curves(axes, first)
    for one in results:
      if one.cell.model == model:
        means = [one.at(i).mean for i in range(len(one.lengths))]
        colour = colours[_guess(one)]
        axes.plot(
          *(one.lengths, means),
          marker=MARKERS[colour],
          markersize=3,
          linewidth=1,
          color=colour,
          label=_guess(one),
        )
    axes.axvline(first.context_length, color=GREY, linewidth=1, zorder=1)
    axes.set_title(model)
    axes.set_yscale('log')
  least = min(one.at(i).mean for one in results for i in range(one.trained + 1))
  most = max(2 * first.baselines['zero'].mean(axis=0).max(), 10 * least)
  panels.flat[0].set_ylim(least / 2, most)
  label_log_axis(panels.flat[0].yaxis)  # which all of them share
  figure.supxlabel('examples before the query; the line marks the number in training')
  figure.supylabel('loss (log scale)')
  legend_above(figure)
  return figure


@in_style()
def gains(found: Sequence[Change]) -> Figure:
  """How guesses change the losses of one task, with 95 % intervals."""
  ordered = sorted(found, key=lambda one: one.reference.loss.mean)
  models = _models(one.result for one in ordered)
  figure = Figure(1.5 + 0.28 * len(models))
  axes = figure.subplots()
  marks = [_Mark(one.result.cell.model, one.label, one.loss) for one in found]
  _rows(axes, models, marks, _colours(one.label for one in found), apart=0.2)
  axes.axvline(0, color=BLACK, linewidth=0.8)
  axes.set_xscale('symlog', linthresh=0.1)
  axes.xaxis.set_major_formatter('{x:g}')
  axes.set_xlabel(
    'loss minus that with the guess 0 (log scale beyond ±0.1); below 0 the guess helps'
  )
  legend_above(figure)
  return figure


@in_style()
def shares(found: Sequence[Change]) -> Figure:
  """How guesses change the loss, in % of that with the guess 0, in one panel per task.

  The intervals are of 95 %.
  """
  tasks = list(dict.fromkeys(one.result.cell.prompts for one in found))
  models = _models(one.result for one in found)
  colours = _colours(one.label for one in found)
  figure = Figure(1.6 + 0.4 * len(models))
  panels = figure.subplots(1, len(tasks), sharey=True, squeeze=False)[0]
  for axes, task in zip(panels, tasks, strict=True):
    marks = [
      _Mark(
        one.result.cell.model,
        one.label,
        Interval(*(100 * end for end in one.share)),
      )
      for one in found
      if one.result.cell.prompts == task
    ]
    _rows(axes, models, marks, colours, apart=0.16)
    axes.axvline(0, color=BLACK, linewidth=0.8)
    axes.set_title(task)
  figure.supxlabel(
    'change of the loss, in % of that with the guess 0; below 0 the guess helps'
  )
  legend_above(figure)
  return figure


def _rows(
  axes: Axes,
  models: Sequence[str],
  marks: Sequence[_Mark],
  colours: Mapping[str, str],
  apart: float,
) -> None:
  """A row per model from the top down, in which marks of labels are so far apart."""
  labels = [label for label in colours if any(one.label == label for one in marks)]
  for i, label in enumerate(labels):
    of = [one for one in marks if one.label == label]
    shift = apart * (i - (len(labels) - 1) / 2)
    axes.errorbar(
      [one.interval.mean for one in of],
      [models.index(one.model) + shift for one in of],
      xerr=_bars(one.interval for one in of),
      fmt=MARKERS[colours[label]],
      color=colours[label],
      alpha=0.75,
      label=label,
    )
  axes.set_yticks(range(len(models)), models)
  axes.set_ylim(len(models) - 0.5, -0.5)


def _colours(labels: Iterable[str]) -> dict[str, str]:
  """The colour of each label."""
  return dict(zip(dict.fromkeys(labels), PALETTE, strict=False))


def _guess(result: Result) -> str:
  guess = result.cell.guess
  return 'no choice of guess' if guess is None else f'guess: {guess}'


def _models(results: Iterable[Result]) -> list[str]:
  return list(dict.fromkeys(one.cell.model for one in results))


@in_style()
def contexts(results: Sequence[Result]) -> Figure:
  """The losses of one task by the context length of training, above their ratios.

  Each model has a panel. Models of linear attention, each with its own guess, share
  one, with their lowest known exact risks as lines.
  """
  linear = [one for one in results if one.cell.guess is None]
  models = dict.fromkeys(one.cell.model for one in results if one.cell.guess)
  columns = {'one layer of linear attention': linear} if linear else {}
  columns |= {
    name: [one for one in results if one.cell.model == name] for name in models
  }
  # More than three models do not fit into a page.
  figure = Figure(5.6, max(WIDTH, 2.4 * len(columns)))
  top, bottom = figure.subplots(
    2, len(columns), sharex=True, sharey='row', squeeze=False
  )
  for axes, ratios, (title, of) in zip(top, bottom, columns.items(), strict=True):
    _losses_by_context(axes, of)
    _ratios_by_context(ratios, of)
    axes.set_title(title)
    axes.set_xscale('log')
  top[0].set_yscale('log')
  for axis in (top[0].xaxis, top[0].yaxis):
    label_log_axis(axis)
  top[0].set_ylabel('loss (log scale)')
  bottom[0].set_ylim(bottom=0)
  bottom[0].set_ylabel('with the guess / with the guess 0')
  figure.supxlabel('examples before the query, in training and in the test (log scale)')
  legend_above(figure)
  return figure


def _losses_by_context(axes: Axes, results: Sequence[Result]) -> None:
  """The losses of some models, and those of baselines."""
  by_length = {one.context_length: one for one in sorted(results, key=_length)}
  lines = {'guess the prior mean': [one.without_examples for one in by_length.values()]}
  for name in ('gd', 'bayes'):
    if all(name in one.baselines for one in by_length.values()):
      lines[name] = [one.baseline(name) for one in by_length.values()]
  for (name, values), style in zip(lines.items(), (':', '--', '-'), strict=False):
    if min(values) > 1e-6 * max(values):  # a log axis cannot show a loss of 0
      axes.plot([*by_length], values, style, color=GREY, label=name)
  for colour, (label, of) in zip(PALETTE, _series(results).items(), strict=False):
    lengths = [one.context_length for one in of]
    lowest = [one.lowest_known for one in of if one.lowest_known is not None]
    line = MARKERS[colour] + '-'
    if lowest:  # then these are the line
      axes.plot(lengths, lowest, color=colour)
      line = MARKERS[colour]
    axes.errorbar(
      lengths,
      [one.loss.mean for one in of],
      yerr=_bars(one.loss for one in of),
      fmt=line,
      color=colour,
      label=label,
    )


def _ratios_by_context(axes: Axes, results: Sequence[Result]) -> None:
  """The losses with a guess divided by those with the guess 0."""
  found = changes(sorted(results, key=_length))
  for colour, label in zip(PALETTE, _series(results), strict=False):
    of = [one for one in found if _label(one.result) == label]
    if not of:
      continue
    lengths = [one.result.context_length for one in of]
    axes.errorbar(
      lengths,
      [1 + one.share.mean for one in of],
      yerr=_bars(one.share for one in of),
      fmt=MARKERS[colour],
      color=colour,
    )
    lowest = [(one.result.lowest_known, one.reference.lowest_known) for one in of]
    exact = [above / below for above, below in lowest if above and below]
    if len(exact) == len(of):
      axes.plot(lengths, exact, color=colour)
  axes.axhline(1, color=BLACK, linewidth=0.8)


def _series(results: Sequence[Result]) -> dict[str, list[Result]]:
  """The results of each model or guess by context length; the guess 0 comes first."""
  found: dict[str, list[Result]] = {}
  for one in sorted(results, key=_length):
    found.setdefault(_label(one), []).append(one)
  return found


def _label(result: Result) -> str:
  return result.cell.model if result.cell.guess is None else _guess(result)


def _length(result: Result) -> int:
  return result.context_length


def by_prompts(results: Sequence[Result]) -> Mapping[str, list[Result]]:
  """The results of each task at each requested context length."""
  names = dict.fromkeys(one.cell.prompts for one in results)
  return {name: [one for one in results if one.cell.prompts == name] for name in names}


def _baseline_curves(axes: Axes, result: Result) -> None:
  styles = zip(('--', ':', '-.', '-'), _SHOWN, strict=True)
  for style, name in styles:
    if name in result.baselines:
      means = [result.baseline(name, i) for i in range(len(result.lengths))]
      axes.plot(result.lengths, means, style, color=GREY, linewidth=1, label=name)


def _bars(found: Iterable[Interval]) -> list[float]:
  """Halves of intervals, for bars; NaN, which draws none, with one seed."""
  return [one.half if math.isfinite(one.half) else math.nan for one in found]


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
