"""Plots of models and the baselines of their task by number of examples."""

import itertools
from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from zoo.comparison import MODEL, Comparison, Measured
from zoo.plots import BLACK, PALETTE

# Losses below this part of the largest are left out: those of a perfect baseline are
# rounding errors.
_LEAST = 1e-5


def plot_by_examples(comparisons: Mapping[str, Comparison]) -> Figure:
  """The loss of models, by their labels, after each number of examples.

  The baselines are those of the first comparison. Bands are one standard error. A
  hollow marker is a median, drawn where the standard error exceeds a third of the mean,
  as it does where the mean is infinite.
  """
  figure = Figure(figsize=(7, 4), layout='constrained')
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
  for label, measured in models.items():
    _plot_measured(axes, measured, label, next(looks), _LEAST * largest)
  unused = PALETTE[len(models) :] or PALETTE
  looks = itertools.cycle(itertools.product(('--', ':', '-.'), unused))
  for name, measured in baselines.items():
    if name == 'bayes':
      label, look = 'bayes, the least possible', ('--', BLACK)
    else:
      label, look = name, next(looks)
    _plot_measured(axes, measured, label, look, _LEAST * largest)
  axes.grid(alpha=0.3)
  legend = figure.legend(loc='outside right upper', fontsize='small')
  for text in legend.get_texts():
    text.set_parse_math(False)  # the name of a model is plain text
  return figure


def _plot_measured(
  axes: Axes, measured: Measured, label: str, look: tuple[str, str], least: float
) -> None:
  style, colour = look
  count = np.array(measured['num_examples'], np.float64)
  mean, error, median = (
    np.array(measured[name], np.float64)
    for name in ('mean', 'standard_error', 'median')
  )
  trusted = ~(error > mean / 3)  # also where there is no error
  shown = np.where(trusted & (mean > least), mean, np.nan)
  style = 'o' if len(count) == 1 else style
  axes.plot(count, shown, style, color=colour, label=label, markersize=4)
  low = np.maximum(shown - error, shown / 2)
  axes.fill_between(count, low, shown + error, color=colour, alpha=0.2, lw=0)
  medians = np.where(~trusted & (median > least), median, np.nan)
  axes.plot(count, medians, 'o', color=colour, markersize=4, markerfacecolor='none')
