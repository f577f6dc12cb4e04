"""Numbers and tables as text: for a terminal, for a page in Markdown, or as CSV."""

import csv
import dataclasses
import io
import math
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

from zoo.core.errors import printable

_NOTHING = {'', '-'}  # A cell without content has one of these texts.


_ROUNDING = 1e-10  # Smaller numbers are shown as 0.
_FLOAT32 = 2.0**-24  # A number is rounded by at most this share of it.


def format_exact(value: float | None) -> str:
  """Returns a number with six decimals; a dash if it is unknown.

  A number that is so small that six decimals would show less than two digits of it has
  an exponent.
  """
  return '-' if value is None else format_mean(value, None, 6)


def format_mean(mean: float, half: float | None, decimals: int) -> str:
  """Returns a mean, and half of its interval if it is known.

  A small error is not shown as 0: both numbers then get so many decimals that half of
  the interval has two digits, or exponents if the mean is small, too. A small number
  that has no error gets an exponent. A mean that is far below its own error may be
  rounded to 0. A number below 1e-10 counts as rounding, and as 0, and so does an error
  below the rounding of the mean in float32.

  Args:
    mean: The mean.
    half: Half of the width of its interval. None leaves it out, and NaN is a dash.
    decimals: The number of decimals of numbers that are not small.

  Example:
    >>> format_mean(0.25, 0.01, 3), format_mean(0.25, 0.00012, 3)
    ('0.250 ± 0.010', '0.25000 ± 0.00012')
    >>> format_mean(0.0002, None, 3), format_mean(0.0002, 0.00001, 3)
    ('2.00e-04', '2.00e-04 ± 1.00e-05')
  """
  kind = f'.{decimals}f'
  least = max(_ROUNDING, _FLOAT32 * abs(mean))
  error = half if half is not None and half >= least else 0.0  # NaN counts as 0.
  if 0 < error < 0.5 * 10.0**-decimals:
    digits = 1 - math.floor(math.log10(error))
    kind = f'.{digits}f' if abs(mean) >= 1e-3 else '.2e'
  elif not error and _ROUNDING <= abs(mean) < 10 * 10.0**-decimals:
    kind = '.2e'
  if half is None:
    return f'{mean:{kind}}'
  return f'{mean:{kind}} ± {"–" if math.isnan(half) else f"{half:{kind}}"}'


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
