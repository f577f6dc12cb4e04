"""Tables: one list of rows for a terminal, a page in Markdown, and HTML."""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Sequence

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
