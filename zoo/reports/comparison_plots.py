"""Plots of models beside the baselines of their task."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging
from matplotlib.axes import Axes

from zoo.core.errors import check_name
from zoo.core.losses import ROUNDING
from zoo.measure.comparison import MODEL, Comparison, Measured, below_bayes
from zoo.measure.statistics import WIDTH, interval
from zoo.reports.plots import Panel, Series, plot_panels, series
from zoo.reports.style import (
  PALETTE,
  VERMILION,
  Ax,
  colours_of,
)

# Losses of baselines below this part of the largest are below the axis: those of a
# perfect baseline are rounding errors.
LEAST = 1e-5
_ABOVE = 'mean above the scale, or infinite'
_BELOW = 'below the axis'
_NUM_OTHERS = 2  # baselines beside `bayes`, where few are wanted
_ALIKE = 1e-3  # of their losses, by which baselines differ that look the same


def plot_by_examples(
  comparisons: Mapping[str, Sequence[Comparison]],
  loss: str = '',
  of: str = '',
  baselines: Sequence[str] | None = None,
  note: str = '',
  *,
  ax: Ax = None,
) -> list[Axes]:
  """The loss of models, by their labels, after each number of examples.

  Several comparisons of one label are of seeds: their mean is drawn with its 95 %
  interval, Student's t. Bands of a single one, and of baselines, are such intervals
  over prompts. `loss` says which it is. The baselines are those of the first
  comparison, all of them or those named, and `of` is what their labels say. A mean that
  is infinite, or above all others and known to no better than a third, is an arrow at
  the upper edge; one at the lower edge is a loss below the axis, which ends at those of
  the models.
  The title ends with the `note`. `ax` has axes to draw in, by default a new figure's.
  Returns the axes of the loss and, for classes, those of the accuracy. Raises UserError
  for an unknown baseline, and for another number of axes.
  """
  models = {
    label: [comparison[MODEL] for comparison in seeds]
    for label, seeds in comparisons.items()
  }
  known = dict(next(iter(comparisons.values()))[0])
  del known[MODEL]
  names = [*known] if baselines is None else baselines
  shown = {check_name('baseline', name, known): [known[name]] for name in names}
  looks = [
    (label, 'curve', colour, seeds)
    for (label, seeds), colour in zip(
      models.items(), itertools.cycle(PALETTE), strict=False
    )
  ]
  colours = colours_of(known)
  for name, measured in shown.items():
    label = 'bayes, the least possible' if name == 'bayes' else name
    looks.append((f'{label}{of}', 'dashed curve', colours[name], measured))
  title = '\n'.join(filter(None, [_title([*comparisons.values()], bool(shown)), note]))
  y_axis = f'loss (log scale)\n{loss}'.strip()
  axes = 'number of examples before the query', y_axis
  panels = [Panel(title, *axes, tuple(_losses(looks)), y_scale='log')]
  right = [
    _curve(label, kind, colour, seeds[0]['num_examples'], accuracies, None)
    for label, kind, colour, seeds in looks
    if (accuracies := [seed.get('accuracy') for seed in seeds])[0] is not None
  ]
  if right:
    panels.append(Panel('', axes[0], 'accuracy', tuple(right)))
  drawn = plot_panels(panels, len(panels), 3.5, ax=ax)
  for label, seeds in comparisons.items():
    if warning := next(filter(None, map(below_bayes, seeds)), None):
      logging.warning('%s: %s', label, warning)
      title = drawn[0].title
      title.set_text('below the least possible loss, so something is wrong')
      title.set_color(VERMILION)
  return drawn


def few_baselines(comparison: Comparison) -> list[str]:
  """`bayes`, and the two best of the baselines that differ from it and each other."""
  others = {name: measured for name, measured in comparison.items() if name != MODEL}

  def last(name: str) -> float:
    mean = others[name]['mean'][-1]
    return math.inf if mean is None else mean

  chosen: list[str] = ['bayes'] * ('bayes' in others)
  least = LEAST * max(
    (last(name) for name in others if last(name) < math.inf), default=0
  )
  for name in sorted(others, key=last):
    if len(chosen) - ('bayes' in chosen) == _NUM_OTHERS:
      break
    if not any(_alike(others[name], others[earlier], least) for earlier in chosen):
      chosen.append(name)
  return chosen


def _alike(curve: Measured, other: Measured, least: float) -> bool:
  """Whether two curves cannot be told apart."""
  if curve['num_examples'] != other['num_examples']:
    return False
  means = [np.array(measured['mean'], np.float64) for measured in (curve, other)]
  return np.allclose(*means, rtol=_ALIKE, atol=least, equal_nan=True)


def _title(comparisons: Sequence[Sequence[Comparison]], with_baselines: bool) -> str:
  """What the bands are, if some are over seeds and others over prompts."""
  numbers = sorted({len(seeds) for seeds in comparisons})
  if numbers[-1] == 1:
    return ''
  counts = '–'.join(map(str, dict.fromkeys((numbers[0], numbers[-1]))))
  text = f'mean of {counts} seeds; bands: 95 % interval over seeds'
  rest = ['of one seed'] * (numbers[0] == 1) + ['of baselines'] * with_baselines
  return text + f'\nbands {" and ".join(rest)}: over prompts' * bool(rest)


_Look = tuple[str, str, str, Sequence[Measured]]  # label, kind, colour, and the seeds


def _losses(looks: Sequence[_Look]) -> Iterator[Series]:
  """The means of the losses, and an arrow for each that is above the scale."""
  certain = []
  for *_, seeds in looks:
    for seed in seeds:
      mean, error = _numbers(seed, 'mean'), _numbers(seed, 'standard_error')
      certain += mean[~(error > mean / 3)].tolist()
  top = np.nanmax(certain, initial=0.0)
  of_models = [
    mean
    for _, kind, _, seeds in looks
    for mean in np.mean([_numbers(seed, 'mean') for seed in seeds], axis=0)
    if kind == 'curve' and mean > ROUNDING * top
  ]
  least = min([LEAST * top, *of_models]) or 1.0  # if all are 0
  arrows: list[Series] = []
  below: list[Series] = []
  for label, kind, colour, seeds in looks:
    count = seeds[0]['num_examples']
    mean = np.stack([_numbers(seed, 'mean') for seed in seeds])
    error = np.stack([_numbers(seed, 'standard_error') for seed in seeds])
    is_above = (np.isnan(mean) | ((error > mean / 3) & (mean > top))).any(axis=0)
    is_below = ~is_above & (mean.mean(axis=0) < least)
    shown = np.where(is_above | is_below, np.nan, mean)
    yield _curve(label, kind, colour, count, [*shown], WIDTH * error[0])
    if is_above.any():
      at = np.array(count)[is_above]
      row = np.full(len(at), len(arrows))
      arrows.append(series(_ABOVE, 'above', colour, at, row))
    if is_below.any():
      at = np.where(is_below, mean.mean(axis=0), np.nan)
      below.append(series(_BELOW, 'below', colour, count, at))
  yield from [*arrows, *below]  # which come last in the legend


def _numbers(curve: Measured, name: str) -> np.ndarray:
  """A field of a curve; NaN where it is unknown."""
  return np.array(curve[name], np.float64)


def _curve(
  label: str,
  kind: str,
  colour: str,
  count: Sequence[int],
  seeds: Sequence[Any],
  error: np.ndarray | None,
) -> Series:
  """The mean of the curves of seeds, with a band of their interval.

  That of a single one is `error`, half of its 95 % interval, if it is known.
  """
  values = np.array(seeds, np.float64)
  mean = values.mean(axis=0)
  if len(values) > 1:
    half = np.array([interval(repeats).half for repeats in values.T])
  else:
    half = np.zeros_like(mean) if error is None else np.nan_to_num(error)
  columns = (
    column.tolist()
    for column in (np.array(count, np.float64), mean, mean - half, mean + half)
  )
  return Series(label, kind, colour, *map(tuple, columns))
