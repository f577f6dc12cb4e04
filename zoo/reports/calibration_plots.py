"""Pictures of the calibration of predictive distributions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from zoo.measure.calibrate import PitHistogram, Reliability
from zoo.measure.intervals import Estimate, Interval
from zoo.reports.plots import Panel, Series, plot_panel, series
from zoo.reports.style import BLACK, BLUE

_OF_CALIBRATED = 'calibrated'


def plot_calibration(
  result: PitHistogram | Reliability, title: str = '', *, ax: Axes | None = None
) -> Axes:
  """Draws a histogram of probability integral transforms, or a reliability diagram.

  Bars are 95 % intervals, cut off at 0 and 1. They reach equally far to both sides, as
  far as the farther end of Wilson's interval. The dashed line belongs to a calibrated
  predictor.

  Args:
    result: The result of `zoo.calibration`.
    title: The title of the panel.
    ax: The axes to draw in. By default the function makes a figure, which is saved by
      `plot_calibration(result).figure.savefig(file)`.

  Returns:
    The axes.
  """
  if isinstance(result, PitHistogram):
    middles = [(each.low + each.high) / 2 for each in result.bins]
    found = _with_bars('observed', middles, [each.share for each in result.bins])
    width = 1 / len(result.bins)
    calibrated = series(_OF_CALIBRATED, 'dashed', BLACK, [0.0, 1.0], [width, width])
    x_axis = 'probability of a smaller label'
    return plot_panel(
      Panel(title, x_axis, 'share of labels in a bin', (found, calibrated)), ax
    )
  known = [each for each in result.bins if each.accuracy is not None]
  accuracies = [each.accuracy for each in known if each.accuracy is not None]
  found = _with_bars('observed', [each.confidence for each in known], accuracies)
  calibrated = series(_OF_CALIBRATED, 'dashed', BLACK, [0.0, 1.0], [0.0, 1.0])
  x_axis = 'probability of the most probable class'
  return plot_panel(
    Panel(title, x_axis, 'share of labels of that class', (found, calibrated)), ax
  )


def _with_bars(
  name: str, x: list[float], estimates: Sequence[Estimate | Interval]
) -> Series:
  """Returns dots of shares with 95 % intervals; an unknown interval has no length."""
  means = np.array([each.mean for each in estimates])
  halves = np.nan_to_num([each.half for each in estimates])
  low, high = np.clip([means - halves, means + halves], 0, 1)
  columns = [array.tolist() for array in (np.array(x), means, low, high)]
  return Series(name, 'dots', BLUE, *map(tuple, columns))
