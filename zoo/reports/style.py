"""The house style of all figures: sizes, letters, colours, legends and files.

The README shows a picture of `WIDTH` inches 830 pixels wide, and letters of `SMALL`
points, the smallest, in 10 pixels.
"""

import functools
import io
import itertools
import math
import pathlib
import textwrap
from collections.abc import Iterable
from typing import Any

import matplotlib.figure
import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.font_manager import FontProperties
from matplotlib.legend import Legend
from matplotlib.textpath import TextPath
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator
from matplotlib.transforms import ScaledTranslation

from zoo.host.files import is_url, write_atomically

WIDTH = 8.0  # inches
SMALL = 7.0  # points
# Of legends: inches of a wide letter and of a row, and the rows that figures allow for.
_LETTER, _ROW, _USUAL_ROWS = 0.09, 0.18, 3

# Okabe and Ito's colours, which colour-blind readers can distinguish.
BLUE, VERMILION, GREEN = '#0072B2', '#D55E00', '#009E73'
# The rest of them, but for yellow, which is hard to see on white.
PURPLE, ORANGE, SKY, BLACK = '#CC79A7', '#E69F00', '#56B4E9', '#000000'
GREY = '#777777'  # of references
PALETTE = BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY  # of series, in this order
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
# Of further series, which have the colour of an earlier one.
MORE_MARKERS = '<', '>', 'h', '*', 'd', '8', 'H', 'X', 'p'
DASHES = '--', ':', '-.', (0, (8, 2)), (0, (4, 2, 1, 2, 1, 2))
# Both can be told apart by the colour-blind: blue to yellow, in equal steps; and orange
# to purple, with white at 0.
AMOUNTS, SIGNED = 'cividis', 'PuOr'

_STYLE = {
  'font.family': ['DejaVu Sans'],  # comes with matplotlib
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
  # TrueType: conferences refuse the Type 3 fonts that matplotlib writes by default.
  'pdf.fonttype': 42,
  'ps.fonttype': 42,
  'svg.fonttype': 'path',  # readers need not have the font
  'svg.hashsalt': 'icl zoo',  # so that ids are the same in each run
}
_NO_DATE = {'svg': {'Date': None}, 'pdf': {'CreationDate': None}}


def colours_of(baselines: Iterable[str]) -> dict[str, str]:
  """The colours of baselines by name; unknown ones have those that others do not."""
  names = [*baselines]
  known = {name: BASELINES[name] for name in names if name in BASELINES}
  free = [colour for colour in BASELINES.values() if colour not in known.values()]
  others = itertools.cycle(free or BASELINES.values())
  return {name: known.get(name) or next(others) for name in names}


# `@in_style()` makes a function draw in this style, whatever style its caller has set.
in_style = functools.partial(matplotlib.style.context, ['default', _STYLE])


class Figure(matplotlib.figure.Figure):
  """A figure of a height and a width in inches, drawn and saved in the house style.

  An SVG is the same in each run.
  """

  def __init__(self, height: float, width: float = WIDTH):
    with in_style():
      super().__init__(figsize=(width, height), layout='constrained')

  def draw(self, renderer: Any) -> None:
    """Draws the figure with a renderer of matplotlib."""
    with in_style():  # ticks are made as late as this
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
    with in_style():
      super().savefig(fname, **options)


def legend_above(figure: Figure) -> None:
  """One legend of all axes, above them, where it hides no data."""
  shown = {
    _wrapped(label, figure.get_figwidth()): line
    for axes in figure.axes
    for line, label in zip(*axes.get_legend_handles_labels(), strict=True)
  }
  columns = _num_columns(shown, figure.get_figwidth())
  lines = shown.values(), shown.keys()
  legend = figure.legend(*lines, loc='outside upper center', ncols=columns)
  _as_plain_text(legend)
  rows = sum(label.count('\n') + 1 for label in shown) / columns
  extra = max(rows - _USUAL_ROWS, 0) * _ROW
  figure.set_figheight(figure.get_figheight() + extra)


def legend_below(axes: Axes, width: float, tick_lines: int = 1) -> None:
  """The legend of an axes of a width in inches, below tick labels of some lines."""
  figure = axes.get_figure(root=True)
  assert figure is not None
  # In inches, so that it is clear of the labels however high the axes is.
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
  """Markers at some points of a line of `count`, for readers who do not see its colour.

  Lines at other positions in the legend have their markers at other points. The
  `repeat`-th line that reuses a colour has another marker.
  """
  step = math.ceil(count / 8)
  start = position * max(step // 4, 1) % step
  marker = MARKERS.get(colour, 'o')
  if repeat > 0:
    number = [*MARKERS].index(colour) + (repeat - 1) * len(PALETTE)
    marker = MORE_MARKERS[number % len(MORE_MARKERS)]
  return {'marker': marker, 'markevery': (start, step)}


def label_log_axes(axes: Axes) -> None:
  """Plain numbers at enough ticks, where log axes have powers of ten by default."""
  for axis in (axes.xaxis, axes.yaxis):
    if axis.get_scale() != 'log':
      continue
    axis.set_major_formatter('{x:g}')
    axis.set_minor_locator(NullLocator())
    low, high = sorted(axis.get_view_interval())
    if high < 3 * low:
      axis.set_major_locator(MaxNLocator(5))
    elif high < 300 * low:
      parts = (1, 1.5, 2, 3, 5, 7) if high < 20 * low else (1, 2, 5)
      axis.set_major_locator(LogLocator(subs=parts, numticks=30))


def _num_columns(labels: Iterable[str], width: float) -> int:
  """The most columns of a legend that fit into a width in inches."""
  size = _STYLE['legend.fontsize']
  font = FontProperties(family=_STYLE['font.family'])
  lengths = [
    # Plain text, in which a $ is a letter of about that width.
    max(
      TextPath((0, 0), line.replace('$', 'S'), size, prop=font).get_extents().x1
      for line in label.split('\n')
    )
    for label in labels
  ]
  for columns in range(len(lengths), 1, -1):
    least, longer = divmod(len(lengths), columns)  # as matplotlib divides them
    sizes = itertools.chain([least + 1] * longer, [least] * (columns - longer))
    rest = iter(lengths)
    longest = [max(itertools.islice(rest, rows)) for rows in sizes]
    # In sizes of a letter: 2 for a line, 0.8 before its text, 2 between columns, and
    # margins inside and outside of the frame.
    if sum(longest) + size * (2.8 * columns + 2 * (columns - 1) + 4) < 72 * width:
      return columns
  return 1


def _wrapped(label: str, width: float) -> str:
  """A label on as many lines as it needs in a legend of a width in inches."""
  return textwrap.fill(label, max(int((width - 0.8) / _LETTER), 1))


def _as_plain_text(legend: Legend) -> None:
  """Names of models, folders and series, in which a $ does not begin a formula."""
  for text in legend.get_texts():
    text.set_parse_math(False)
