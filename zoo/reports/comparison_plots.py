"""Plots of models and the baselines of their task by number of examples."""

import itertools
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from absl import logging
from matplotlib.axes import Axes

from zoo.measure.comparison import MODEL, Comparison, Measured, below_bayes
from zoo.reports.style import (
  BLACK,
  GREY,
  PALETTE,
  VERMILION,
  Figure,
  in_style,
  label_log_axis,
  legend_above,
  sparse_markers,
)

# Losses below this part of the largest are left out: those of a perfect baseline are
# rounding errors.
_LEAST = 1e-5
_MEDIANS = '_medians'  # not in the legend, where one entry explains all of them
_OF_MEDIANS = 'hollow: the median, where the mean is uncertain or infinite'


@in_style()
def plot_by_examples(comparisons: Mapping[str, Comparison]) -> Figure:
  """The loss of models, by their labels, after each number of examples.

  The baselines are those of the first comparison. Bands are one standard error. A
  hollow marker is a median, drawn where the standard error exceeds a third of the mean,
  as it does where the mean is infinite.
  """
  figure = Figure(4.4)
  axes = figure.add_subplot(
    xlabel='number of examples before the query', ylabel='loss (log scale)'
  )
  axes.set_yscale('log')
  models = {label: comparison[MODEL] for label, comparison in comparisons.items()}
  baselines = dict(next(iter(comparisons.values())))
  del baselines[MODEL]
  largest = max(
    value or 0.0
    for one in [*models.values(), *baselines.values()]
    for value in one['mean']
  )
  shown = _with_looks(models, baselines)
  for position, (label, look, measured) in enumerate(shown):
    _plot_measured(axes, measured, label, look, position, _LEAST * largest)
  if any(line.get_label() == _MEDIANS for line in axes.lines):
    axes.plot([], [], 'o', color=GREY, markerfacecolor='none', label=_OF_MEDIANS)
  label_log_axis(axes.yaxis)
  legend_above(figure)
  for label, comparison in comparisons.items():
    if warning := below_bayes(comparison):
      logging.warning('%s: %s', label, warning)
      text = 'below the least possible loss, so something is wrong'
      axes.set_title(text, color=VERMILION)
  return figure


class _Look(NamedTuple):
  dashes: str
  colour: str
  repeat: int  # how many lines before it have its colour


def _with_looks(
  models: Mapping[str, Measured], baselines: Mapping[str, Measured]
) -> list[tuple[str, _Look, Measured]]:
  """The lines by label; no two of the first 15 share colour and marker."""
  counts: dict[str, int] = dict.fromkeys((*PALETTE, BLACK), 0)

  def look(dashes: str, colour: str) -> _Look:
    counts[colour] += 1
    return _Look(dashes, colour, counts[colour] - 1)

  looks = itertools.cycle(itertools.product(('-', '--', ':', '-.'), PALETTE))
  shown = [(label, look(*next(looks)), one) for label, one in models.items()]
  unused = PALETTE[len(models) :] or PALETTE
  looks = itertools.cycle(itertools.product(('--', ':', '-.'), unused))
  for name, one in baselines.items():
    if name == 'bayes':
      shown.append(('bayes, the least possible', look('--', BLACK), one))
    else:
      shown.append((name, look(*next(looks)), one))
  return shown


def _plot_measured(
  axes: Axes,
  measured: Measured,
  label: str,
  look: _Look,
  position: int,
  least: float,
) -> None:
  style, colour, repeat = look
  count = np.array(measured['num_examples'], np.float64)
  mean, error, median = (
    np.array(measured[name], np.float64)
    for name in ('mean', 'standard_error', 'median')
  )
  trusted = ~(error > mean / 3)  # also where there is no error
  shown = np.where(trusted & (mean > least), mean, np.nan)
  marks = sparse_markers(colour, position, len(count), repeat)
  axes.plot(count, shown, linestyle=style, color=colour, label=label, **marks)
  low = np.maximum(shown - error, shown / 2)
  axes.fill_between(count, low, shown + error, color=colour, alpha=0.2, lw=0)
  medians = np.where(~trusted & (median > least), median, np.nan)
  if not np.isnan(medians).all():
    marker = marks['marker']
    axes.plot(
      *(count, medians, marker), color=colour, markerfacecolor='none', label=_MEDIANS
    )
