"""Tables: from a CSV file, or from those that ship with scikit-learn."""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import io
import math
import pathlib
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Shaped

from zoo.core.errors import UserError, check_name, shown
from zoo.host.files import read_text

CLASSIFICATION, REGRESSION = KINDS = 'classification', 'regression'
SHIPPED = 'diabetes', 'iris', 'wine', 'breast_cancer'
# Cells with these texts are missing values. Upper and lower case are the same.
_MISSING = {'', '?', 'na', 'n/a', 'nan', 'none', 'null'}
# A number. Python's `float` would also read 1_1 as 11, and digits of other scripts.
_NUMBER = re.compile(r'[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|inf(inity)?)', re.ASCII)
_TRUTHS = {'true': 1.0, 'false': 0.0}
_DELIMITERS = ',', ';', '\t'
# A target of integers with more than _MOST_UNCLEAR different values is numbers, and one
# with at most _MOST_CLASSES is classes. Between the two the user must say which it is.
_MOST_UNCLEAR, _MOST_CLASSES = 20, 2


@dataclasses.dataclass(frozen=True)
class Table:
  """Rows with features and a label.

  Attributes:
    name: The name of the table.
    x: The features. A missing one is NaN.
    y: The labels: numbers for regression, texts or integers for classification.
    columns: The names of the features.
    target: The name of the label.
    kind: 'classification' or 'regression'.
  """

  name: str
  x: Float[np.ndarray, 'n d']
  y: Shaped[np.ndarray, ' n']
  columns: tuple[str, ...]
  target: str
  kind: str

  @property
  def classes(self) -> list[Any]:
    """The different labels, sorted."""
    return np.unique(self.y).tolist()

  @property
  def incomplete(self) -> list[str]:
    """The names of the features with missing values."""
    return _chosen(self.columns, np.isnan(self.x))

  @property
  def digest(self) -> str:
    """A digest of the features and the labels."""
    sha = hashlib.sha256(repr((self.x.shape, self.kind, self.y.tolist())).encode())
    sha.update(np.ascontiguousarray(self.x).tobytes())
    return sha.hexdigest()


def shipped(name: str) -> Table:
  """Returns a table that ships with scikit-learn.

  Args:
    name: A name of `SHIPPED`.

  Raises:
    UserError: For another name.
  """
  from sklearn import datasets

  check_name('dataset', name, SHIPPED)
  bunch = getattr(datasets, f'load_{name}')()
  x = np.asarray(bunch.data, np.float64)
  columns = tuple(map(str, bunch.feature_names))
  if name == 'diabetes':
    y = np.asarray(bunch.target, np.float64)
    return Table(name, x, y, columns, 'disease progression', REGRESSION)
  y = np.asarray(bunch.target_names)[bunch.target].astype(str)
  return Table(name, x, y, columns, 'class', CLASSIFICATION)


def read_table(path: pathlib.Path, target: str, kind: str | None = None) -> Table:
  """Reads a table from a CSV file with a header.

  - Cells are separated by commas, semicolons or tabs, whichever is the most frequent in
    the header.
  - A cell is missing if it is empty or has NA, N/A, NaN, None, null or ?.
  - Features must be numbers in the digits 0 to 9, such as -1.5 or 2e3; `true` is 1 and
    `false` is 0. Other texts are not numbers: 1_000, 1,5 between semicolons, or digits
    of other scripts. `inf` and `infinity` are infinite numbers, as 1e999 is.
  - A target with texts, or with only true and false, has classes. A target with a
    number that is not an integer has numbers. A target of integers has classes if one
    or two of them are different, and numbers if more than 20 are. Between these the
    `kind` must be given.

  Args:
    path: The file, in UTF-8.
    target: The name of the column with the labels.
    kind: 'classification' or 'regression'. None decides by the target, as above.

  Returns:
    The table. Its missing features are NaN.

  Raises:
    UserError: If the file cannot be read or has no rows; if a column has no name, or
      two have the same; if there is no column beside the target; if the target is
      unknown, has missing or infinite values, or does not fit the kind; if a class has
      a single row; or if a feature has text or infinite numbers.
  """
  header, rows = _cells(path)
  check_name(f'column of {path}', target, header)
  columns = [name for name in header if name != target]
  if not columns:
    raise UserError(f'{path} has no column beside the target {target!r}')
  if not rows:
    raise UserError(f'{path} has a header and no rows')
  by_name = dict(zip(header, zip(*rows, strict=True), strict=True))
  numbers = {name: _numbers(by_name[name]) for name in columns}
  if texts := [name for name, column in numbers.items() if column is None]:
    raise UserError(
      f'{path} has text in {_named(texts)}; features must be numbers, so encode text '
      'first, as sklearn.preprocessing.OrdinalEncoder or OneHotEncoder does'
    )
  x = np.stack([column for column in numbers.values() if column is not None], axis=1)
  if infinite := _chosen(columns, np.isinf(x)):
    raise UserError(f'{path} has infinite numbers in {_named(infinite)}')
  labels = [cell.strip() for cell in by_name[target]]
  if missing := [i for i, cell in enumerate(labels) if cell.lower() in _MISSING]:
    raise UserError(
      f'the target {target!r} misses {len(missing)} of {len(rows)} values, the first '
      f'in row {missing[0] + 1}; leave these rows out'
    )
  y, kind = _labels(labels, target, kind)
  return Table(path.stem, x, y, tuple(columns), target, kind)


def header_of(path: pathlib.Path) -> list[str]:
  """Returns the names of the columns of a CSV file.

  Raises:
    UserError: If the file cannot be read as CSV, or a column has no name or the name of
      another.
  """
  return _cells(path)[0]


def _cells(path: pathlib.Path) -> tuple[list[str], list[list[str]]]:
  """Returns the header and the rows of a CSV file; raises UserError."""
  text = read_text(path).removeprefix('\ufeff')
  first = text.split('\n', 1)[0]
  delimiter = max(_DELIMITERS, key=first.count)
  rows: list[list[str]] = []
  reader = csv.reader(io.StringIO(text, newline=''), delimiter=delimiter)
  try:
    for row in reader:
      if row:
        rows.append(row)
      if row and len(row) != len(rows[0]):
        raise UserError(
          f'{path}, line {reader.line_num} has {len(row)} cells, and the header has '
          f'{len(rows[0])}'
        )
  except csv.Error as error:
    raise UserError(f'{path}, line {reader.line_num} is no CSV: {error}') from error
  if not rows:
    raise UserError(f'{path} is empty; it must have a header and rows')
  header = [name.strip() for name in rows[0]]
  if '' in header:
    raise UserError(
      f'column {header.index("") + 1} of {path} has no name; if it numbers the rows, '
      'leave it out, as to_csv(index=False) of pandas does'
    )
  if twice := sorted({name for name in header if header.count(name) > 1}):
    raise UserError(f'{path} has {_named(twice)} more than once')
  return header, rows[1:]


def _chosen(columns: Sequence[str], marks: Bool[np.ndarray, 'n d']) -> list[str]:
  """Returns the columns in which any row has a mark."""
  return [name for i, name in enumerate(columns) if marks[:, i].any()]


def _named(columns: Sequence[str]) -> str:
  """Returns the names of columns as words of an error message."""
  kind = 'the column' if len(columns) == 1 else 'the columns'
  return f'{kind} {shown([repr(name) for name in columns])}'


def _numbers(cells: Sequence[str]) -> Float[np.ndarray, ' n'] | None:
  """Returns the numbers of a column, NaN if missing; None if a cell has text."""
  numbers = []
  for cell in cells:
    cell = cell.strip().lower()
    if cell in _MISSING:
      numbers.append(math.nan)
    elif cell in _TRUTHS:
      numbers.append(_TRUTHS[cell])
    elif _NUMBER.fullmatch(cell):
      numbers.append(float(cell))
    else:
      return None
  return np.array(numbers, np.float64)


def _labels(
  cells: Sequence[str], target: str, kind: str | None
) -> tuple[Shaped[np.ndarray, ' n'], str]:
  """Returns the labels of a table and its kind; raises UserError."""
  numbers = _numbers(cells)
  is_truth = all(cell.lower() in _TRUTHS for cell in cells)
  if numbers is None and kind == REGRESSION:
    text = next(cell for cell in cells if _numbers([cell]) is None)
    raise UserError(
      f'the target {target!r} has text, such as {text!r}, which --task=regression '
      'cannot predict'
    )
  if kind != REGRESSION and (numbers is None or is_truth):
    return _checked_classes(np.array(cells), target), CLASSIFICATION
  assert numbers is not None
  if not np.isfinite(numbers).all():
    raise UserError(f'the target {target!r} has infinite numbers')
  are_integers = bool((numbers == np.round(numbers)).all())
  number = len(np.unique(numbers))
  if kind is None and are_integers and _MOST_CLASSES < number <= _MOST_UNCLEAR:
    raise UserError(
      f'the target {target!r} has {number} different integers, which may be classes or '
      'numbers; add --task=classification or --task=regression'
    )
  is_of_classes = are_integers and number <= _MOST_CLASSES
  if kind == CLASSIFICATION or (kind is None and is_of_classes):
    is_small = are_integers and np.abs(numbers).max() < 2**53
    classes = numbers.astype(np.int64) if is_small else np.array(cells)
    return _checked_classes(classes, target), CLASSIFICATION
  if number == 1:
    raise UserError(f'the target {target!r} has one value, {numbers[0]:g}')
  return numbers, REGRESSION


def _checked_classes(
  labels: Shaped[np.ndarray, ' n'], target: str
) -> Shaped[np.ndarray, ' n']:
  """Returns the labels; raises UserError for one class, and for a class of one row."""
  classes, counts = np.unique(labels, return_counts=True)
  if len(classes) == 1:
    raise UserError(
      f'the target {target!r} has one class, {classes[0]!s}; it must have two or more'
    )
  if counts.min() == 1:
    lonely = [str(name) for name in classes[counts == 1]]
    raise UserError(
      f'of the target {target!r} {len(lonely)} of {len(classes)} classes have one row: '
      f'{shown(lonely)}; each needs two, one of them to be tested'
    )
  return labels
