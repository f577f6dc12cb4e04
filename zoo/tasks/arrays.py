"""One's own arrays as a task: prompts of the rows of a table."""

from __future__ import annotations

import functools
import hashlib
import io
import math
import pathlib
import stat
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Key
from numpy.lib import format as npy

from zoo.core.errors import UserError
from zoo.core.prompt import Prompt
from zoo.core.protocols import BaseTask, Predictor, Task, remade
from zoo.core.values import (
  choice,
  derived,
  derived_size,
  number,
  set_field,
  size,
  static,
)
from zoo.tasks.base import make_prompt, register_task
from zoo.tasks.baselines import LeastSquares, NearestNeighbours, Zero
from zoo.tasks.gaussian_clusters import NearestMean, NearestShares, SoftmaxRegression

# The headers of arrays by the version of their format; the third has no plain arrays.
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
# What reading a file raises that is of another kind, damaged or encrypted.
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
# An array of more bytes may not be compressed to less than a hundredth.
_UNPACKED, _MOST_TIMES = 2**28, 100
_SCALES = 'nothing', 'features', 'features_and_labels'


class _Table(NamedTuple):
  x: np.ndarray
  y: np.ndarray
  sha256: str  # of the file


def _check_path(name: str, given: object) -> str:
  if not isinstance(given, str) or not given:
    raise UserError(
      f'{name} is {given!r}; it must be an .npz file with the arrays x and y'
    )
  return given


def _full_path(fields: Mapping[str, Any]) -> str:
  """The file that the fields of a config name, wherever it is read from later."""
  path = _check_path('path', fields.get('path'))
  return str(pathlib.Path(path).expanduser().absolute())


def _checksum(fields: Mapping[str, Any]) -> str:
  """Its checksum, unless they have it."""
  return fields.get('sha256') or _read(_full_path(fields)).sha256


@register_task('arrays')
class Arrays(BaseTask):
  """Prompts of C + 1 different rows of your own arrays `x [n, d]` and `y [n]`.

  They are those of an .npz file, as `numpy.savez('my.npz', x=x, y=y)` writes it. A
  share of the rows, chosen at random, is held out: prompts to train on are of the other
  rows, and all that is measured is on prompts of these. The labels are numbers, or
  classes of any names, one-hot in sorted order. Standardised arrays have the mean 0 and
  the variance 1 over the rows for training. A file that has changed is refused.
  """

  path: str = static(
    check=_check_path,
    holds=str,
    allowed='an .npz file',
    about='The file with the arrays `x` and `y`; a run keeps its full path.',
    found=_full_path,
  )
  context_length: int = size(default=10)
  label_kind: str = choice(
    ('numbers', 'classes'), default='numbers', about='What the labels are.'
  )
  standardise: str = choice(
    _SCALES, default='features_and_labels', about='What is standardised; never classes.'
  )
  held_out_share: float = number(
    default=0.2, above=0.0, maximum=0.9, about='Share of the rows that is held out.'
  )
  seed: int = size(
    default=0, minimum=0, maximum=2**32 - 1, about='Chooses the rows held out.'
  )
  rows: str = choice(
    ('training', 'held_out'),
    default='training',
    about='The rows of prompts; whatever is measured is on those held out.',
  )
  sha256: str | None = static(
    default=None,
    holds=str,
    allowed='64 hexadecimal digits',
    about='Checksum of the file; None: as it is now, which the config of a run keeps.',
    found=_checksum,
  )
  num_features: int = derived_size()
  num_outputs: int = derived_size()
  x: Any = derived()  # [n, d], of these rows
  y: Any = derived()  # [n], or [n, k]
  # From the numbers of the file to those above: minus the mean, over the deviation.
  # They are 0 and 1 for what is not standardised.
  x_mean: Any = derived()  # [d]
  x_std: Any = derived()  # [d]
  y_mean: Any = derived()  # [], or [k]
  y_std: Any = derived()  # [], or [k]

  def __post_init__(self):
    table = _read(self.path)
    if self.sha256 not in (None, table.sha256):
      raise UserError(
        f'path is {self.path!r}, a file that has changed: its SHA-256 is '
        f'{table.sha256:.12}…, and sha256 is {self.sha256!s:.12}…'
      )
    if table.x.ndim != 2 or not table.x.size:
      raise UserError(
        f'x of {self.path!r} has shape {table.x.shape}; it must be [rows, features]'
      )
    x, y = _finite(self.path, 'x', table.x), self._labels(table)
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
    set_field(self, 'path', _full_path({'path': self.path}))
    set_field(self, 'sha256', table.sha256)
    set_field(self, 'x', x[own])
    set_field(self, 'y', y[own])
    set_field(self, 'x_mean', x_mean)
    set_field(self, 'x_std', x_std)
    set_field(self, 'y_mean', y_mean)
    set_field(self, 'y_std', y_std)
    set_field(self, 'num_features', x.shape[1])
    set_field(self, 'num_outputs', y[0].size)

  def _labels(self, table: _Table) -> np.ndarray:
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
      return _finite(self.path, 'y', table.y)
    names, classes = np.unique(table.y, return_inverse=True)
    if not 2 <= len(names) <= len(table.y) // 2:
      raise UserError(
        f'y of {self.path!r} has {len(names)} different values in {len(table.y)} rows; '
        'classes must be at least 2, and each have 2 rows on average; or set '
        "label_kind = 'numbers'"
      )
    return np.eye(len(names))[classes]

  def sample_one(self, key: Key[Array, '']) -> Prompt:
    x, y = jnp.asarray(self.x, float), jnp.asarray(self.y, float)
    rows = _draw(key, self.context_length + 1, len(x))
    return make_prompt(x[rows], y[rows], None, rows)

  def held_out(self) -> Task:
    return remade(self, rows='held_out')

  def baselines(self) -> dict[str, Predictor]:
    """For classes `averaging` is the nearest class mean."""
    if self.label_kind == 'classes':
      return {
        'logistic': SoftmaxRegression(),
        'nearest_neighbours': NearestShares(),
        'averaging': NearestMean(),
        'zero': Zero(),
      }
    return {
      'ridge': LeastSquares(1.0),
      'nearest_neighbours': NearestNeighbours(),
      'mean': NearestNeighbours(self.context_length),
      'zero': Zero(),
    }


def _draw(key: Key[Array, ''], count: int, total: int) -> Int[Array, ' t']:
  """`count` different numbers below `total`, in random order.

  Floyd's algorithm, whose cost does not depend on the total (Bentley & Floyd, CACM 30,
  1987), and then a permutation, since its last numbers are rarely small.
  """
  draw_key, order_key = jax.random.split(key)
  last = total - count + jnp.arange(count)
  drawn = jax.random.randint(draw_key, (count,), 0, last + 1)

  def step(i: Array, found: Array) -> Array:
    is_taken = jnp.any(found == drawn[i])
    return found.at[i].set(jnp.where(is_taken, last[i], drawn[i]))

  found = jax.lax.fori_loop(0, count, step, jnp.full(count, -1, drawn.dtype))
  return jax.random.permutation(order_key, found)


def _read(path: str) -> _Table:
  """The arrays of a file; raises UserError."""
  file = pathlib.Path(path).expanduser()
  try:
    found = file.stat()
    if not stat.S_ISREG(found.st_mode):  # a FIFO or a device may never end
      raise UserError(f'path is {path!r}, which is not a regular file')
    return _read_once(file, found.st_mtime_ns, found.st_size)
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
    x, y = (_array(archive, name, file, len(content)) for name in ('x', 'y'))
  return _Table(x, y, sha256)


def _array(
  archive: zipfile.ZipFile, name: str, file: pathlib.Path, length: int
) -> np.ndarray:
  """An array of an .npz file of so many bytes, whose header is checked first."""
  entry = archive.getinfo(f'{name}.npy')
  with archive.open(entry) as member:
    version = npy.read_magic(member)
    shape, _, dtype = _HEADERS[version](member)
    is_whole = math.prod(shape) * dtype.itemsize == entry.file_size - member.tell()
  if dtype.hasobject or not is_whole:
    raise ValueError(f'{name} has objects, or not as many entries as its shape')
  if entry.file_size > max(_UNPACKED, _MOST_TIMES * length):
    raise UserError(
      f'{name} of {str(file)!r} takes {entry.file_size / 1e9:.3g} GB, more than '
      f'{_MOST_TIMES} times the file; write it by numpy.savez, without compression'
    )
  with archive.open(entry) as member:
    return npy.read_array(member, allow_pickle=False)


def _finite(path: str, name: str, array: np.ndarray) -> np.ndarray:
  if array.dtype.kind not in 'biuf' or not np.isfinite(array).all():
    raise UserError(f'{name} of {path!r} has entries that are not finite numbers')
  return array.astype(np.float64)


def _scale(array: np.ndarray, is_standardised: bool) -> tuple[np.ndarray, np.ndarray]:
  """The mean and the standard deviation by column, that of a constant as 1; or 0, 1."""
  mean, std = np.asarray(array.mean(axis=0)), np.asarray(array.std(axis=0))
  if not is_standardised:
    return np.zeros_like(mean), np.ones_like(mean)
  return mean, np.where(std > 0, std, 1)
