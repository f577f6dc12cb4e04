"""Your own arrays as a task: prompts of the rows of a table."""

# A size that the base class declares as a field may be a property here.
# pyright: reportIncompatibleVariableOverride=false

from __future__ import annotations

import dataclasses
import functools
import hashlib
import io
import math
import pathlib
import stat
import zipfile
import zlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Int, Key
from numpy.lib import format as npy

from zoo.core.errors import UserError, check_count, check_name, check_number, shown
from zoo.core.prompt import Prompt
from zoo.core.protocols import BaseTask, Predictor, Task
from zoo.core.trees import Tree
from zoo.estimators.baselines import NearestNeighbours, Zero
from zoo.estimators.classes import NearestMean, NearestShares, SoftmaxRegression
from zoo.estimators.linear import Ridge
from zoo.tasks.base import make_prompt, register_task

# These functions read the header of an array, by the version of its format. The third
# version has no plain arrays.
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
# Reading a file of another kind, or one that is damaged or encrypted, raises these.
_NO_ARRAYS = (
  EOFError,
  KeyError,
  OverflowError,
  RuntimeError,
  TypeError,
  ValueError,
  zipfile.BadZipFile,
  zlib.error,
)
# An array of more than `_UNPACKED` bytes may be at most `_MOST_TIMES` the size of its
# compressed file.
_UNPACKED, _MOST_TIMES = 2**28, 100
# Numbers that differ by no more than this share of the largest are equal.
_ROUNDINGS = 4 * np.finfo(np.float64).eps
_SCALES = 'nothing', 'features', 'features_and_labels'


class _Table(NamedTuple):
  """The arrays of a file, and its SHA-256."""

  x: np.ndarray
  y: np.ndarray
  sha256: str


@struct.dataclass(eq=False, repr=False)
class _Rows(Tree):
  """The rows of prompts, and how they follow from the numbers of the file.

  They are the numbers minus the mean, divided by the standard deviation. These are 0
  and 1 for arrays that are not standardised.

  Attributes:
    x: Features `[n, d]`.
    y: Labels `[n]`, or `[n, k]` for classes.
    x_mean: Mean of each feature `[d]`.
    x_std: Standard deviation of each feature `[d]`.
    y_mean: Mean of the labels, a number, or `[k]` for classes.
    y_std: Standard deviation of the labels, a number, or `[k]` for classes.
    class_names: The labels of the classes as the file has them, in the order of the
      entries of y; empty for numbers.
    origin: The fields of the task on which the rows depend.
  """

  x: Any
  y: Any
  x_mean: Any
  x_std: Any
  y_mean: Any
  y_std: Any
  class_names: tuple = struct.field(pytree_node=False)
  origin: tuple = struct.field(pytree_node=False)


def full_path(path: object) -> str:
  """Returns the full path of a file, so that it can be read from any folder.

  Raises:
    UserError: If the path is not a string, or is empty.
  """
  if not isinstance(path, str) or not path:
    raise UserError(
      f'path is {path!r}; it must be an .npz file with the arrays x and y'
    )
  return str(pathlib.Path(path).expanduser().absolute())


@register_task('arrays')
@struct.dataclass(eq=False, repr=False)
class Arrays(BaseTask):
  """Prompts of your own data: C + 1 different random rows of a table.

  The table is an .npz file with the arrays `x [n, d]` and `y [n]`, as
  `numpy.savez('my.npz', x=x, y=y)` writes it. A share of the rows, chosen at random, is
  held out. Prompts for training have the other rows, and everything that is measured is
  measured on prompts of the held-out rows. The last row of a prompt is the query.

  Labels are numbers, or classes with any names, which become one-hot in sorted order.
  Targets are the labels. Standardised arrays have the mean 0 and the variance 1 over
  the rows for training. The latents are the numbers of the rows. The Bayes predictor is
  not known.

  Args:
    path: Path of the .npz file. It is kept as its full path.
    context_length: Number of examples C ≥ 1. There must be more rows than that, both
      for training and held out.
    label_kind: Kind of the labels, 'numbers' or 'classes'.
    standardise: Which arrays are standardised: 'nothing', 'features' or
      'features_and_labels'. Classes never are.
    held_out_share: Share of the rows that is held out, > 0 and ≤ 0.9.
    seed: Seed that chooses the held-out rows, from 0 to 2³² − 1.
    rows: Which rows prompts have, 'training' or 'held_out'.
    sha256: SHA-256 that the file must have. None is that of the file as it is now.

  Raises:
    UserError: If a field is out of its range, the file cannot be read, its arrays have
      wrong shapes or entries that are not finite, it has too few rows, or it has
      changed.

  Example:
    >>> x = np.random.default_rng(0).normal(size=(40, 3))
    >>> np.savez('my.npz', x=x, y=x.sum(axis=1))
    >>> task = zoo.create_task('arrays', path='my.npz', context_length=5)
    >>> prompt = task.sample(jax.random.key(0), 2)
    >>> prompt.x.shape, prompt.y.shape, len(task.x), len(task.held_out().x)
    ((2, 5, 3), (2, 5), 32, 8)
  """

  path: str = struct.field(pytree_node=False)
  context_length: int = struct.field(pytree_node=False, default=10)
  label_kind: str = struct.field(pytree_node=False, default='numbers')
  standardise: str = struct.field(pytree_node=False, default='features_and_labels')
  held_out_share: float = struct.field(pytree_node=False, default=0.2)
  seed: int = struct.field(pytree_node=False, default=0)
  rows: str = struct.field(pytree_node=False, default='training')
  sha256: str | None = struct.field(pytree_node=False, default=None)
  # __post_init__ reads the rows of the arrays, as a `_Rows`.
  _rows: Any = None
  stationary = True
  exchangeable = True

  def __post_init__(self):
    super().__post_init__()
    if self._rows is not None and self._rows.origin == self._origin():
      # JAX rebuilds a task with the rows that it has.
      return
    # The fields are checked here, since reading the rows depends on them.
    self._check_fields()
    set_field = object.__setattr__
    table = _read(self.path)
    if self.sha256 not in (None, table.sha256):
      raise UserError(
        f'path is {self.path!r}, a file that has changed: its SHA-256 is '
        f'{table.sha256:.12}…, and sha256 is {self.sha256!s:.12}…'
      )
    set_field(self, 'path', full_path(self.path))
    set_field(self, 'sha256', table.sha256)
    set_field(self, '_rows', self._chosen(table))

  def _origin(self) -> tuple:
    names = 'path', 'context_length', 'label_kind', 'standardise', 'held_out_share'
    return tuple(getattr(self, name) for name in (*names, 'seed', 'rows', 'sha256'))

  def _check_fields(self) -> None:
    full_path(self.path)
    check_count('context_length', self.context_length)
    check_name('label_kind', self.label_kind, ('numbers', 'classes'))
    check_name('standardise', self.standardise, _SCALES)
    check_number('held_out_share', self.held_out_share, above=0.0, maximum=0.9)
    check_count('seed', self.seed, minimum=0, maximum=2**32 - 1)
    check_name('rows', self.rows, ('training', 'held_out'))

  def _chosen(self, table: _Table) -> _Rows:
    """Returns the rows of the file that prompts have; raises UserError."""
    if table.x.ndim != 2 or not table.x.size:
      raise UserError(
        f'x of {self.path!r} has shape {table.x.shape}; it must be [rows, features]'
      )
    x = _finite(self.path, 'x', table.x)
    y, names = self._labels(table)
    order = np.random.RandomState(self.seed).permutation(len(x))
    held_out, training = np.split(order, [round(self.held_out_share * len(x))])
    splits = {'training': training, 'held_out': held_out}
    for split, rows in splits.items():
      if len(rows) <= self.context_length:
        raise UserError(
          f'context_length is {self.context_length}; it must be less than the number '
          f'of rows, and {self.path!r} has {len(rows)} for {split}'
        )
    scales_y = self.standardise == 'features_and_labels'
    x_mean, x_std = _scale(x[training], self.standardise != 'nothing')
    y_mean, y_std = _scale(y[training], scales_y and self.label_kind == 'numbers')
    x, y = (x - x_mean) / x_std, (y - y_mean) / y_std
    own = splits[self.rows]
    return _Rows(
      x=x[own],
      y=y[own],
      x_mean=x_mean,
      x_std=x_std,
      y_mean=y_mean,
      y_std=y_std,
      class_names=names,
      origin=self._origin(),
    )

  @property
  def table(self) -> Any:
    """The standardised rows of prompts, and the numbers that standardised them.

    Its attributes are x `[n, d]`, y, and x_mean, x_std, y_mean and y_std.
    """
    # `__post_init__` has read them.
    assert self._rows is not None
    return self._rows

  @property
  def x(self) -> Any:
    """The features `[n, d]` of the rows of prompts."""
    return self.table.x

  @property
  def y(self) -> Any:
    """The labels `[n]` of the rows of prompts, or `[n, k]` for classes."""
    return self.table.y

  @property
  def num_features(self) -> int:
    """Number of features of an example, d."""
    return self.x.shape[-1]

  @property
  def num_outputs(self) -> int:
    """Number of outputs of a prediction, k."""
    return self.y.shape[-1] if self.label_kind == 'classes' else 1

  @property
  def class_names(self) -> tuple:
    """The labels of the classes in the file, by their number; empty for numbers."""
    return self.table.class_names

  def _labels(self, table: _Table) -> tuple[np.ndarray, tuple]:
    """Returns the labels, and the names of the classes; raises UserError."""
    if table.y.shape != table.x.shape[:1]:
      raise UserError(
        f'y of {self.path!r} has shape {table.y.shape}; it must be a label for each of '
        f'the {len(table.x)} rows of x'
      )
    if self.label_kind == 'numbers':
      if table.y.dtype.kind not in 'biuf':
        raise UserError(
          f'y of {self.path!r} has labels such as {str(table.y[0])!r}; give numbers, '
          "or set label_kind = 'classes'"
        )
      return _finite(self.path, 'y', table.y), ()
    if table.y.dtype.kind == 'f':
      _finite(self.path, 'y', table.y)
    names, classes = np.unique(table.y, return_inverse=True)
    if not 2 <= len(names) <= len(table.y) // 2:
      raise UserError(
        f'y of {self.path!r} has {len(names)} different values in {len(table.y)} rows; '
        'classes must be at least 2, and each have 2 rows on average; or set '
        "label_kind = 'numbers'"
      )
    return np.eye(len(names))[classes], tuple(names.tolist())

  def sample_one(self, key: Key[Array, '']) -> Prompt:
    x, y = jnp.asarray(self.x, float), jnp.asarray(self.y, float)
    rows = _draw(key, self.context_length + 1, len(x))
    return make_prompt(x[rows], y[rows], None, rows)

  def redraw_one(self, key: Key[Array, ''], prompt: Prompt, keep: str) -> Prompt:
    """Draws other rows for the context, as `redraw` says.

    If the query is not one of the rows, the labels are NaN.

    Args:
      key: Random key.
      prompt: One prompt, without the axis b.
      keep: 'query'.

    Returns:
      One prompt, without the axis b.

    Raises:
      UserError: `keep` is 'inputs'. Each row has only one label.
    """
    if keep == 'inputs':
      raise UserError(
        'Arrays has one label for each of its rows; there are no others with the same '
        "inputs. keep='query' draws other rows for the context"
      )
    query_key, rows_key = jax.random.split(key)
    x, y = jnp.asarray(self.x, float), jnp.asarray(self.y, float)
    same = jnp.all(x == prompt.x_query[None], axis=1)
    query = jax.random.categorical(query_key, jnp.where(same, 0.0, -jnp.inf))
    # Different rows are drawn from the others. They are numbered as if the row of the
    # query were missing.
    rows = _draw(rows_key, self.context_length, len(x) - 1)
    rows = jnp.append(jnp.where(rows >= query, rows + 1, rows), query)
    known = jnp.where(jnp.any(same), 0.0, jnp.nan)
    return make_prompt(x[rows], y[rows] + known, None, rows)

  def held_out(self) -> Task:
    return dataclasses.replace(self, rows='held_out')  # pyright: ignore

  def baselines(self) -> dict[str, Predictor]:
    if self.label_kind == 'classes':
      return {
        'logistic': SoftmaxRegression(),
        'nearest_neighbours': NearestShares(),
        'nearest_mean': NearestMean(),
        'zero': Zero(),
      }
    return {
      'ridge': Ridge(1.0),
      'nearest_neighbours': NearestNeighbours(),
      'mean': NearestNeighbours(self.context_length),
      'zero': Zero(),
    }


def _draw(key: Key[Array, ''], count: int, total: int) -> Int[Array, ' t']:
  """Draws `count` different numbers below `total`, in random order.

  It uses Floyd's algorithm, whose cost does not depend on the total (Bentley & Floyd,
  CACM 30, 1987). A permutation follows, since the last numbers of the algorithm are
  rarely small.

  Returns:
    The numbers `[count]`.
  """
  draw_key, order_key = jax.random.split(key)
  last = total - count + jnp.arange(count)
  drawn = jax.random.randint(draw_key, (count,), 0, last + 1)

  def step(i: Array, numbers: Array) -> Array:
    is_taken = jnp.any(numbers == drawn[i])
    return numbers.at[i].set(jnp.where(is_taken, last[i], drawn[i]))

  numbers = jax.lax.fori_loop(0, count, step, jnp.full(count, -1, drawn.dtype))
  return jax.random.permutation(order_key, numbers)


def _read(path: str) -> _Table:
  """Reads the arrays of a file; raises UserError."""
  file = pathlib.Path(path).expanduser()
  try:
    status = file.stat()
    # Reading a FIFO or a device may never end.
    if not stat.S_ISREG(status.st_mode):
      raise UserError(f'path is {path!r}, which is not a regular file')
    return _read_once(file, status.st_mtime_ns, status.st_size)
  except OSError as error:
    reason = error.strerror or error
    raise UserError(f'path is {path!r}, which cannot be read: {reason}') from None
  except UserError:
    raise
  except _NO_ARRAYS:
    raise UserError(
      f'path is {path!r}; it must be an .npz file with the arrays x and y, of numbers '
      'or texts'
    ) from None


@functools.lru_cache(maxsize=4)
def _read_once(file: pathlib.Path, modified: int, length: int) -> _Table:
  content = file.read_bytes()
  sha256 = hashlib.sha256(content).hexdigest()
  with zipfile.ZipFile(io.BytesIO(content)) as archive:
    names = [name.removesuffix('.npy') for name in archive.namelist()]
    if missing := [name for name in ('x', 'y') if name not in names]:
      raise UserError(
        f'path is {str(file)!r}, which has no array {missing[0]}; it must be an .npz '
        f'file with the arrays x and y, and has {shown(names) or "none"}'
      )
    x, y = (_array(archive, name, file, len(content)) for name in ('x', 'y'))
  return _Table(x, y, sha256)


def _array(
  archive: zipfile.ZipFile, name: str, file: pathlib.Path, length: int
) -> np.ndarray:
  """Reads an array of an .npz file of `length` bytes; its header is checked first."""
  entry = archive.getinfo(f'{name}.npy')
  with archive.open(entry) as member:
    version = npy.read_magic(member)
    shape, _, dtype = _HEADERS[version](member)
    is_whole = math.prod(shape) * dtype.itemsize == entry.file_size - member.tell()
  if dtype.hasobject:
    raise UserError(
      f'{name} of {str(file)!r} is an array of Python objects, as columns of pandas '
      'are; write numbers by column.to_numpy(float) and texts by column.to_numpy(str)'
    )
  if not is_whole:
    raise ValueError(f'{name} does not have as many entries as its shape')
  if entry.file_size > max(_UNPACKED, _MOST_TIMES * length):
    raise UserError(
      f'{name} of {str(file)!r} takes {entry.file_size / 1e9:.3g} GB, more than '
      f'{_MOST_TIMES} times the file; write it by numpy.savez, without compression'
    )
  with archive.open(entry) as member:
    return npy.read_array(member, allow_pickle=False)


def _finite(path: str, name: str, array: np.ndarray) -> np.ndarray:
  what = f'{name} of {path!r} has entries that are not finite numbers'
  if array.dtype.kind not in 'biuf':
    raise UserError(what)
  if len(bad := np.argwhere(~np.isfinite(array))):
    row, *column = bad[0].tolist()
    place = f'row {row}' + (f', column {column[0]}' if column else '')
    raise UserError(f'{what}; the first is {array[tuple(bad[0])]} in {place}, from 0')
  return array.astype(np.float64)


def _scale(array: np.ndarray, is_standardised: bool) -> tuple[np.ndarray, np.ndarray]:
  """Returns the mean and the standard deviation of each column, or 0 and 1.

  The standard deviation of a column that is constant up to rounding is taken as 1.
  """
  mean, std = mean_and_std(array)
  if not is_standardised:
    return np.zeros_like(mean), np.ones_like(mean)
  return np.where(std > 0, mean, array[0]), np.where(std > 0, std, 1)


def mean_and_std(array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Returns the mean and the standard deviation of each column.

  A column is constant, with the standard deviation 0, if its largest and its smallest
  number differ by no more than four roundings of float64, which are 9e-16 of the
  largest absolute value. The unit of the numbers does not matter: 1e-200 and 2e-200
  differ.

  Args:
    array: The columns, or an array of labels. NaN does not count; a column of nothing
      else has the mean 0.
  """
  known = np.where(np.isnan(array).all(axis=0), 0, array)
  # A power of two as the unit changes no digit, and lets no square overflow or vanish.
  _, exponent = np.frexp(np.nanmax(np.abs(known), axis=0))
  known = np.ldexp(known, -exponent)
  spread = np.nanmax(known, axis=0) - np.nanmin(known, axis=0)
  is_constant = spread <= _ROUNDINGS * np.nanmax(np.abs(known), axis=0)
  mean, std = np.nanmean(known, axis=0), np.nanstd(known, axis=0)
  std = np.where(is_constant, 0, std)
  return np.asarray(np.ldexp(mean, exponent)), np.asarray(np.ldexp(std, exponent))
