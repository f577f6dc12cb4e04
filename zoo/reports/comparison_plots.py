"""Plots of models and of the baselines of tasks."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from absl import logging

from zoo.measure.comparison import MODEL, Comparison, Measured, below_bayes
from zoo.reports.plots import Panel, Series, render_grid, series
from zoo.reports.style import (
  BLACK,
  PALETTE,
  SKY,
  VERMILION,
  Figure,
  colours_of,
  in_style,
  legend_above,
)

# Losses of baselines below this part of the largest are below the axis: those of a
# perfect baseline are rounding errors.
LEAST = 1e-5
# A loss of a model is, too, below this part of the largest.
_ROUNDING = 1e-10
_OF_MEDIANS = 'hollow: the median, where the mean is uncertain or infinite'
_BELOW = 'below the axis'


def plot_by_examples(
  comparisons: Mapping[str, Comparison], loss: str = '', of: str = ''
) -> Figure:
  """The loss of models, by their labels, after each number of examples.

  `loss` says which it is. The baselines are those of the first comparison, `of` what
  their labels say. Bands are one standard error. A hollow marker is a median, drawn
  where the standard error exceeds a third of the mean, as it does where the mean is
  infinite. An arrow at the lower edge is a loss below the axis, which ends at those of
  the models. Classes have a panel of their accuracy.
  """
  models = {label: comparison[MODEL] for label, comparison in comparisons.items()}
  baselines = dict(next(iter(comparisons.values())))
  del baselines[MODEL]
  every = [*models.values(), *baselines.values()]
  largest = max(value or 0.0 for one in every for value in one['mean'])
  of_models = [value for one in models.values() for value in one['mean'] if value]
  least = [one for one in of_models if one > _ROUNDING * largest]
  least = min([LEAST * largest, *least]) or 1.0  # if all are 0
  colours = itertools.cycle(PALETTE)
  looks = [(label, 'curve', next(colours), one) for label, one in models.items()]
  colours = colours_of(baselines)
  for name, one in baselines.items():
    label = 'bayes, the least possible' if name == 'bayes' else name
    looks.append((f'{label}{of}', 'dashed curve', colours[name], one))
  shown = [one for look in looks for one in _series(*look, least)]
  shown.sort(key=lambda one: one.name in (_OF_MEDIANS, _BELOW))  # which come last
  y_axis = f'loss (log scale)\n{loss}'.strip()
  axes = 'number of examples before the query', y_axis
  panels = [Panel('', *axes, tuple(shown), y_scale='log')]
  right = [
    series(label, kind, colour, one['num_examples'], np.array(accuracy, np.float64))
    for label, kind, colour, one in looks
    if (accuracy := one.get('accuracy')) is not None
  ]
  if right:
    panels.append(Panel('', axes[0], 'accuracy', tuple(right)))
  figure = render_grid(panels, len(panels), 3.5)
  for label, comparison in comparisons.items():
    if warning := below_bayes(comparison):
      logging.warning('%s: %s', label, warning)
      text = 'below the least possible loss, so something is wrong'
      figure.axes[0].set_title(text, color=VERMILION)
  return figure


def _series(
  label: str, kind: str, colour: str, measured: Measured, least: float
) -> Iterator[Series]:
  """The means that are trusted, and the medians where others are not."""
  mean, error, median = (
    np.array(measured[name], np.float64)
    for name in ('mean', 'standard_error', 'median')
  )
  trusted = ~(error > mean / 3)  # also where there is no error
  shown = np.where(trusted & (mean >= least), mean, np.nan)
  error = np.where(np.isnan(error), 0, error)  # no band where it is unknown
  low = np.maximum(shown - error, shown / 2)
  count = measured['num_examples']
  yield series(label, kind, colour, count, [low, shown, shown + error])
  medians = np.where(~trusted & (median >= least), median, np.nan)
  if not np.isnan(medians).all():
    yield series(_OF_MEDIANS, 'dots', colour, count, medians)
  below = np.where(trusted | (mean < least), mean, median)
  below = np.where(below < least, below, np.nan)
  if not np.isnan(below).all():
    yield series(_BELOW, 'below', colour, count, below)


@in_style()
def plot_deviations(deviations: Sequence[float]) -> Figure:
  """How many values deviate by how many standard errors, beside a normal density."""
  found = np.array([one for one in deviations if one])  # exact values do not deviate
  least, most = np.floor(found.min(initial=-1)), np.ceil(found.max(initial=1))
  edges = np.arange(least, most + 0.5, 0.5)
  figure = Figure(3.0)
  axes = figure.subplots()
  axes.hist(found, [*edges], color=SKY, edgecolor='white', label=f'{len(found)} values')
  x = np.linspace(edges[0], edges[-1], 201)
  density = np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
  axes.plot(x, 0.5 * len(found) * density, color=BLACK, label='N(0, 1)')
  axes.set_xlabel('measured − known, in standard errors of the difference')
  axes.set_ylabel('values')
  legend_above(figure)
  return figure
