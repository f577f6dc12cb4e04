"""Plots of what instruments read over training."""

from __future__ import annotations

import itertools
import math

from matplotlib.axes import Axes

from zoo.probing.development import OverTraining
from zoo.reports.plots import Panel, Series, plot_panel
from zoo.reports.style import PALETTE


def plot_over_training(
  found: OverTraining, y_axis: str, title: str = '', *, ax: Axes | None = None
) -> Axes:
  """Draws the mean of each reading over runs by step, with its 95 % interval.

  A step without a reading in some run is left out. Without step 0 the axis of steps is
  logarithmic.

  Args:
    found: What `zoo.probing.over_training` has returned.
    y_axis: The label of the readings, with their unit.
    title: The title.
    ax: The axes to draw in. By default the function makes a figure.

  Returns:
    The axes.
  """
  names = dict.fromkeys(row.name for row in found.rows)
  shown = []
  for name, colour in zip(names, itertools.cycle(PALETTE), strict=False):
    points = [
      (row.step, row.value) for row in found.rows if row.name == name and row.value
    ]
    halves = [value.half if math.isfinite(value.half) else 0.0 for _, value in points]
    means = [value.mean for _, value in points]
    shown.append(
      Series(
        name or y_axis,
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
  return plot_panel(panel, ax)
