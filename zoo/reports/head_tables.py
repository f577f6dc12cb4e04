"""Tables of heads as pictures: a row for each layer, a column for each head."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize

from zoo.core.errors import UserError
from zoo.measure.intervals import Estimate, Interval
from zoo.measure.table import name_of_share
from zoo.reports.heat_maps import HeatMap, plot_heat_maps
from zoo.reports.style import AMOUNTS, SIGNED

# What the colours of a column are, by its name in the tables of zoo.probing.
_UNITS = {
  'recovered': 'share of the gap that the clean value recovers',
  'zero': 'share of the gap that is lost with 0 in its place',
  'mean': 'share of the gap that is lost with its mean over prompts',
  'resample': "share of the gap that is lost with another prompt's value",
  'previous': 'share of attention on the token before',
  'duplicate': 'share of attention on earlier same tokens',
  'induction': 'share of attention right after earlier same tokens',
  'label_correlation': 'correlation with the attended labels',
  'correlation': 'correlation with the matched heads',
  'lowest': 'lowest correlation with a matched head',
  'unmatched': 'correlation with all other heads',
  'share': 'share of the gap, mean over models',
}
_INCHES_OF_LAYER, _INCHES_OF_HEAD = 0.5, 0.85
_LEAST_INCHES = 4.5  # A narrower picture has no room for the label of its colours.


def plot_head_table(
  table: Any, column: str, *, title: str = '', ax: Axes | None = None
) -> Axes:
  """Draws one column of a table of heads: layers from top to bottom, heads across.

  Each entry has its number, and below it ± as in the table. An entry without a number
  is white, with a dash. Rows of the table that are not of a head are left out.

  Args:
    table: A table with a row for each head, such as those of `zoo.probing.effects` with
      `heads=True`, `path_effects`, `head_scores` and `across_seeds`.
    column: The name of a column with numbers, such as 'recovered'.
    title: The title of the picture.
    ax: The axes. None makes a new figure.

  Returns:
    The axes.

  Raises:
    UserError: If no row is of a head; if the column is unknown, or its entries are not
      numbers; or if two rows are of the same head, as in a table by token.

  Example:
    >>> from zoo.measure.intervals import Estimate
    >>> from zoo.probing import Matched, Rows
    >>> from zoo.reports.head_tables import plot_head_table
    >>> share = Estimate(0.25, 0.01)
    >>> row = Matched('layers.0.mixer.heads', 0, 'head 1', None, 0.9, None, share, True)
    >>> axes = plot_head_table(Rows([row]), 'share')
    >>> axes.texts[0].get_text().split()
    ['0.25', '±', '0.02']
  """
  rows = [row for row in _rows_of(table) if getattr(row, 'head', None) is not None]
  if not rows:
    raise UserError(
      'the table has no rows of heads; zoo.probing.effects has them with heads=True'
    )
  known = [name for name in rows[0]._fields if _is_number(rows, name)]
  if column not in known:
    raise UserError(f'the column is {column!r}; it must be one of {", ".join(known)}')
  layers = [*dict.fromkeys(_layer_of(row) for row in rows)]
  shape = len(layers), 1 + max(row.head for row in rows)
  values, texts = np.full(shape, math.nan), np.full(shape, '', object)
  seen = set()
  for row in rows:
    place = layers.index(_layer_of(row)), row.head
    if place in seen:
      raise UserError(
        f'the table has several rows of head {row.head} of {_layer_of(row)}; a picture '
        'of layers and heads has room for one: leave out tokens'
      )
    seen.add(place)
    entry = getattr(row, column)
    values[place] = _mean_of(entry)
    texts[place] = _in_words(entry)
  limit = float(np.nanmax(np.abs(values), initial=0.0)) or 1.0
  is_signed = bool((np.round(values, 2) < 0).any())
  has_errors = any(
    isinstance(getattr(row, column), Estimate | Interval) for row in rows
  )
  heat_map = HeatMap(
    values,
    Normalize(-limit if is_signed else 0.0, limit),
    _UNITS.get(column, column.replace('_', ' ')) + _errors(table, has_errors),
    title,
    rows={i: _named(layer) for i, layer in enumerate(layers)},
    columns={i: f'head {i}' for i in range(shape[1])},
    texts=texts.tolist(),
  )
  height = 1.3 + _INCHES_OF_LAYER * shape[0]
  width = max(_LEAST_INCHES, 1.2 + _INCHES_OF_HEAD * shape[1])
  colours = SIGNED if is_signed else AMOUNTS
  return plot_heat_maps([[heat_map]], height, width, colours=colours, ax=ax)[0]


def _rows_of(table: Any) -> Sequence[Any]:
  """Returns the rows of a result that has `rows`, or of a list of them."""
  return getattr(table, 'rows', table)


def _layer_of(row: Any) -> str:
  """Returns the site or the layer of a row; a path has it as its sender."""
  for name in ('site', 'layer', 'sender'):
    if hasattr(row, name):
      return getattr(row, name)
  raise UserError(
    f'a row of the table is of type {type(row).__name__}; it must have a field site, '
    'layer or sender beside head'
  )


def _is_number(rows: Sequence[Any], column: str) -> bool:
  """Says whether entries of a column are numbers, of which some may be None."""
  kinds = int | float | np.number | Estimate | Interval
  entries = [getattr(row, column) for row in rows]
  known = [entry for entry in entries if entry is not None]
  is_count = column in ('head', 'token')
  return (
    not is_count
    and bool(known)
    and all(isinstance(entry, kinds) and not isinstance(entry, bool) for entry in known)
  )


def _mean_of(entry: Any) -> float:
  if entry is None:
    return math.nan
  return entry.mean if isinstance(entry, Estimate | Interval) else float(entry)


def _in_words(entry: Any) -> str:
  """Returns a number to two decimals, and ± below it where it is known."""
  if entry is None:
    return '–'
  mean = f'{round(_mean_of(entry), 2) + 0.0:.2f}'  # −0.00 becomes 0.00
  if not isinstance(entry, Estimate | Interval) or math.isnan(entry.half):
    return mean
  return f'{mean}\n± {entry.half:.2f}' if entry.half >= 0.005 else f'{mean}\n± <0.01'


def _errors(table: Any, has_errors: bool) -> str:
  """Returns what ± is, in a table that has it."""
  if not has_errors:
    return ''
  gap = getattr(table, 'gap', None)
  return f', {"± t·s.e." if gap is None else name_of_share(gap)}'


def _named(layer: str) -> str:
  """Returns `layer 0` for the sites of the layer 0; other names stay."""
  found = re.fullmatch(r'(?:\w+\.)?layers\.(\d+)(?:\.mixer)?(?:\.heads)?(@\d+)?', layer)
  return layer if found is None else f'layer {found[1]}{found[2] or ""}'
