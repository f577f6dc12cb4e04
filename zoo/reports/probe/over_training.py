"""Plots of what instruments read over training."""

from __future__ import annotations

import itertools
import math

from matplotlib.axes import Axes

from zoo.probing.development import OverTraining
from zoo.reports.plots import Panel, Series, plot_panel
from zoo.reports.style import PALETTE

_RUNS_OF_BAND = 10


def plot_over_training(
  found: OverTraining, y_axis: str, title: str = '', *, ax: Axes | None = None
) -> Axes:
  """Draws each reading of every run by step, and the mean over runs.

  A run is a thin line, and the mean a thick one. From ten runs on, the mean has a band,
  its 95 % interval by Student's t; the interval of three runs may reach values that no
  run can have. A step without a reading in some run has no mean. Without step 0 the
  axis of steps is logarithmic.

  Args:
    found: What `zoo.probing.over_training` has returned.
    y_axis: The label of the readings, with their unit.
    title: The title.
    ax: The axes to draw in. By default the function makes a figure.

  Returns:
    The axes.
  """
  names = dict.fromkeys(row.name for row in found.rows)
  num_runs = max((row.num_runs for row in found.rows), default=0)
  has_band = num_runs >= _RUNS_OF_BAND
  said = f'mean (thick) of {num_runs} runs (thin)' if num_runs > 1 else ''
  shown, colours = [], {}
  for name, colour in zip(names, itertools.cycle(PALETTE), strict=False):
    points = [
      (row.step, row.value) for row in found.rows if row.name == name and row.value
    ]
    halves = [
      value.half if has_band and math.isfinite(value.half) else 0.0
      for _, value in points
    ]
    means = [value.mean for _, value in points]
    colours[name] = colour
    shown.append(
      Series(
        ': '.join(filter(None, (name, said))) or y_axis,
        'curve',
        colour,
        tuple(float(step) for step, _ in points),
        tuple(means),
        tuple(mean - half for mean, half in zip(means, halves, strict=True)),
        tuple(mean + half for mean, half in zip(means, halves, strict=True)),
      )
    )
  has_zero = any(row.step == 0 for row in found.rows)
  scale = 'linear' if has_zero else 'log'
  panel = Panel(title, 'training step', y_axis, tuple(shown), x_scale=scale)
  axes = plot_panel(panel, ax)
  for run, name in dict.fromkeys((row.run, row.name) for row in found.readings):
    at = [
      (row.step, row.value.mean)
      for row in found.readings
      if (row.run, row.name) == (run, name) and row.value is not None
    ]
    if at and (colour := colours.get(name)):
      axes.plot(*zip(*at, strict=True), color=colour, linewidth=0.7, alpha=0.6)
  return axes
