"""Points with their intervals, in rows that have names."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes

from zoo.reports.style import (
  BLACK,
  MARKERS,
  Figure,
  in_style,
  label_log_axes,
  legend_above,
)

_APART = 0.16  # rows, between the points of one row


class RowPoint(NamedTuple):
  """A value in a row; points of one label look alike."""

  row: str
  label: str
  value: float
  half: float = math.nan  # of its interval; no bar is drawn unless it is finite


@in_style()
def plot_rows(
  panels: Mapping[str, Sequence[RowPoint]],
  x_axis: str,
  colours: Mapping[str, str],
  *,
  level: float | None = None,
  x_scale: str = 'linear',
) -> Figure:
  """Points in panels by their titles, which share their rows, from the top down.

  Rows stand in the order in which they first occur, and the points of a row in that of
  `colours`, which has the colour of each label. At `level` there is a vertical line.
  `x_scale` may be 'log'. What has no place on the axis, 0 on a log axis or an infinite
  value, is an arrow at its edge; NaN is not drawn.
  """
  every = list(itertools.chain(*panels.values()))
  rows = list(dict.fromkeys(point.row for point in every))
  labels = [label for label in colours if any(point.label == label for point in every)]
  figure = Figure(1.5 + max(0.28, 0.08 * (len(labels) + 1)) * len(rows))
  drawn = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
  for axes, (title, points) in zip(drawn, panels.items(), strict=True):
    axes.set_xscale(x_scale)
    if level is not None:
      axes.axvline(level, color=BLACK, linewidth=1)
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
    axes.set_title(title, parse_math=False)
    axes.xaxis.set_major_formatter('{x:g}')
    label_log_axes(axes)
  drawn[0].set_yticks(range(len(rows)), rows, parse_math=False)
  drawn[0].set_ylim(len(rows) - 0.4, -0.6)  # the first row is not on the frame
  figure.supxlabel(x_axis)
  legend_above(figure)
  return figure


def _mark_beyond(axes: Axes, at: Sequence[tuple[float, float]], colour: str) -> None:
  """Arrows at the edges for values, at heights, that have no place on the axis."""
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
      # Of all labels, so in no one's colour.
      axes.plot([], [], ' ', marker=marker, markersize=9, color=BLACK, label=name)
