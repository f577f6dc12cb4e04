"""Plots of points with their intervals, in rows that have names."""

from __future__ import annotations

import csv
import io
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes

from zoo.reports.style import (
  BLACK,
  MARKERS,
  Ax,
  Figure,
  drawing_of,
  given_axes,
  house_style,
  label_log_axes,
  legend_above,
  legend_within,
)

_APART = 0.16  # The points of one row are apart by this share of a row.
# On a log axis an interval sets the limits of the axis down to this share of its mean.
_SHOWN_BELOW = 0.1


class RowPoint(NamedTuple):
  """A value in a row; points of one label look alike.

  Attributes:
    row: The name of the row.
    label: The label of the point, which stands in the legend.
    value: The value.
    half: Half of its interval. No bar is drawn unless it is finite.
  """

  row: str
  label: str
  value: float
  half: float = math.nan


@house_style
def plot_rows(
  panels: Mapping[str, Sequence[RowPoint]],
  x_axis: str,
  colours: Mapping[str, str],
  *,
  level: float | None = None,
  x_scale: str = 'linear',
  ax: Ax = None,
) -> list[Axes]:
  """Draws points in panels, which share their rows, from the top down.

  Rows stand in the order in which they first occur, and the points of a row in the
  order of `colours`. A value that has no place on the axis (0 on a log axis, or an
  infinite value) is an arrow at the edge, and so is the end of an interval beyond the
  edge. NaN is not drawn.

  Args:
    panels: The points of each panel, by its title.
    x_axis: The label of the horizontal axis.
    colours: The colour of each label of points.
    level: The place of a vertical line; None for no line.
    x_scale: 'linear' or 'log'.
    ax: Axes to draw in, one for each panel; each then has its rows and a legend of its
      own. By default the function makes a figure.

  Returns:
    The axes of the panels.

  Raises:
    UserError: If `ax` has another number of axes than there are panels.
  """
  every = list(itertools.chain(*panels.values()))
  rows = list(dict.fromkeys(point.row for point in every))
  labels = [label for label in colours if any(point.label == label for point in every)]
  given = given_axes(ax, len(panels))
  if given is None:
    figure = Figure(1.5 + max(0.28, 0.08 * (len(labels) + 1)) * len(rows))
    drawn = [*figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]]
  else:
    drawn = given
  for axes, (title, points) in zip(drawn, panels.items(), strict=True):
    axes.set_xscale(x_scale)
    if level is not None:
      axes.axvline(level, color=BLACK, linewidth=1)
    if x_scale == 'log':
      _limit(axes, points)
    for number, label in enumerate(labels):
      shift = _APART * (number - (len(labels) - 1) / 2)
      of = [point for point in points if point.label == label]
      if not of:
        continue
      halves = [point.half for point in of]
      axes.errorbar(
        [point.value for point in of],
        [rows.index(point.row) + shift for point in of],
        xerr=np.where(np.isfinite(halves), halves, np.nan),
        fmt=MARKERS[colours[label]],
        color=colours[label],
        capsize=2,
        label=label,
      )
      at = [(point.value, rows.index(point.row) + shift) for point in of]
      _mark_beyond(axes, at, colours[label])
      if x_scale == 'log':
        heights = [
          rows.index(point.row) + shift
          for point in of
          if point.value > 0
          and math.isfinite(point.half)
          and point.value - point.half < axes.get_xlim()[0]
        ]
        _mark_ends(axes, heights, colours[label])
    axes.set_title(title, parse_math=False)
    axes.xaxis.set_major_formatter('{x:g}')
    label_log_axes(axes)
  for axes in drawn[:1] if given is None else drawn:
    axes.set_yticks(range(len(rows)), rows, parse_math=False)
    axes.set_ylim(len(rows) - 0.4, -0.6)  # The first row is then off the frame.
  if given is None:
    drawing_of(drawn).supxlabel(x_axis)
    legend_above(drawing_of(drawn))
    drawing_of(drawn).numbers = _to_csv(panels)
  else:
    for axes in drawn:
      axes.set_xlabel(x_axis)
      legend_within(axes)
  return drawn


def _to_csv(panels: Mapping[str, Sequence[RowPoint]]) -> str:
  text = io.StringIO()
  writer = csv.writer(text, lineterminator='\n')
  writer.writerow(['panel', *RowPoint._fields])
  for title, points in panels.items():
    for row, label, value, half in points:
      writer.writerow([title, row, label, repr(float(value)), repr(float(half))])
  return text.getvalue()


def _limit(axes: Axes, points: Sequence[RowPoint]) -> None:
  """Sets the limits of a log axis, so that no interval near 0 hides the values."""
  known = [point for point in points if 0 < point.value < math.inf]
  ends = [point.half if math.isfinite(point.half) else 0.0 for point in known]
  if all(
    half < (1 - _SHOWN_BELOW) * point.value
    for point, half in zip(known, ends, strict=True)
  ):
    return
  lows = [
    max(point.value - half, _SHOWN_BELOW * point.value)
    for point, half in zip(known, ends, strict=True)
  ]
  highs = [point.value + half for point, half in zip(known, ends, strict=True)]
  margin = (max(highs) / min(lows)) ** 0.05
  axes.set_xlim(min(lows) / margin, max(highs) * margin)


def _mark_ends(axes: Axes, heights: Sequence[float], colour: str) -> None:
  """Draws arrows at the left edge for intervals, at heights, that go on beyond it."""
  if heights:
    axes.plot(
      [0.008] * len(heights),
      heights,
      linestyle='none',
      marker='<',
      markersize=4,
      color=colour,
      transform=axes.get_yaxis_transform(),
    )


def _mark_beyond(axes: Axes, at: Sequence[tuple[float, float]], colour: str) -> None:
  """Draws arrows at the edges for values, at heights, that are not on the axis."""
  least = 0.0 if axes.get_xscale() == 'log' else -math.inf
  is_least = '0, up to rounding' if axes.get_xscale() == 'log' else 'minus infinity'
  for name, marker, edge, heights in (
    (is_least, r'$\leftarrow$', 0.012, [y for x, y in at if x <= least]),
    ('infinite', r'$\rightarrow$', 0.988, [y for x, y in at if x == math.inf]),
  ):
    if heights:
      axes.plot(
        [edge] * len(heights),
        heights,
        linestyle='none',
        marker=marker,
        markersize=9,
        color=colour,
        transform=axes.get_yaxis_transform(),
      )
      # The arrow stands for all labels, so that it has the colour of none.
      axes.plot([], [], ' ', marker=marker, markersize=9, color=BLACK, label=name)
