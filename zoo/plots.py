"""A figure as data: all that is drawn, what is in its CSV, and how to read it back."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

KINDS = 'dots', 'curve', 'line', 'dashed'

# Okabe and Ito's colours, which colour-blind readers tell apart.
BLUE, VERMILION, GREEN = '#0072B2', '#D55E00', '#009E73'
PURPLE, ORANGE, SKY, BLACK = '#CC79A7', '#E69F00', '#56B4E9', '#000000'
PALETTE = BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY  # of series, in this order
_MARKERS = {BLUE: 'o', VERMILION: 's', GREEN: '^', PURPLE: 'D', ORANGE: 'v'}

_COLUMNS = (
  *('panel', 'x_axis', 'x_scale', 'x_names', 'y_axis', 'y_scale'),
  *('series', 'kind', 'colour', 'x', 'y', 'low', 'high'),
)


@dataclasses.dataclass(frozen=True)
class Series:
  """Points that belong together; `low` and `high` bound each y, and may be equal to it.

  `kind` is how they are drawn: dots with bars, a curve with a band, a line, or dashed.
  """

  name: str
  kind: str
  colour: str
  x: tuple[float, ...]
  y: tuple[float, ...]
  low: tuple[float, ...]
  high: tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class Panel:
  """One pair of axes; `key` is its letter, `x_names` those of x = 0, 1, …, if any."""

  key: str
  x_axis: str
  y_axis: str
  series: tuple[Series, ...]
  x_scale: str = 'linear'
  y_scale: str = 'linear'
  x_names: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Plot:
  """A figure: panels under one name."""

  name: str
  panels: tuple[Panel, ...]

  def series(self, panel: str, name: str) -> Series:
    """The series of that name; KeyError if there is none."""
    for candidate in self.panels:
      for series in candidate.series:
        if (candidate.key, series.name) == (panel, name):
          return series
    raise KeyError(f'figure {self.name} has no series {name!r} in panel {panel!r}')

  def at(self, panel: str, name: str, x: int | float) -> float:
    """The value of a series at one of its points."""
    series = self.series(panel, name)
    return series.y[series.x.index(x)]

  def end(self, panel: str, name: str) -> float:
    """The last value of a series."""
    return self.series(panel, name).y[-1]

  def slope(self, panel: str, name: str) -> float:
    """The slope of the least-squares line through a series."""
    series = self.series(panel, name)
    return float(np.polyfit(series.x, series.y, 1)[0])

  def correlation(self, panel: str, name: str) -> float:
    """How straight a series is: the correlation of x and y."""
    series = self.series(panel, name)
    return float(np.corrcoef(series.x, series.y)[0, 1])


def series(
  name: str,
  kind: str,
  colour: str,
  x: Any,
  y: Any,
) -> Series:
  """A series of numbers `[x]`, or of the median and range of repeats `[repeat, x]`."""
  values = np.asarray(y, np.float64)
  repeats = values.reshape(-1, values.shape[-1])
  summary = np.median(repeats, axis=0), repeats.min(axis=0), repeats.max(axis=0)
  return Series(name, kind, colour, *map(_floats, (x, *summary)))


def _floats(values: Any) -> tuple[float, ...]:
  return tuple(np.asarray(values, np.float64).tolist())


def to_csv(plot: Plot) -> str:
  """Every plotted number, a point a line."""
  text = io.StringIO()
  writer = csv.writer(text, lineterminator='\n')
  writer.writerow(_COLUMNS)
  for panel in plot.panels:
    names = '|'.join(panel.x_names)
    axes = panel.key, panel.x_axis, panel.x_scale, names, panel.y_axis, panel.y_scale
    for one in panel.series:
      for point in zip(one.x, one.y, one.low, one.high, strict=True):
        # repr has all digits, so that what is read is what was drawn.
        writer.writerow(
          [*axes, one.name, one.kind, one.colour, *(repr(value) for value in point)]
        )
  return text.getvalue()


def from_csv(name: str, text: str) -> Plot:
  """The figure that `to_csv` wrote, bit for bit."""
  panels: dict[tuple, dict[tuple, list]] = {}
  for row in csv.DictReader(io.StringIO(text)):
    axes = tuple(row[column] for column in _COLUMNS[:6])
    style = tuple(row[column] for column in _COLUMNS[6:9])
    point = tuple(float(row[column]) for column in _COLUMNS[9:])
    panels.setdefault(axes, {}).setdefault(style, []).append(point)
  return Plot(
    name,
    tuple(
      Panel(
        key,
        x_axis,
        y_axis,
        tuple(
          Series(*style, *map(tuple, zip(*points, strict=True)))
          for style, points in found.items()
        ),
        x_scale,
        y_scale,
        tuple(x_names.split('|')) if x_names else (),
      )
      for (key, x_axis, x_scale, x_names, y_axis, y_scale), found in panels.items()
    ),
  )


def draw(panels: Sequence[Panel]) -> Figure:
  """The panels in rows of two, or three of three, each with its legend below it."""
  columns = 3 if len(panels) == 3 else min(len(panels), 2)
  rows = -(-len(panels) // columns)
  figure = Figure(figsize=(4.8 * columns, 4.2 * rows), layout='constrained')
  for position, panel in enumerate(panels, start=1):
    axes = figure.add_subplot(
      rows,
      columns,
      position,
      xlabel=panel.x_axis,
      ylabel=panel.y_axis,
      xscale=panel.x_scale,
      yscale=panel.y_scale,
    )
    axes.set_title(panel.key, loc='left', fontweight='bold')
    for one in panel.series:
      _draw_series(axes, one)
    axes.grid(alpha=0.3)
    if panel.x_names:
      axes.set_xticks(range(len(panel.x_names)), panel.x_names)
    for axis, scale in ((axes.xaxis, panel.x_scale), (axes.yaxis, panel.y_scale)):
      if scale == 'log':
        _label_decades(axis)
    # Below the axes a legend hides no data.
    axes.legend(
      loc='upper center',
      bbox_to_anchor=(0.5, -0.16),
      ncols=2,
      fontsize='small',
      frameon=False,
    )
  return figure


def _draw_series(axes: Axes, one: Series) -> None:
  colour, label = one.colour, one.name
  if one.kind == 'dots':
    # Hollow, so that one behind another is seen.
    style = {'color': colour, 'label': label, 'markersize': 6, 'zorder': 3}
    marker = _MARKERS.get(colour, 'o')
    (points,) = axes.plot(one.x, one.y, marker, markerfacecolor='none', **style)
    if one.low != one.high:
      axes.vlines(one.x, one.low, one.high, colors=colour, zorder=points.zorder)
    return
  style = '--' if one.kind == 'dashed' else '-'
  axes.plot(one.x, one.y, style, color=colour, label=label, linewidth=1.5)
  if one.kind == 'curve' and one.low != one.high:
    axes.fill_between(one.x, one.low, one.high, color=colour, alpha=0.2, lw=0)


def _label_decades(axis: Axis) -> None:
  """Plain numbers at enough ticks: a range within a decade would get two labels."""
  low, high = sorted(axis.get_data_interval())
  axis.set_major_formatter('{x:g}')
  if high < 300 * low:
    axis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=30))
  axis.set_minor_locator(NullLocator())
