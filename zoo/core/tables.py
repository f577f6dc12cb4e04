"""Numbers and tables as plain text, for a terminal or as CSV."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from zoo.core.errors import printable


def format_estimate(mean: float | None, standard_error: float | None) -> str:
  """A mean with its standard error, if that is known; a dash for no mean."""
  if mean is None:
    return '-'
  if standard_error is None:
    return f'{mean:.4f}'
  return f'{mean:.4f} ± {standard_error:.4f}'


def format_exact(value: float | None) -> str:
  """An exact number; a dash if it is unknown."""
  return '-' if value is None else f'{value:.6f}'


def format_table(
  rows: Sequence[Sequence[str]], header: Sequence[str] = (), indent: int = 0
) -> str:
  """Cells in columns, two spaces apart; only the first column is left-aligned.

  All rows, and the header if there is one, have the same number of cells. What a
  terminal would not print but obey is escaped.
  """
  lines = [header, *rows] if header else rows
  lines = [[printable(cell) for cell in line] for line in lines]
  widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
  return '\n'.join(
    ' ' * indent
    + '  '.join(
      cell.rjust(width) if column else cell.ljust(width)
      for column, (cell, width) in enumerate(zip(line, widths, strict=True))
    ).rstrip()
    for line in lines
  )


def to_csv(columns: Iterable[str], rows: Iterable[Mapping[str, Any]]) -> str:
  """Rows by column as CSV, with an empty cell where a row has no value."""
  text = io.StringIO()
  writer = csv.DictWriter(text, [*columns], lineterminator='\n')
  writer.writeheader()
  writer.writerows(rows)
  return text.getvalue()
