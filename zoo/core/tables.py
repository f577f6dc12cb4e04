"""Numbers and tables as text: for a terminal, for a page in Markdown, or as CSV."""

import csv
import dataclasses
import io
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

from zoo.core.errors import printable

_NOTHING = {'', '-'}  # A cell without content has one of these texts.


# Half of a 95 % interval has this many standard errors.
Z_95 = 1.959963984540054


def format_estimate(mean: float | None, stderr: float | None = None) -> str:
  """Returns a mean ± half of its 95 % interval, if its standard error is known.

  A dash stands for no mean.
  """
  if mean is None:
    return '-'
  if stderr is None:
    return f'{mean:.4f}'
  return f'{mean:.4f} ± {Z_95 * stderr:.4f}'


def format_exact(value: float | None) -> str:
  """Returns a number with six decimals; a dash if it is unknown."""
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
  """Returns cells in columns, two spaces apart; only the first column is left-aligned.

  Args:
    rows: Rows of cells, all of the same number. Characters that control a terminal are
      escaped.
    header: A cell above each column. With a header, columns after the first that have
      no content, or only dashes, are left out.
    indent: The number of spaces before each line.
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
  """A table of text, which prints for a terminal or in Markdown.

  Args:
    rows: Rows of cells, each as long as the header if there is one.
    header: A cell above each column.
    title: The title.
    note: A note on the table.

  Example:
    >>> table = zoo.reports.Table([['gd', '5.24']], header=['model', 'risk'])
    >>> print(table.text())
    model  risk
    gd     5.24
  """

  rows: Sequence[Sequence[str]]
  header: Sequence[str] = ()
  title: str = ''
  note: str = ''

  def text(self) -> str:
    """Returns the header and the rows for a terminal."""
    return format_table(self.rows, self.header)

  def markdown(self, right: Container[int] = ()) -> str:
    """Returns the header and the rows in Markdown.

    Args:
      right: The numbers of the columns that are aligned on the right, from 0.
    """
    rule = ['--:' if i in right else '---' for i in range(len(self.header))]
    lines = [self.header, rule, *self.rows]
    return '\n'.join(f'| {" | ".join(line)} |' for line in lines)


def to_csv(columns: Iterable[str], rows: Iterable[Mapping[str, Any]]) -> str:
  """Returns rows, each a dict by column, as CSV; a missing value is an empty cell."""
  text = io.StringIO()
  writer = csv.DictWriter(text, [*columns], lineterminator='\n')
  writer.writeheader()
  writer.writerows(rows)
  return text.getvalue()
