"""Tables: one list of rows for a terminal, a page in Markdown, HTML and CSV."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from zoo.core.tables import format_table


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

  def markdown(self, left: int = 1) -> str:
    """The header and the rows in Markdown; all but the `left` first columns are right.

    A `|` in a cell is escaped.
    """
    rule = ['---'] * left + ['--:'] * (len(self.header) - left)
    cells = [[cell.replace('|', r'\|') for cell in row] for row in self.rows]
    lines = [self.header, rule, *cells]
    return '\n'.join(f'| {" | ".join(line)} |' for line in lines)


def to_csv(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
  """Rows by column as CSV, with an empty cell where a row has no value."""
  text = io.StringIO()
  writer = csv.DictWriter(text, columns, lineterminator='\n')
  writer.writeheader()
  writer.writerows(rows)
  return text.getvalue()
