"""Rows of results, which print as a table and can be exported to pandas and CSV."""

from __future__ import annotations

import dataclasses
import numbers
import os
from collections.abc import Iterable, Sequence
from typing import (
  TYPE_CHECKING,
  Any,
  Protocol,
  TypeAlias,
  TypeVar,
  runtime_checkable,
)

import numpy as np

from zoo.core.errors import UserError
from zoo.core.tables import format_table, to_csv
from zoo.host.files import workdir_path, write_atomically
from zoo.measure.statistics import Estimate, Interval, plus_minus

if TYPE_CHECKING:
  import pandas as pd  # pyright: ignore[reportMissingImports]

_Row = TypeVar('_Row')
Cell: TypeAlias = str | bool | int | float | None
_MOST_PRINTED_ROWS = 40


class Rows(list[_Row]):
  """A list of rows, which are all NamedTuples or all dataclasses of one class.

  Functions that measure something by site, layer or length return it, such as
  `zoo.probing.head_scores`. It is a list, and it prints as a table, in which the number
  after ± is `half` of an `Estimate`. `records` returns the rows as dictionaries,
  `to_frame` as a data frame of pandas, and `to_csv` writes them to a file. There an
  estimate has two columns, such as `recovered` and its standard error
  `recovered_stderr`. An `Interval`, such as that of a share, has half of its width in
  place of the standard error: `share` and `share_half`. Fields that are arrays are left
  out.

  Args:
    rows: The rows.
    empty: What is printed in place of a table without rows: why there are none.

  Example:
    >>> import dataclasses
    >>> from zoo.measure.statistics import Estimate
    >>> @dataclasses.dataclass
    ... class Loss:
    ...   name: str
    ...   loss: Estimate
    >>> rows = Rows([Loss('a', Estimate(1.0, 0.1))])
    >>> print(rows)
    name           loss
    a     1.000 ± 0.196
    >>> rows.records()
    [{'name': 'a', 'loss': 1.0, 'loss_stderr': 0.1}]
  """

  def __init__(self, rows: Iterable[_Row] = (), empty: str = ''):
    super().__init__(rows)
    self.empty = empty

  def records(self) -> list[dict[str, Cell]]:
    """Returns the rows as dictionaries with the same keys; the values are plain.

    The values are numbers, strings and None.
    """
    columns = _columns(self)
    records = []
    for row in self:
      record: dict[str, Cell] = {}
      for name, error in columns.items():
        value = getattr(row, name)
        if error is not None:
          mean = None if value is None else value.mean
          width = None if value is None else getattr(value, error)
          record |= {name: mean, f'{name}_{error}': width}
        else:
          record[name] = value.item() if isinstance(value, np.generic) else value
      records.append(record)
    return records

  def to_frame(self) -> pd.DataFrame:
    """Returns the records as a data frame of pandas.

    Raises:
      UserError: If pandas is not installed.
    """
    try:
      import pandas as pd  # pyright: ignore[reportMissingImports]
    except ImportError as error:
      raise UserError(
        'to_frame needs pandas, which is not installed: pip install pandas; to_csv and '
        'records need nothing'
      ) from error
    return pd.DataFrame(self.records())

  def to_csv(self, path: str | os.PathLike[str]) -> None:
    """Writes the records as CSV.

    Args:
      path: The file, which is replaced if it exists.

    Raises:
      UserError: If the file cannot be written.
    """
    file = workdir_path(path)
    records = self.records()
    try:
      file.parent.mkdir(parents=True, exist_ok=True)
      write_atomically(file, to_csv(records[0] if records else [], records))
    except OSError as error:
      raise UserError(f'{path} cannot be written: {error.strerror}') from error

  def __str__(self) -> str:
    if not self:
      return self.empty
    columns = [*_columns(self)]
    lines = [[_shown(getattr(row, name)) for name in columns] for row in self]
    table = format_table(lines[:_MOST_PRINTED_ROWS], columns)
    more = len(lines) - _MOST_PRINTED_ROWS
    return f'{table}\n… and {more} more rows' if more > 0 else table

  __repr__ = __str__


@runtime_checkable
class _HasRows(Protocol):
  @property
  def footer(self) -> str: ...
  @property
  def rows(self) -> Rows[Any]: ...


class Tabular:
  """The base class of results that have `rows`.

  Such a result prints as a table of its rows, and has the methods `records`, `to_frame`
  and `to_csv` of `Rows`. A subclass may have a `footer`, a line that is printed below
  the table.
  """

  footer = ''

  def records(self: _HasRows) -> list[dict[str, Cell]]:
    """Returns the rows as dictionaries; an estimate has two entries."""
    return self.rows.records()

  def to_frame(self: _HasRows) -> pd.DataFrame:
    """Returns the records as a data frame of pandas.

    Raises:
      UserError: If pandas is not installed.
    """
    return self.rows.to_frame()

  def to_csv(self: _HasRows, path: str | os.PathLike[str]) -> None:
    """Writes the records as CSV.

    Args:
      path: The file, which is replaced if it exists.

    Raises:
      UserError: If the file cannot be written.
    """
    self.rows.to_csv(path)

  def __str__(self: _HasRows) -> str:
    return f'{self.rows}\n{self.footer}' if self.footer else str(self.rows)


def _columns(rows: Sequence[Any]) -> dict[str, str | None]:
  """Returns the fields that are columns; for estimates, what says how sure they are.

  This is `stderr`, or `half` for numbers whose interval is not that of a mean.
  """
  if not rows:
    return {}
  first = rows[0]
  names = getattr(first, '_fields', None) or [
    field.name for field in dataclasses.fields(first)
  ]
  columns: dict[str, str | None] = {}
  for name in names:
    values = [getattr(row, name) for row in rows]
    if any(isinstance(value, Interval) for value in values):
      columns[name] = 'half'
    elif any(isinstance(value, Estimate) for value in values):
      columns[name] = 'stderr'
    elif all(value is None or isinstance(value, _CELLS) for value in values):
      columns[name] = None
  return columns


_CELLS = str, bool, numbers.Number, np.generic


def _shown(value: Any) -> str:
  if value is None or isinstance(value, Estimate | Interval):
    return plus_minus(value)
  if isinstance(value, float):
    return f'{value:.4g}'
  return str(value)
