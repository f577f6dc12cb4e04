"""The pictures of an atlas."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter, NullFormatter

from zoo.atlas.results import Result, difference
from zoo.plots import BLACK, PALETTE

_LEAST = 1e-3  # of what can be learned; below it colours do not differ
_SHOWN = 'gd', 'ridge', 'least_squares', 'bayes'  # baselines beside the models
_STYLES = {'bayes': '-', 'gd': '--', 'zero': ':'}


def heat_map(results: Sequence[Result]) -> Figure:
  """What is not learned of what can be, architecture by task and guess."""
  columns = list(dict.fromkeys(map(_column, results)))
  by_place = {(one.cell.model, _column(one)): one for one in results}
  models = _by_mean_excess(results)
  figure = Figure(
    figsize=(2.2 + 0.95 * len(columns), 2.2 + 0.27 * len(models)), layout='constrained'
  )
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
      light = excess > 0.1
      axes.text(
        *(column, row, text),
        ha='center',
        va='center',
        fontsize='x-small',
        color=BLACK if light else 'white',
      )
  image = axes.imshow(grid, cmap='cividis', norm=LogNorm(_LEAST, 1), aspect='auto')
  axes.set_xticks(range(len(columns)), columns, rotation=30, ha='left')
  axes.xaxis.tick_top()
  axes.set_yticks(range(len(models)), models)
  bar = figure.colorbar(image, ax=axes, location='bottom', shrink=0.8)
  bar.set_label('what is not learned of what can be')
  return figure


def losses(results: Sequence[Result]) -> Figure:
  """The losses of one task: a row a model, a mark a guess, a line a baseline."""
  ordered = sorted(results, key=lambda one: one.loss.mean)
  models = list(dict.fromkeys(one.cell.model for one in ordered))
  figure = Figure(figsize=(8, 1.5 + 0.28 * len(models)), layout='constrained')
  axes = figure.subplots()
  for guess, marker in zip((None, *guesses(results)), 'osDv^', strict=False):
    of = [one for one in results if one.cell.guess == guess]
    if of:
      rows = [models.index(one.cell.model) for one in of]
      label = 'no choice of a guess' if guess is None else f'guess: {guess}'
      means, errors = [one.loss.mean for one in of], [one.loss.stderr for one in of]
      axes.errorbar(means, rows, xerr=errors, fmt=marker, label=label, alpha=0.75)
  most = max(one.loss.mean for one in results)
  for name, style in _STYLES.items():
    if name in results[0].baselines and results[0].baseline(name) < 1.5 * most:
      level = results[0].baseline(name)
      axes.axvline(level, linestyle=style, color='0.5', label=name)
  axes.set_yticks(range(len(models)), models)
  axes.invert_yaxis()
  axes.set_xlim(left=0)
  axes.set_xlabel('loss at the query, mean of the seeds ± standard error')
  axes.grid(alpha=0.3)
  figure.legend(loc='outside right upper')
  return figure


def curves(results: Sequence[Result]) -> Figure:
  """The losses of one task by number of examples, a panel for each model."""
  models = list(dict.fromkeys(one.cell.model for one in results))
  width = 4
  height = math.ceil(len(models) / width)
  figure = Figure(figsize=(9, 0.8 + 1.7 * height), layout='constrained')
  panels = figure.subplots(height, width, sharex=True, sharey=True, squeeze=False)
  colours = dict(zip((None, *guesses(results)), PALETTE, strict=False))
  first = results[0]
  for axes in panels.flat[len(models) :]:
    axes.set_axis_off()
  for axes, model in zip(panels.flat, models, strict=False):
    _baseline_curves(axes, first)
    for one in results:
      if one.cell.model == model:
        means = [one.at(i).mean for i in range(len(one.lengths))]
        label = 'model' if one.cell.guess is None else f'guess: {one.cell.guess}'
        axes.plot(
          one.lengths, means, 'o-', ms=2.5, color=colours[one.cell.guess], label=label
        )
    axes.axvline(first.context_length, color='0.8', lw=0.8, zorder=0)
    axes.set_title(model, fontsize='small')
    axes.set_yscale('log')
  least = min(one.at(i).mean for one in results for i in range(one.trained + 1))
  most = max(2 * first.baselines['zero'].mean(axis=0).max(), 10 * least)
  panels.flat[0].set_ylim(least / 2, most)
  panels.flat[0].yaxis.set_major_formatter(FormatStrFormatter('%g'))
  panels.flat[0].yaxis.set_minor_formatter(NullFormatter())
  figure.supxlabel('examples before the query; the line marks those of training')
  figure.supylabel('loss (log scale)')
  entries = {
    label: line
    for axes in panels.flat
    for line, label in zip(*axes.get_legend_handles_labels(), strict=True)
  }
  figure.legend(entries.values(), entries.keys(), loc='outside upper center', ncols=6)
  return figure


def gains(results: Sequence[Result], reference: str) -> Figure:
  """What other guesses change against a reference, with intervals of two errors."""
  by_cell = {one.cell: one for one in results}
  others = [name for name in guesses(results) if name != reference]
  models = [
    one.cell.model
    for one in sorted(results, key=lambda one: one.loss.mean)
    if one.cell.guess == reference
  ]
  figure = Figure(figsize=(8, 1.5 + 0.28 * len(models)), layout='constrained')
  axes = figure.subplots()
  for i, (guess, colour) in enumerate(zip(others, PALETTE, strict=False)):
    rows, means, errors = [], [], []
    for row, model in enumerate(models):
      base = by_cell[results[0].cell._replace(model=model, guess=reference)]
      one = by_cell.get(base.cell._replace(guess=guess))
      if one is not None:
        change = difference(one, base)
        rows.append(row + 0.2 * (i - (len(others) - 1) / 2))
        means.append(change.mean)
        errors.append(2 * change.stderr)
    axes.errorbar(
      means, rows, xerr=errors, fmt='o', ms=4, color=colour, label=f'guess: {guess}'
    )
  axes.axvline(0, color=BLACK, lw=0.8)
  axes.set_yticks(range(len(models)), models)
  axes.invert_yaxis()
  axes.set_xscale('symlog', linthresh=0.1)
  axes.set_xlabel(f'loss minus that with the guess {reference}; below 0 it helps')
  axes.grid(alpha=0.3)
  figure.legend(loc='outside right upper')
  return figure


def guesses(results: Sequence[Result]) -> list[str]:
  """The guesses of some cells, in their order."""
  found = dict.fromkeys(one.cell.guess for one in results)
  return [guess for guess in found if guess is not None]


def by_task(results: Sequence[Result]) -> Mapping[str, list[Result]]:
  """The results of each task."""
  tasks = dict.fromkeys(one.cell.task for one in results)
  return {task: [one for one in results if one.cell.task == task] for task in tasks}


def _baseline_curves(axes: Axes, result: Result) -> None:
  styles = zip(('--', ':', '-.', '-'), _SHOWN, strict=True)
  for style, name in styles:
    if name in result.baselines:
      means = result.baselines[name].mean(axis=0)
      axes.plot(result.lengths, means, style, color='0.5', lw=1, label=name)


def _column(result: Result) -> str:
  cell = result.cell
  return cell.task if cell.guess in (None, 'zero') else f'{cell.task}, {cell.guess}'


def _by_mean_excess(results: Sequence[Result]) -> list[str]:
  """The models, those that learn most first."""
  excess: dict[str, list[float]] = {}
  for one in results:
    excess.setdefault(one.cell.model, []).append(math.log(max(one.excess, _LEAST)))
  return sorted(excess, key=lambda model: float(np.mean(excess[model])))
