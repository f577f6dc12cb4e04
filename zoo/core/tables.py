"""Numbers and tables as text: for a terminal, for a page in Markdown, or as CSV."""

import csv
import dataclasses
import io
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

from zoo.core.errors import printable

_NOTHING = {'', '-'}  # what a cell without content has


# Standard errors in half of a 95 % interval.
WIDTH = 1.959963984540054


def format_estimate(mean: float | None, stderr: float | None = None) -> str:
  """A mean ± half of its 95 % interval, if its error is known; a dash for no mean."""
  if mean is None:
    return '-'
  if stderr is None:
    return f'{mean:.4f}'
  return f'{mean:.4f} ± {WIDTH * stderr:.4f}'


def format_exact(value: float | None) -> str:
  """An exact number; a dash if it is unknown."""
  return '-' if value is None else f'{value:.6f}'


def format_seconds(seconds: float) -> str:
  """Returns a time in seconds, minutes or hours."""
  for unit, length in ('h', 3600), ('min', 60):
    if seconds >= 1.5 * length:
      return f'{seconds / length:.3g} {unit}'
  return f'{seconds:.0f} s'


def format_table(
  rows: Sequence[Sequence[str]], header: Sequence[str] = (), indent: int = 0
) -> str:
  """Cells in columns, two spaces apart; only the first column is left-aligned.

  All rows, and the header if there is one, have the same number of cells. What a
  terminal would not print but obey is escaped. Below a header, columns after the first
  without any content, which may be dashes, are left out.
  """
  lines = [header, *rows] if header else rows
  if header and rows:
    first, *others = zip(*lines, strict=True)
    others = [column for column in others if not {*column[1:]} <= _NOTHING]
    lines = [*zip(first, *others, strict=True)]
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


@dataclasses.dataclass(frozen=True)
class Table:
  """Rows of cells, each as long as the header if there is one."""

  rows: Sequence[Sequence[str]]
  header: Sequence[str] = ()
  title: str = ''
  note: str = ''

  def text(self) -> str:
    """The header and the rows for a terminal."""
    return format_table(self.rows, self.header)

  def markdown(self, right: Container[int] = ()) -> str:
    """The header and the rows in Markdown; columns of these numbers end flush right."""
    rule = ['--:' if i in right else '---' for i in range(len(self.header))]
    lines = [self.header, rule, *self.rows]
    return '\n'.join(f'| {" | ".join(line)} |' for line in lines)


def to_csv(columns: Iterable[str], rows: Iterable[Mapping[str, Any]]) -> str:
  """Rows by column as CSV, with an empty cell where a row has no value."""
  text = io.StringIO()
  writer = csv.DictWriter(text, [*columns], lineterminator='\n')
  writer.writeheader()
  writer.writerows(rows)
  return text.getvalue()
