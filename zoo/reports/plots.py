"""Figures as data: they are written to CSV, read back, and rendered."""

from __future__ import annotations

import csv
import dataclasses
import io
import itertools
import pathlib
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import ArrayLike
from matplotlib.axes import Axes
from matplotlib.transforms import ScaledTranslation

from zoo.core.errors import UserError
from zoo.host.files import write_atomically
from zoo.reports.style import (
  BLACK,
  DASHES,
  FIGURE_INCHES,
  MARKERS,
  Ax,
  Figure,
  columns_in,
  given_axes,
  house_style,
  in_style,
  label_log_axes,
  legend_above,
  legend_below,
  legend_within,
  sparse_markers,
  wanted_names,
)

_POINTS_OF_ARROW_ROW = 8.0  # Rows of arrows above a panel have this distance.
# On a log axis an interval sets the limits of the axis down to this share of its mean.
# A bar that goes on below the axis ends in an arrow, and a band at the frame.
_SHOWN_BELOW = 0.1
BELOW = 'the interval goes on below'  # Such an arrow has this id.

_COLUMNS = (
  'panel',
  'x_axis',
  'x_scale',
  'x_names',
  'y_axis',
  'y_scale',
  'series',
  'kind',
  'colour',
  'x',
  'y',
  'low',
  'high',
)


_Values = ArrayLike | Sequence  # Nested lists are accepted, too.
_Point = tuple[float, ...]  # A point has x, y, low and high.
_Texts = tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Series:
  """Points that belong together, and how they are drawn.

  Attributes:
    name: The name in the legend.
    kind: How the points are drawn. `dots` are dots with bars, and `bars` the same
      joined by a line; `curve` and `dashed curve` have a band; `line` and `dashed` are
      lines without one; `mark` is a vertical line at the first x. `above` are arrows
      above the panel for points off its scale, whose y is the number of the row.
      `below` are arrows at the lower edge for points below it.
    colour: The colour.
    x: The places on the horizontal axis.
    y: The values.
    low: The lower bound of each y, which may equal it.
    high: The upper bound of each y, which may equal it.
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
  """One pair of axes.

  Attributes:
    key: The letter or the title above the panel.
    x_axis: The label of the horizontal axis.
    y_axis: The label of the vertical axis.
    series: The series, in the order of the legend.
    x_scale: 'linear' or 'log'.
    y_scale: 'linear' or 'log'.
    x_names: Names of x = 0, 1, …; empty for numbers.
  """

  key: str
  x_axis: str
  y_axis: str
  series: tuple[Series, ...]
  x_scale: str = 'linear'
  y_scale: str = 'linear'
  x_names: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Plot:
  """A figure: panels under one name.

  Attributes:
    name: The name, which is part of the names of its files.
    panels: The panels, in order.
  """

  name: str
  panels: tuple[Panel, ...]

  def series(self, panel: str, name: str) -> Series:
    """Returns the series of a name in a panel.

    Raises:
      KeyError: If there is none.
    """
    for candidate in self.panels:
      for series in candidate.series:
        if (candidate.key, series.name) == (panel, name):
          return series
    raise KeyError(f'figure {self.name} has no series {name!r} in panel {panel!r}')

  def at(self, panel: str, name: str, x: int | float) -> float:
    """Returns the value of a series at one of its points."""
    series = self.series(panel, name)
    return series.y[series.x.index(x)]

  def end(self, panel: str, name: str) -> float:
    """Returns the last value of a series."""
    return self.series(panel, name).y[-1]

  def slope(self, panel: str, name: str) -> float:
    """Returns the slope of the least-squares line through a series."""
    series = self.series(panel, name)
    return float(np.polyfit(series.x, series.y, 1)[0])

  def correlation(self, panel: str, name: str) -> float:
    """Returns the correlation of x and y, which measures how straight a series is."""
    series = self.series(panel, name)
    return float(np.corrcoef(series.x, series.y)[0, 1])


def series(name: str, kind: str, colour: str, x: _Values, y: _Values) -> Series:
  """Returns a series of numbers, or of the median and range of repeats.

  Args:
    name: The name in the legend.
    kind: How the points are drawn (see `Series`).
    colour: The colour.
    x: The places on the horizontal axis `[x]`.
    y: The values `[x]`, or repeats of them `[repeat, x]`.
  """
  values = np.asarray(y, np.float64)
  repeats = values.reshape(-1, values.shape[-1])
  summary = np.median(repeats, axis=0), repeats.min(axis=0), repeats.max(axis=0)
  columns = (np.asarray(column, np.float64).tolist() for column in (x, *summary))
  return Series(name, kind, colour, *map(tuple, columns))


def level(name: str, value: float, x: _Values, colour: str = BLACK) -> Series:
  """Returns a dashed line at a height, over points x."""
  return series(name, 'dashed', colour, x, np.full(np.shape(x), value))


def write_plot(plot: Plot, folder: pathlib.Path) -> None:
  """Writes `figure_NAME.csv`, `.svg` and `.png` into a folder; raises OSError."""
  write_atomically(folder / f'figure_{plot.name}.csv', to_csv(plot))
  figure = render_figure(plot.panels)
  for suffix in 'svg', 'png':
    figure.savefig(folder / f'figure_{plot.name}.{suffix}')


def to_csv(plot: Plot) -> str:
  """Returns all plotted numbers as CSV, one point in a line."""
  text = io.StringIO()
  writer = csv.writer(text, lineterminator='\n')
  writer.writerow(_COLUMNS)
  for panel in plot.panels:
    names = '|'.join(panel.x_names)
    axes = panel.key, panel.x_axis, panel.x_scale, names, panel.y_axis, panel.y_scale
    for shown in panel.series:
      for point in zip(shown.x, shown.y, shown.low, shown.high, strict=True):
        # repr has all digits, so that reading restores the same numbers.
        writer.writerow(
          [
            *axes,
            shown.name,
            shown.kind,
            shown.colour,
            *(repr(value) for value in point),
          ]
        )
  return text.getvalue()


def from_csv(name: str, text: str) -> Plot:
  """Returns the figure that `to_csv` wrote, bit for bit.

  Raises:
    UserError: If the text is not from `to_csv`.
  """  # noqa: DOC501
  panels: dict[_Texts, dict[_Texts, list[_Point]]] = {}
  try:
    lines = [*csv.reader(io.StringIO(text, newline=''))]
    if lines[:1] != [[*_COLUMNS]] or len(lines) < 2:
      raise ValueError(f'it begins with {str(lines[:2])[:80]}')
    for row in lines[1:]:
      axes, look, numbers = tuple(row[:6]), tuple(row[6:9]), row[9:]
      x, y, low, high = map(float, numbers)
      panels.setdefault(axes, {}).setdefault(look, []).append((x, y, low, high))
    return Plot(name, tuple(_panel(axes, looks) for axes, looks in panels.items()))
  except (ValueError, csv.Error) as error:
    raise UserError(f'the CSV of the figure {name} is damaged: {error}') from error


def _panel(axes: _Texts, looks: dict[_Texts, list[_Point]]) -> Panel:
  key, x_axis, x_scale, x_names, y_axis, y_scale = axes
  shown = tuple(
    Series(name, kind, colour, *map(tuple, zip(*points, strict=True)))
    for (name, kind, colour), points in looks.items()
  )
  names = tuple(x_names.split('|')) if x_names else ()
  return Panel(key, x_axis, y_axis, shown, x_scale, y_scale, names)


@in_style()
def render_figure(panels: Sequence[Panel], *, is_part: bool = False) -> Figure:
  """Draws panels, at most two in a row, each with its legend below it.

  Their keys are above them. A single panel has none, unless it is part of a figure.

  Returns:
    The figure. Its attribute `numbers` is the CSV of what it shows.
  """
  panels = _renamed(panels)
  columns = columns_in(min(len(panels), 2))
  rows = -(-len(panels) // columns)
  figure = Figure(4.2 * rows, min(4.8 * columns, FIGURE_INCHES))
  width = figure.get_figwidth() / columns
  for position, panel in enumerate(panels, start=1):
    axes = figure.add_subplot(rows, columns, position)
    _render_panel(axes, panel, _looks(panel.series))
    label_log_axes(axes)
    if len(panels) > 1 or is_part:
      axes.set_title(panel.key, loc='left', fontweight='bold')
    legend_below(axes, width, _name_ticks(axes, panel.x_names, width))
  figure.numbers = to_csv(Plot('', tuple(panels)))
  return figure


def plot_panel(panel: Panel, ax: Axes | None = None) -> Axes:
  """Draws one panel, titled by its key, with its legend.

  Args:
    panel: The panel.
    ax: The axes to draw in. By default the function makes a figure, which is saved by
      `plot_panel(panel).figure.savefig(file)`.

  Returns:
    The axes.

  Example:
    >>> line = series('one', 'line', BLACK, [0, 1], [1, 2])
    >>> axes = plot_panel(Panel('title', 'x', 'y', (line,)))
    >>> axes.get_title()
    'title'
  """
  return plot_panels([panel], 1, 3.3, ax=ax)[0]


@house_style
def plot_panels(
  panels: Sequence[Panel],
  columns: int,
  height: float,
  *,
  sharey: bool = False,
  ax: Ax = None,
) -> list[Axes]:
  """Draws panels, which are titled by their keys, with one legend.

  Series of one name look alike in all panels. A label that all panels have at an axis
  is shown once.

  Args:
    panels: The panels.
    columns: The number of panels in a row of a new figure.
    height: The height of a row of a new figure, in inches.
    sharey: Whether all panels of a new figure have the same y axis.
    ax: Axes to draw in, one for each panel; each then has a legend of its own. By
      default the function makes a figure.

  Returns:
    The axes of the panels.

  Raises:
    UserError: If `ax` has another number of axes than there are panels.
  """
  panels = _renamed(panels)
  looks = _looks([shown for panel in panels for shown in panel.series])
  given = given_axes(ax, len(panels))
  if given is not None:
    for axes, panel in zip(given, panels, strict=True):
      _render_titled(axes, panel, looks)
      figure = axes.get_figure(root=True)
      assert figure is not None
      inches = axes.get_position().width * figure.get_figwidth()
      _name_ticks(axes, panel.x_names, inches)
      label_log_axes(axes)
      legend_within(axes)
    return given
  columns = columns_in(columns)
  rows = -(-len(panels) // columns)
  # More than four columns do not fit into a page.
  figure = Figure(0.9 + height * rows, max(FIGURE_INCHES, 2.0 * columns))
  every = [*figure.subplots(rows, columns, squeeze=False, sharey=sharey).flat]
  for axes in every[len(panels) :]:
    axes.set_axis_off()
  drawn = every[: len(panels)]
  for axes, panel in zip(drawn, panels, strict=True):
    _render_titled(axes, panel, looks)
    _name_ticks(axes, panel.x_names, figure.get_figwidth() / columns)
  for number, axes in enumerate(drawn):
    label_log_axes(axes)  # All panels that share an axis are drawn by now.
    if number % columns and sharey:
      axes.set_ylabel('')
  several = len(panels) > 1
  if several and len({panel.x_axis for panel in panels}) == 1:
    figure.supxlabel(panels[0].x_axis, parse_math=False)
    for axes in every:
      axes.set_xlabel('')
  if several and len({panel.y_axis for panel in panels}) == 1:
    figure.supylabel(panels[0].y_axis, parse_math=False)
    for axes in every:
      axes.set_ylabel('')
  legend_above(figure)
  figure.numbers = to_csv(Plot('', tuple(panels)))
  return drawn


def _renamed(panels: Sequence[Panel]) -> list[Panel]:
  """Returns panels whose series have the names that the caller wants."""
  names = wanted_names(shown.name for panel in panels for shown in panel.series)
  return [
    dataclasses.replace(
      panel,
      series=tuple(
        dataclasses.replace(shown, name=names[shown.name]) for shown in panel.series
      ),
    )
    for panel in panels
  ]


def with_texts(text: str, title: str | None, x: str | None, y: str | None) -> str:
  """Returns the CSV of a figure with another title and other labels of the axes.

  Args:
    text: The CSV, from `to_csv`.
    title: The title of a single panel. Panels of one figure keep theirs.
    x: The label of all horizontal axes. None keeps the labels.
    y: The label of all vertical axes.
  """
  panels = from_csv('', text).panels
  changes = {'x_axis': x, 'y_axis': y, 'key': title if len(panels) == 1 else None}
  changes = {name: value for name, value in changes.items() if value is not None}
  return to_csv(
    Plot('', tuple(dataclasses.replace(panel, **changes) for panel in panels))
  )


def _render_titled(axes: Axes, panel: Panel, looks: _Looks) -> None:
  _render_panel(axes, panel, looks)
  rows = sum(shown.kind == 'above' for shown in panel.series)
  axes.set_title(panel.key, parse_math=False, pad=6 + _POINTS_OF_ARROW_ROW * rows)


# The keys are the name and the kind of a series.
_Looks = Mapping[tuple[str, str], Mapping[str, Any]]


def _render_panel(axes: Axes, panel: Panel, looks: _Looks) -> None:
  axes.set(xscale=panel.x_scale, yscale=panel.y_scale)
  # Names are plain text, in which a $ does not begin a formula.
  axes.set_xlabel(panel.x_axis, parse_math=False)
  axes.set_ylabel(panel.y_axis, parse_math=False)
  below = [shown for shown in panel.series if shown.kind == 'below']
  for shown in panel.series:
    if shown.kind != 'below':
      _render_series(axes, shown, looks[shown.name, shown.kind])
  for number, shown in enumerate(below):
    _render_below(axes, shown, number - (len(below) - 1) / 2)
  if panel.y_scale == 'log':
    _show_ends_below(axes, panel.series)


def _show_ends_below(axes: Axes, shown: Sequence[Series]) -> None:
  """Shows on a log axis which intervals go further down than the axis does.

  An interval may reach 0 or less, which has no place on a log axis, or so near to 0
  that the axis would hide the means. Bars then have an arrow at the edge.
  """
  ends = [
    (x, y, low, drawn)
    for drawn in shown
    if drawn.kind in ('dots', 'bars', 'curve', 'dashed curve')
    for x, y, low in zip(drawn.x, drawn.y, drawn.low, strict=True)
    if y > 0 and low < _SHOWN_BELOW * y
  ]
  if not ends:
    return
  lows = [
    max(low, _SHOWN_BELOW * y)
    for drawn in shown
    if drawn.kind not in ('mark', 'above', 'below')
    for y, low in zip(drawn.y, drawn.low, strict=True)
    if y > 0
  ]
  highs = [high for drawn in shown for high in drawn.high if 0 < high < np.inf]
  least, most = min(lows), max(highs)
  margin = (most / least) ** 0.05
  axes.set_ylim(least / margin, most * margin)
  for x, _, low, drawn in ends:
    if low < least / margin and drawn.kind in ('dots', 'bars'):
      axes.plot(
        [x],
        [0.02],
        linestyle='none',
        marker='v',
        markersize=4,
        color=drawn.colour,
        transform=axes.get_xaxis_transform(),
        gid=BELOW,
      )


def _name_ticks(axes: Axes, names: Sequence[str], width: float) -> int:
  """Names x = 0, 1, …, side by side; returns the number of lines of the names."""
  if not names:
    return 1
  letters = max(int((width - 0.8) / len(names) / 0.09), 1)
  wrapped = [textwrap.fill(name, letters, break_long_words=False) for name in names]
  axes.set_xticks(range(len(names)), wrapped, parse_math=False)
  return max(name.count('\n') for name in wrapped) + 1


def _looks(shown: Sequence[Series]) -> _Looks:
  """Returns the marker or dashes that tell each series from others without colours."""
  distinct = {(drawn.name, drawn.kind): drawn for drawn in shown}
  dashes, curve_dashes = itertools.cycle(DASHES), itertools.cycle(DASHES)
  of_colours: Counter[str] = Counter()  # It counts lines with markers by colour.
  # A line has markers only if there are others that its dashes do not tell it from.
  num_solid = sum(drawn.kind in ('curve', 'line') for drawn in distinct.values())
  num_dashed = sum(drawn.kind == 'dashed curve' for drawn in distinct.values())
  unmarked = {'curve': num_solid == 1, 'line': num_solid == 1}
  unmarked['dashed curve'] = num_dashed <= len(DASHES)
  looks: dict[tuple[str, str], dict[str, Any]] = {}
  for key, drawn in distinct.items():
    look: dict[str, Any]
    match drawn.kind:
      case 'dots':
        # Markers are hollow, so that those behind others are visible.
        look = {'marker': MARKERS.get(drawn.colour, 'o'), 'markerfacecolor': 'none'}
        look |= {'markersize': 6, 'linestyle': 'none', 'zorder': 3}
      case 'dashed':
        look = {'linestyle': next(dashes)}
      case 'bars':
        position, repeat = of_colours.total(), of_colours[drawn.colour]
        look = sparse_markers(drawn.colour, position, len(drawn.x), repeat)
        look |= {'markevery': 1, 'markersize': 6, 'markerfacecolor': 'none'}
        of_colours[drawn.colour] += 1
      case 'above':
        look = {'marker': '^', 'markersize': 5, 'linestyle': 'none'}
      case 'below':
        look = {}
      case 'mark':
        look = {'linewidth': 4, 'alpha': 0.3, 'zorder': 1}
      case kind if unmarked[kind] and len(drawn.x) > 1:
        look = {}
      case _:
        position, repeat = of_colours.total(), of_colours[drawn.colour]
        look = sparse_markers(drawn.colour, position, len(drawn.x), repeat)
        of_colours[drawn.colour] += 1
    if drawn.kind == 'dashed curve':
      look['linestyle'] = next(curve_dashes)
    looks[key] = look
  return looks


def _render_series(axes: Axes, shown: Series, look: Mapping[str, Any]) -> None:
  colour = shown.colour
  if shown.kind == 'mark':
    axes.axvline(shown.x[0], color=colour, label=shown.name, **look)
    return
  if shown.kind == 'above':
    _render_arrows(axes, shown, look)
    return
  axes.plot(shown.x, shown.y, color=colour, label=shown.name, **look)
  if shown.low == shown.high:
    return
  if shown.kind in ('dots', 'bars'):
    axes.vlines(
      shown.x, shown.low, shown.high, colors=colour, zorder=look.get('zorder', 2)
    )
  if shown.kind in ('curve', 'dashed curve'):
    axes.fill_between(shown.x, shown.low, shown.high, color=colour, alpha=0.2, lw=0)


def _render_arrows(axes: Axes, shown: Series, look: Mapping[str, Any]) -> None:
  """Draws arrows above the upper edge of a panel, in the row of their first y."""
  figure = axes.get_figure(root=True)
  assert figure is not None
  height = (shown.y[0] + 0.6) * _POINTS_OF_ARROW_ROW / 72
  up = ScaledTranslation(0, height, figure.dpi_scale_trans)
  top = axes.get_xaxis_transform() + up  # Its y is 1 at the upper edge.
  look = {**look, 'transform': top, 'clip_on': False}
  tops = np.ones(len(shown.x))
  axes.plot(shown.x, tops, color=shown.colour, label=shown.name, **look)
  axes.update_datalim(np.stack([shown.x, tops], axis=1), updatey=False)


def _render_below(axes: Axes, shown: Series, place: float) -> None:
  """Draws arrows at the lower edge, beside those of other series at the same x."""
  figure = axes.get_figure(root=True)
  assert figure is not None
  beside = ScaledTranslation(0.1 * place, 0, figure.dpi_scale_trans)
  axes.plot(
    shown.x,
    np.where(np.isnan(shown.y), np.nan, 0.03),
    linestyle='none',
    marker=r'$\downarrow$',
    markersize=9,
    color=shown.colour,
    transform=axes.get_xaxis_transform() + beside,
    label=shown.name,
  )
