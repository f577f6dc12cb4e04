"""Rows of results, which print as a table and can be exported to pandas and CSV."""

from __future__ import annotations

import dataclasses
import math
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
from zoo.core.tables import format_mean, format_table, to_csv
from zoo.host.files import workdir_path, write_atomically
from zoo.measure.intervals import Estimate, Interval, half_of
from zoo.measure.ratio import Share, is_sure

if TYPE_CHECKING:
  import pandas as pd  # pyright: ignore[reportMissingImports]

_Row = TypeVar('_Row')
Cell: TypeAlias = str | bool | int | float | None
_MOST_PRINTED_ROWS = 40
# From this number of prompts on, mean ± half contains the mean of a skewed loss in 93 %
# of cases or more. With fewer, ± is not called a 95 % interval.
ENOUGH = 1024
_FIELLER = '± 3 s.e.'  # This stands after ± in columns of such shares.


class Rows(list[_Row]):
  """A list of rows, which are all NamedTuples or all dataclasses of one class.

  Functions that measure something by site, layer or length return it, such as
  `zoo.probing.head_scores`. It is a list, and it prints as a table, in which the number
  after ± is `half` of an `Estimate`. `records` returns the rows as dictionaries,
  `to_frame` as a data frame of pandas, and `to_csv` writes them to a file. There an
  estimate has three columns, such as `recovered`, its standard error
  `recovered_stderr`, and the number of draws `recovered_num`, which is None if it is
  not known. `half` follows from the last two, by Student's t with one degree of freedom
  less than draws. An `Interval`, such as that of a share, has half of its width in
  place of the standard error, and its confidence: `share`, `share_half` and
  `share_confidence`. Fields that are arrays are left out.

  Args:
    rows: The rows.
    empty: What is printed in place of a table without rows: why there are none.

  Example:
    >>> import dataclasses
    >>> from zoo.measure.intervals import Estimate
    >>> @dataclasses.dataclass
    ... class Loss:
    ...   name: str
    ...   loss: Estimate
    >>> rows = Rows([Loss('a', Estimate(1.0, 0.1, num=64))])
    >>> print(rows)
    name           loss
    a     1.000 ± 0.200
    >>> rows.records()
    [{'name': 'a', 'loss': 1.0, 'loss_stderr': 0.1, 'loss_num': 64}]
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
          if error == 'half':
            # `half` of an estimate is that of its 95 % interval.
            confidence = getattr(value, 'confidence', 0.95)
            record[f'{name}_confidence'] = None if value is None else confidence
          else:
            # Infinity stands for a number that is not known.
            num = math.inf if value is None else value.num
            record[f'{name}_num'] = num if math.isfinite(num) else None
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


class WithRows:
  """The base class of results that have `rows`.

  Such a result prints as a table of its rows, and has the methods `records`, `to_frame`
  and `to_csv` of `Rows`. A subclass may have a `footer`, a line that is printed below
  the table.
  """

  footer = ''

  def records(self: _HasRows) -> list[dict[str, Cell]]:
    """Returns the rows as dictionaries; an estimate has three entries."""
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


def plus_minus(estimate: Estimate | Interval | None) -> str:
  """Returns a mean ± half of its interval, to three decimals.

  A dash stands for None, and for an error that is unknown. Small numbers have
  exponents, as `format_mean` says.
  """
  return '-' if estimate is None else format_mean(estimate.mean, estimate.half, 3)


def format_estimate(
  mean: float | None, stderr: float | None = None, num: int | float = math.inf
) -> str:
  """Returns a mean of a file ± half of its interval, if its error is known.

  A dash stands for no mean. There are four decimals unless the numbers are small, as
  `format_mean` says. `num` is as in `half_of`.
  """
  if mean is None:
    return '-'
  return format_mean(mean, None if stderr is None else half_of(stderr, num), 4)


def name_of_half(num: int | float) -> str:
  """Returns what stands after ± in a table of means over prompts.

  It is half of a 95 % interval if there are enough prompts: '± 95 %'. With fewer the
  interval of a skewed loss is too narrow. The name is then '± t·s.e.', the standard
  error times Student's t. Squared differences of predictions have heavier tails; ± of
  their means and shares always has this name.

  Args:
    num: The number of prompts, of the mean that has the fewest. Means over seeds are
      nearly normal, so that they need no more than two.

  Example:
    >>> name_of_half(4096), name_of_half(256)
    ('± 95 %', '± t·s.e.')
  """
  return '± 95 %' if num >= ENOUGH else '± t·s.e.'


def name_of_share(gap: Estimate) -> str:
  """Returns what stands after ± in a table of shares of a gap, as `name_of_half` does.

  If the gap is not sure, the shares have Fieller's set at 3 standard errors.
  """
  return name_of_half(gap.num) if is_sure(gap) else _FIELLER


def name_of_own(share: Share) -> str:
  """Returns what stands after ± in a column of shares like this one, of one gap.

  It is what `name_of_share` returns for that gap, which need not be known.
  """
  return _FIELLER if isinstance(share, Interval) else name_of_half(share.num)
