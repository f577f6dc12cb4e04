"""Tables as plain text, for a terminal."""

from collections.abc import Sequence


def format_table(
  rows: Sequence[Sequence[str]], header: Sequence[str] = (), indent: int = 0
) -> str:
  """Cells in columns, two spaces apart: the first column to the left, others right.

  All rows, and the header if there is one, have as many cells.
  """
  lines = [header, *rows] if header else list(rows)
  widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
  return '\n'.join(
    ' ' * indent
    + '  '.join(
      cell.rjust(width) if place else cell.ljust(width)
      for place, (cell, width) in enumerate(zip(line, widths, strict=True))
    ).rstrip()
    for line in lines
  )
