"""Plots of models and the baselines of their task by number of examples."""

import itertools
from collections.abc import Mapping

import numpy as np
from absl import logging
from matplotlib.axes import Axes

from zoo.comparison import MODEL, Comparison, Measured, below_bayes
from zoo.style import (
  BLACK,
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
  looks = itertools.cycle(itertools.product(('-', '--', ':', '-.'), PALETTE))
  shown: list[tuple[str, tuple[str, str], Measured]] = [
    (label, next(looks), measured) for label, measured in models.items()
  ]
  unused = PALETTE[len(models) :] or PALETTE
  looks = itertools.cycle(itertools.product(('--', ':', '-.'), unused))
  for name, measured in baselines.items():
    if name == 'bayes':
      label, look = 'bayes, the least possible', ('--', BLACK)
    else:
      label, look = name, next(looks)
    shown.append((label, look, measured))
  for position, (label, look, measured) in enumerate(shown):
    _plot_measured(axes, measured, label, look, position, _LEAST * largest)
  label_log_axis(axes.yaxis)
  legend_above(figure)
  for label, comparison in comparisons.items():
    if warning := below_bayes(comparison):
      logging.warning('%s: %s', label, warning)
      text = 'below the least possible loss, so something is wrong'
      axes.set_title(text, color=VERMILION)
  return figure


def _plot_measured(
  axes: Axes,
  measured: Measured,
  label: str,
  look: tuple[str, str],
  position: int,
  least: float,
) -> None:
  style, colour = look
  count = np.array(measured['num_examples'], np.float64)
  mean, error, median = (
    np.array(measured[name], np.float64)
    for name in ('mean', 'standard_error', 'median')
  )
  trusted = ~(error > mean / 3)  # also where there is no error
  shown = np.where(trusted & (mean > least), mean, np.nan)
  marks = sparse_markers(colour, position, len(count))
  axes.plot(count, shown, linestyle=style, color=colour, label=label, **marks)
  low = np.maximum(shown - error, shown / 2)
  axes.fill_between(count, low, shown + error, color=colour, alpha=0.2, lw=0)
  medians = np.where(~trusted & (median > least), median, np.nan)
  axes.plot(count, medians, 'o', color=colour, markerfacecolor='none')
