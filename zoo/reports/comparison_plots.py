"""Plots of models and the baselines of their task."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from zoo.core.errors import check_name
from zoo.core.losses import ROUNDING
from zoo.measure.comparison import MODEL, Comparison, Measured, below_bayes
from zoo.measure.intervals import estimate, half_of
from zoo.measure.table import name_of_half
from zoo.reports.plots import Panel, Series, plot_panels, series
from zoo.reports.style import (
  PALETTE,
  VERMILION,
  Ax,
  colours_of,
)

# A baseline whose loss is below this part of the largest loss is below the axis: the
# loss of a perfect baseline is a rounding error.
LEAST = 1e-5
_ABOVE = 'mean above the scale, or not finite'
_BELOW = 'below the axis'
_NUM_OTHERS = 2  # Where few baselines are wanted, this number stands beside `bayes`.
_ALIKE = 1e-3  # Baselines whose losses differ by less than this share look the same.


def plot_by_examples(
  comparisons: Mapping[str, Sequence[Comparison]],
  loss: str = '',
  of: str = '',
  baselines: Sequence[str] | None = None,
  note: str = '',
  *,
  ax: Ax = None,
) -> list[Axes]:
  """Draws the loss of models and baselines after each number of examples.

  A curve of several seeds is their mean with its 95 % interval by Student's t. The band
  of a single seed, and of a baseline, is ± the standard error over prompts times
  Student's t, a 95 % interval from 1024 prompts on. A mean that is infinite, or off the
  scale with a standard error above a third of the value, is an arrow at the upper edge.
  A loss below the axis is an arrow at the lower edge; the axis ends at the losses of
  the models.

  Args:
    comparisons: The comparisons of each model by its label, one for each seed.
    loss: The name of the loss, for the axis.
    of: Words that follow the name of each baseline.
    baselines: The names of the baselines to draw, of the first comparison; None draws
      all of them.
    note: The end of the title.
    ax: Axes to draw in, as many as are returned. By default the function makes a
      figure.

  Returns:
    The axes of the loss and, for classes, those of the accuracy.

  Raises:
    UserError: If a baseline is unknown, or if `ax` has another number of axes.
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
  y_axis = f'{loss.removeprefix("the ") or "loss"} (log scale)'
  axes = 'number of examples before the query', y_axis
  panels = [Panel(title, *axes, tuple(_losses(looks)), y_scale='log')]
  right = [
    _curve(label, kind, colour, seeds[0]['num_examples'], accuracies, None)
    for label, kind, colour, seeds in looks
    if (accuracies := [seed['accuracy'] for seed in seeds])[0] is not None
  ]
  if right:
    panels.append(Panel('', axes[0], 'accuracy', tuple(right)))
  drawn = plot_panels(panels, len(panels), 3.5, ax=ax)
  for axes_of_panel in drawn:
    axes_of_panel.xaxis.set_major_locator(of_examples())
  for label, seeds in comparisons.items():
    if warning := next(filter(None, map(below_bayes, seeds)), None):
      logging.warning('%s: %s', label, warning)
      title = drawn[0].title
      title.set_text('below the least possible loss, so something is wrong')
      title.set_color(VERMILION)
  return drawn


def of_examples() -> MaxNLocator:
  """Returns the places of ticks on an axis of numbers of examples, such as 0, 2, 4."""
  return MaxNLocator(6, integer=True, steps=[1, 2, 5, 10])


def few_baselines(comparison: Comparison) -> list[str]:
  """Returns `bayes`, and the two best of the other baselines that look different."""
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
  """Returns whether two curves cannot be told apart."""
  if curve['num_examples'] != other['num_examples']:
    return False
  means = [np.array(measured['mean'], np.float64) for measured in (curve, other)]
  return np.allclose(*means, rtol=_ALIKE, atol=least, equal_nan=True)


def _title(comparisons: Sequence[Sequence[Comparison]], with_baselines: bool) -> str:
  """Returns what the bands are, if some are over seeds and others over prompts."""
  numbers = sorted({len(seeds) for seeds in comparisons})
  if numbers[-1] == 1:
    return ''
  counts = '–'.join(map(str, dict.fromkeys((numbers[0], numbers[-1]))))
  text = f'mean of {counts} seeds; bands: 95 % interval over seeds'
  rest = ['of one seed'] * (numbers[0] == 1) + ['of baselines'] * with_baselines
  nums = [
    measured['num_prompts']
    for seeds in comparisons
    for comparison in seeds
    for measured in comparison.values()
  ]
  half = name_of_half(min(nums))
  return text + f'\nbands {" and ".join(rest)}: {half}, prompts' * bool(rest)


# A look has the label, the kind, the colour, and what was measured for each seed.
_Look = tuple[str, str, str, Sequence[Measured]]


def _losses(looks: Sequence[_Look]) -> Iterator[Series]:
  """Yields the means of the losses, and an arrow for each that is above the scale."""
  certain = []
  for *_, seeds in looks:
    for seed in seeds:
      mean, error = _numbers(seed, 'mean'), _numbers(seed, 'stderr')
      certain += mean[~(error > mean / 3)].tolist()
  top = np.nanmax(certain, initial=0.0)
  of_models = [
    mean
    for _, kind, _, seeds in looks
    for mean in np.mean([_numbers(seed, 'mean') for seed in seeds], axis=0)
    if kind == 'curve' and mean > ROUNDING * top
  ]
  least = min([LEAST * top, *of_models]) or 1.0  # All losses may be 0.
  arrows: list[Series] = []
  below: list[Series] = []
  for label, kind, colour, seeds in looks:
    count = seeds[0]['num_examples']
    mean = np.stack([_numbers(seed, 'mean') for seed in seeds])
    error = np.stack([_numbers(seed, 'stderr') for seed in seeds])
    is_above = (np.isnan(mean) | ((error > mean / 3) & (mean > top))).any(axis=0)
    is_below = ~is_above & (mean.mean(axis=0) < least)
    shown = np.where(is_above | is_below, np.nan, mean)
    # A formula has no prompts, and no error.
    half = half_of(error[0], seeds[0]['num_prompts'] or math.inf)
    yield _curve(label, kind, colour, count, [*shown], half)
    if is_above.any():
      at = np.array(count)[is_above]
      row = np.full(len(at), len(arrows))
      arrows.append(series(_ABOVE, 'above', colour, at, row))
    if is_below.any():
      at = np.where(is_below, mean.mean(axis=0), np.nan)
      below.append(series(_BELOW, 'below', colour, count, at))
  yield from [*arrows, *below]  # Arrows come last in the legend.


def _numbers(curve: Measured, name: str) -> np.ndarray:
  """Returns a field of a curve; NaN where it is unknown."""
  return np.array(curve[name], np.float64)


def _curve(
  label: str,
  kind: str,
  colour: str,
  count: Sequence[int],
  seeds: Sequence[Any],
  error: np.ndarray | None,
) -> Series:
  """Returns the mean of the curves of seeds, with a band of their interval.

  A single curve has the band `error`, half of its interval, if it is known.
  """
  values = np.array(seeds, np.float64)
  mean = values.mean(axis=0)
  if len(values) > 1:
    half = np.array([estimate(repeats).half for repeats in values.T])
  else:
    half = np.zeros_like(mean) if error is None else np.nan_to_num(error)
  columns = (
    column.tolist()
    for column in (np.array(count, np.float64), mean, mean - half, mean + half)
  )
  return Series(label, kind, colour, *map(tuple, columns))
