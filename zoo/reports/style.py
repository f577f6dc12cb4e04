"""The house style of all figures: sizes, letters, colours, legends and files.

The README shows a picture of `FIGURE_INCHES` inches with 830 pixels, and the smallest
letters, which have `SMALL` points, with 10 pixels.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import io
import itertools
import math
import pathlib
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, ParamSpec, TypeVar, cast

import matplotlib
import matplotlib.figure
import matplotlib.style
import numpy as np
from matplotlib.axes import Axes
from matplotlib.font_manager import FontProperties
from matplotlib.legend import Legend
from matplotlib.textpath import TextPath
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator
from matplotlib.transforms import ScaledTranslation

from zoo.core.errors import UserError
from zoo.host.files import is_url, write_atomically

FIGURE_INCHES = 8.0  # A figure has this width, in inches.
SMALL = 7.0  # The smallest letters have this size, in points.
COLUMN, PAGE = 3.3, 6.75  # A column and a page have these widths, in inches.
# A legend is measured in points of its letters: the width of a wide letter and the
# height of a row. A figure allows for the usual number of rows.
_LETTER, _ROW, _USUAL_ROWS = 0.72, 1.44, 3
# A log axis has ticks at these parts of a power of ten; the longest tuple comes first.
_PARTS = (1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)
_TICK = 3.5  # A number at a tick takes this width with its distance, in letters.
_NARROW = 5.0  # A figure that is narrower, in inches, has smaller letters.
_NARROW_HEIGHT = 0.75  # Such a figure has this share of its usual height.
_LEAST_PANEL = 2.4  # In a figure of a chosen width a panel has these inches or more.

# Okabe and Ito chose these colours, which colour-blind readers can distinguish. Their
# yellow is left out, since it is hard to see on white.
BLUE, VERMILION, GREEN = '#0072B2', '#D55E00', '#009E73'
PURPLE, ORANGE, SKY, BLACK = '#CC79A7', '#E69F00', '#56B4E9', '#000000'
GREY = '#777777'  # References have this colour.
PALETTE = BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY  # Series take them in this order.
MARKERS: dict[str, str] = dict(zip((*PALETTE, BLACK, GREY), 'os^DvPXp', strict=True))
# Baselines have colours and markers of their own, the same in all pictures; the colours
# are Paul Tol's muted and dark ones, which colour-blind readers can distinguish.
BASELINES: dict[str, str] = {
  'bayes': BLACK,
  'zero': GREY,
  'gd': '#882255',
  'gd_beta': '#44AA99',
  'ridge': '#999933',
  'ols': '#CC6677',
  'averaging': '#332288',
  'nearest_neighbours': '#117733',
  'lasso': '#AA4499',
  'kernel': '#225555',
  'map': '#663333',
  'elimination': '#666633',
  'boosting': '#222255',
  'greedy_tree': '#225522',
  'bigram': '#DDCC77',
  'unigram': '#88CCEE',
  'dmmse': '#555555',
  'logistic': '#88AA55',
  'nearest_mean': '#5566AA',
  'naive_bayes': '#AA7733',
}
_OF_BASELINES = *'<>h*d8H1234+x|_.', '$m$', '$b$'
MARKERS |= dict(zip([*BASELINES.values()][2:], _OF_BASELINES, strict=True))
# Further series, which have the colour of an earlier one, have these markers.
MORE_MARKERS = '<', '>', 'h', '*', 'd', '8', 'H', 'X', 'p'
DASHES = '--', ':', '-.', (0, (8, 2)), (0, (4, 2, 1, 2, 1, 2))
# Colour-blind readers can read both: blue to yellow, in equal steps, and orange to
# purple, with white at 0.
AMOUNTS, SIGNED = 'cividis', 'PuOr'

_STYLE = {
  'font.family': ['DejaVu Sans'],  # It comes with matplotlib.
  'font.size': 10,
  'axes.titlesize': 10,
  'figure.titlesize': 10,
  'figure.labelsize': 10,
  'xtick.labelsize': 9,
  'ytick.labelsize': 9,
  'legend.fontsize': 9,
  'legend.frameon': False,
  'lines.markersize': 4,
  'axes.grid': True,
  'axes.axisbelow': True,
  'axes.edgecolor': GREY,
  'grid.color': '#e4e4e4',
  'image.cmap': AMOUNTS,
  # The background is white in dark mode, too, so that black letters stay legible.
  'savefig.facecolor': 'white',
  'savefig.transparent': False,
  'savefig.dpi': 150,
  # Type 42 is TrueType. Conferences refuse Type 3 fonts, the default of matplotlib.
  'pdf.fonttype': 42,
  'ps.fonttype': 42,
  'svg.fonttype': 'path',  # Readers need not have the font.
  'svg.hashsalt': 'icl zoo',  # Ids are then the same in each run.
}
_NO_DATE = {'svg': {'Date': None}, 'pdf': {'CreationDate': None}}


def colours_of(baselines: Iterable[str]) -> dict[str, str]:
  """Returns the colours of baselines by name; unknown ones get free colours."""
  names = [*baselines]
  known = {name: BASELINES[name] for name in names if name in BASELINES}
  free = [colour for colour in BASELINES.values() if colour not in known.values()]
  others = itertools.cycle(free or BASELINES.values())
  return {name: known.get(name) or next(others) for name in names}


_NARROW_STYLE = {
  'font.size': 8,
  'axes.titlesize': 8,
  'axes.labelsize': 8,
  'figure.titlesize': 8,
  'figure.labelsize': 8,
  'xtick.labelsize': SMALL,
  'ytick.labelsize': SMALL,
  'legend.fontsize': SMALL,
}
# A legend can stand outside of the panels, or inside of the first of them.
_OUTSIDE: dict[str, Any] = {
  'above': 'outside upper center',
  'below': 'outside lower center',
  'right': 'outside right upper',
}
_INSIDE = 'best', 'upper left', 'upper right', 'lower left', 'lower right'
LEGENDS = 'none', *_OUTSIDE, *_INSIDE
SIZES = 'column', 'page'


class Wishes(NamedTuple):
  """What a caller wants of all figures that are made in a block of `drawn_with`.

  Attributes:
    size: `column` or `page`, which are widths of a paper (3.3 and 6.75 inches), or the
      width and the height in inches. None means the size of the picture.
    legend: One of `LEGENDS`. None means the place that the picture gives it.
    style: Settings of matplotlib that are applied after those of the house style.
    names: Other names for lines of the legend, by the name that the picture gives. A
      number behind the name, as in `yq_lsa: 5.239`, stays.
  """

  size: str | tuple[float, float] | None = None
  legend: str | None = None
  style: Mapping[str, Any] = {}
  names: Mapping[str, str] = {}


_NONE = Wishes()
_wishes: contextvars.ContextVar[Wishes] = contextvars.ContextVar('wishes')


@contextlib.contextmanager
def drawn_with(wishes: Wishes) -> Iterator[None]:
  """Gives the figures of a block a size, a place of the legend and a style.

  Args:
    wishes: What is wanted of these figures.

  Yields:
    Nothing.

  Example:
    >>> from zoo.reports.plots import level, Panel, render_figure
    >>> panel = Panel('a', 'x', 'y', (level('one', 1.0, [0, 1]),))
    >>> with drawn_with(Wishes(size='column')):
    ...   float(render_figure([panel]).get_figwidth())
    3.3
  """
  token = _wishes.set(wishes)
  try:
    yield
  finally:
    _wishes.reset(token)


@contextlib.contextmanager
def in_style(wishes: Wishes | None = None) -> Iterator[None]:
  """Sets the house style in a block, whatever style its caller has set."""
  wishes = _wishes.get(_NONE) if wishes is None else wishes
  narrow = _NARROW_STYLE if _width(wishes, FIGURE_INCHES) < _NARROW else {}
  styles = ['default', _STYLE, narrow, dict(wishes.style)]
  with matplotlib.style.context(styles):
    yield


_Arguments = ParamSpec('_Arguments')
_Drawn = TypeVar('_Drawn')


def house_style(
  function: Callable[_Arguments, _Drawn],
) -> Callable[_Arguments, _Drawn]:
  """Makes a function draw in the house style, unless it is given axes as `ax`.

  Axes of the caller keep the style that the caller has set.

  Returns:
    The function, which then draws in the house style.
  """

  @functools.wraps(function)
  def draw(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Drawn:
    if kwargs.get('ax') is not None:
      return function(*args, **kwargs)
    with in_style():
      return function(*args, **kwargs)

  return draw


def wanted_names(names: Iterable[str]) -> dict[str, str]:
  """Returns the name of each line of the legend that the caller wants of it.

  Raises:
    UserError: If the caller names a line that the picture does not have.
  """
  wanted, found = _wishes.get(_NONE).names, {name: name for name in names}
  for old, new in wanted.items():
    of = [
      name for name in found if name == old or name.startswith((f'{old}:', f'{old},'))
    ]
    if not of:
      raise UserError(
        f'the legend has no line {old!r}; it has {", ".join(map(repr, found))}'
      )
    found |= {name: new + name.removeprefix(old) for name in of}
  return found


def _width(wishes: Wishes, usual: float) -> float:
  match wishes.size:
    case None:
      return usual
    case 'column':
      return COLUMN
    case 'page':
      return PAGE
    case width, _:
      return cast(float, width)
    case _:
      raise ValueError(wishes.size)


class Figure(matplotlib.figure.Figure):
  """A figure of a height and a width in inches, drawn and saved in the house style.

  Inside a block of `drawn_with` the size and the style are those of its `Wishes`. An
  SVG is the same in each run.

  Attributes:
    numbers: The numbers that the figure shows, as CSV; empty if the figure was not
      drawn by this package.
  """

  def __init__(self, height: float, width: float = FIGURE_INCHES):
    """Makes an empty figure.

    Args:
      height: The height in inches.
      width: The width in inches; 8 by default.
    """
    self._wishes, self.numbers = _wishes.get(_NONE), ''
    width = _width(self._wishes, width)
    if isinstance(self._wishes.size, tuple):
      height = self._wishes.size[1]
    elif width < _NARROW and self._wishes.size is not None:
      height *= _NARROW_HEIGHT
    with in_style():
      super().__init__(figsize=(width, height), layout='constrained')

  @property
  def has_fixed_height(self) -> bool:
    """Whether the caller has chosen the height."""
    return isinstance(self._wishes.size, tuple)

  @property
  def legend_place(self) -> str | None:
    """The place of the legend that the caller has chosen, one of `LEGENDS`."""
    return self._wishes.legend

  def draw(self, renderer: Any) -> None:
    """Draws the figure with a renderer of matplotlib."""
    with in_style(self._wishes):  # Matplotlib makes ticks as late as this.
      super().draw(renderer)

  def savefig(self, fname: Any, **options: Any) -> None:
    """Saves the figure to a path or an open file, with the options of matplotlib."""
    name = options.get('format') or str(fname)
    dates = _NO_DATE.get(name.rpartition('.')[2], {})
    options['metadata'] = dates | options.get('metadata', {})
    if isinstance(fname, pathlib.Path) and is_url(fname):
      content = io.BytesIO()
      self.savefig(content, format=fname.suffix[1:], **options)
      write_atomically(fname, content.getvalue())
      return
    with in_style(self._wishes):
      super().savefig(fname, **options)


Ax = Axes | Sequence[Axes] | np.ndarray | None  # A picture is drawn in these axes.


def given_axes(ax: Ax, number: int) -> list[Axes] | None:
  """Returns the axes that a caller gives for a picture of a number of panels.

  Args:
    ax: Axes, or as many as the picture has panels, in a list or an array.
    number: The number of panels.

  Returns:
    The axes. None if the caller gives none, so that a new figure is made.

  Raises:
    UserError: If `ax` has another number of axes.
  """
  if ax is None:
    return None
  given = [ax] if isinstance(ax, Axes) else [*np.ravel(np.asarray(ax, object))]
  if len(given) != number:
    raise UserError(
      f'ax is {len(given)} axes, and the picture has {number} '
      f'panel{"s" * (number != 1)}; give as many'
    )
  return given


def drawing_of(axes: Axes | Sequence[Axes]) -> Figure:
  """Returns the figure of axes that a function of this package has made."""
  first = axes if isinstance(axes, Axes) else axes[0]
  figure = first.get_figure(root=True)
  assert isinstance(figure, Figure)
  return figure


def columns_in(columns: int) -> int:
  """Returns how many of these columns of panels fit into a width that was chosen."""
  wishes = _wishes.get(_NONE)
  if wishes.size is None:
    return columns
  return max(min(columns, int(_width(wishes, FIGURE_INCHES) / _LEAST_PANEL)), 1)


def legend_above(figure: Figure, handles: Mapping[str, Any] | None = None) -> None:
  """Draws one legend of all axes, above them, where it hides no data.

  Args:
    figure: The figure. If the caller has chosen another place for its legend, the
      legend stands there.
    handles: The entries by their labels; None means those of the axes.
  """
  place = figure.legend_place or 'above'
  if place == 'none':
    return
  width = figure.get_figwidth() / (3 if place == 'right' else 1)
  if handles is None:
    handles = {
      label: line
      for axes in figure.axes
      for line, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
  shown = {_wrapped(label, width): line for label, line in handles.items()}
  lines = shown.values(), shown.keys()
  if place in _INSIDE:
    _as_plain_text(figure.axes[0].legend(*lines, loc=cast(Any, place)))
    return
  columns = 1 if place == 'right' else _num_columns(shown, width)
  legend = figure.legend(*lines, loc=_OUTSIDE[place], ncols=columns)
  _as_plain_text(legend)
  if place == 'right' or figure.has_fixed_height:
    return
  rows = sum(label.count('\n') + 1 for label in shown) / columns
  extra = max(rows - _USUAL_ROWS, 0) * _ROW * _legend_size() / 72
  figure.set_figheight(figure.get_figheight() + extra)


def legend_within(axes: Axes) -> None:
  """Draws the legend of a caller's own axes, where matplotlib finds place for it."""
  lines, labels = axes.get_legend_handles_labels()
  entries = dict(zip(labels, lines, strict=True))  # Each label is shown once.
  if entries:
    _as_plain_text(axes.legend(entries.values(), entries.keys()))


def legend_below(axes: Axes, width: float, tick_lines: int = 1) -> None:
  """Draws the legend of an axes below its tick labels.

  If the caller has chosen another place, the legend stands there, or is missing.

  Args:
    axes: The axes.
    width: The width of the axes, in inches.
    tick_lines: The number of lines of the tick labels.
  """
  figure = drawing_of(axes)
  if figure.legend_place == 'none':
    return
  if figure.legend_place in _INSIDE:
    _as_plain_text(axes.legend(loc=figure.legend_place))
    return
  # The distance is in inches, so that it does not depend on the height of the axes.
  below = ScaledTranslation(0, -0.35 - 0.15 * tick_lines, figure.dpi_scale_trans)
  lines, labels = axes.get_legend_handles_labels()
  labels = [_wrapped(label, width - 0.5) for label in labels]
  columns = _num_columns(labels, width - 0.5)
  legend = axes.legend(
    lines,
    labels,
    loc='upper center',
    bbox_to_anchor=(0.5, 0),
    bbox_transform=axes.transAxes + below,
    borderaxespad=0,
    ncols=columns,
  )
  _as_plain_text(legend)


def sparse_markers(
  colour: str, position: int, count: int, repeat: int = 0
) -> dict[str, Any]:
  """Returns markers for some points of a line, for readers who do not see its colour.

  Args:
    colour: The colour of the line.
    position: The position of the line in the legend. Lines at other positions have
      their markers at other points.
    count: The number of points of the line.
    repeat: How many earlier lines have the same colour. The line then has another
      marker.
  """
  step = math.ceil(count / 8)
  start = position * max(step // 4, 1) % step
  marker = MARKERS.get(colour, 'o')
  if repeat > 0:
    number = [*MARKERS].index(colour) + (repeat - 1) * len(PALETTE)
    marker = MORE_MARKERS[number % len(MORE_MARKERS)]
  return {'marker': marker, 'markevery': (start, step)}


def label_log_axes(axes: Axes) -> None:
  """Labels log axes with plain numbers at enough ticks, in place of powers of ten."""
  for axis in (axes.xaxis, axes.yaxis):
    if axis.get_scale() != 'log':
      continue
    axis.set_major_formatter(lambda x, _: _in_words(x))
    axis.set_minor_locator(NullLocator())
    low, high = sorted(axis.get_view_interval())
    if high < 3 * low:
      axis.set_major_locator(MaxNLocator(5))
    elif high < 300 * low:
      # The first ticks that fit are taken. Those of an x axis stand side by side.
      room = _room(axes) if axis is axes.xaxis else math.inf
      for parts in _PARTS if high < 20 * low else _PARTS[1:]:
        locator = LogLocator(subs=parts, numticks=30)
        ticks = [tick for tick in locator.tick_values(low, high) if low <= tick <= high]
        axis.set_major_locator(locator)
        if len(ticks) <= room:
          break
    else:
      axis.set_major_locator(LogLocator())


def _in_words(number: float) -> str:
  """Returns a number at a tick: 0.001, 20000 or, beyond these, a power of ten."""
  if number <= 0 or 1e-4 <= number < 1e5:
    return f'{number:g}'
  part, _, power = f'{number:.3e}'.partition('e')
  factor = f'{float(part):g}'
  times = '' if factor == '1' else rf'{factor} \cdot '
  return f'${times}10^{{{int(power)}}}$'


def _room(axes: Axes) -> float:
  """Returns how many numbers fit side by side below axes, before they are laid out."""
  figure = axes.get_figure(root=True)
  assert figure is not None
  size = FontProperties(size=matplotlib.rcParams['xtick.labelsize'])
  inches = axes.get_position().width * figure.get_figwidth()
  return inches * 72 / (_TICK * size.get_size_in_points())


def _num_columns(labels: Iterable[str], width: float) -> int:
  """Returns the most columns of a legend that fit into a width in inches."""
  size = _legend_size()
  font = FontProperties(family=matplotlib.rcParams['font.family'])
  lengths = [
    # The text is plain; a $ in it is a letter about as wide as an S.
    max(
      TextPath((0, 0), line.replace('$', 'S'), size, prop=font).get_extents().x1
      for line in label.split('\n')
    )
    for label in labels
  ]
  for columns in range(len(lengths), 1, -1):
    least, longer = divmod(len(lengths), columns)  # Matplotlib divides them like this.
    sizes = itertools.chain([least + 1] * longer, [least] * (columns - longer))
    rest = iter(lengths)
    longest = [max(itertools.islice(rest, rows)) for rows in sizes]
    # A line takes 2 letters, the space before its text 0.8, the space between columns
    # 2, and the margins inside and outside of the frame 4.
    if sum(longest) + size * (2.8 * columns + 2 * (columns - 1) + 4) < 72 * width:
      return columns
  return 1


def _wrapped(label: str, width: float) -> str:
  """Returns a label on as many lines as it needs in a legend of a width in inches."""
  letter = _LETTER * _legend_size() / 72
  return textwrap.fill(label, max(int((width - 0.8) / letter), 1))


def _legend_size() -> float:
  """Returns the size of the letters of a legend, in points."""
  size = matplotlib.rcParams['legend.fontsize']
  return FontProperties(size=size).get_size_in_points()


def _as_plain_text(legend: Legend) -> None:
  """Makes the names in a legend plain text, in which a $ does not begin a formula."""
  for text in legend.get_texts():
    text.set_parse_math(False)
