"""Tables: one list of rows for a terminal, a page in Markdown, HTML and CSV."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Container, Iterable, Mapping, Sequence
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

  def markdown(self, right: Container[int] = ()) -> str:
    """The header and the rows in Markdown; columns of these numbers end flush right."""
    rule = ['--:' if i in right else '---' for i in range(len(self.header))]
    lines = [self.header, rule, *self.rows]
    return '\n'.join(f'| {" | ".join(line)} |' for line in lines)


def to_csv(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
  """Rows by column as CSV, with an empty cell where a row has no value."""
  text = io.StringIO()
  writer = csv.DictWriter(text, columns, lineterminator='\n')
  writer.writeheader()
  writer.writerows(rows)
  return text.getvalue()
