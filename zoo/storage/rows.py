"""Rows: named lines of numbers in one file, which survives kills and is shared.

A row belongs to a digest of everything that it depends on. A row with another digest is
stale, and is replaced when it is computed again.
"""

import contextlib
import hashlib
import json
import os
import pathlib
import urllib.parse
from collections.abc import Iterator, Mapping
from importlib import metadata
from typing import Any

import filelock

from zoo.core.errors import UserError
from zoo.host.files import is_url, names_in, read_bytes, write_atomically
from zoo.storage.steps import versions

FILE = 'rows.jsonl'
_LOCK = '.rows.lock'
_BUCKET_ROWS = 'rows'  # In a bucket this folder has a file for each row.
_KEYS = 'digest', 'versions', 'row'

Row = dict[str, Any]


def read_rows(folder: pathlib.Path) -> dict[str, dict[str, Any]]:
  """Returns the lines of `rows.jsonl` by cell.

  A line that a killed process has begun is left out.

  Args:
    folder: The folder of the file, which may be in a bucket and need not exist.

  Returns:
    The content of the line of each cell: `digest`, `versions` and `row`.

  Raises:
    UserError: If a whole line is damaged.
  """
  kept: dict[str, dict[str, Any]] = {}
  paths = [folder / FILE]
  if is_url(folder):
    rows = folder / _BUCKET_ROWS
    paths = [rows / name for name in sorted(names_in(rows))]
  for path in paths:
    with _locked_file(folder):
      lines = whole_lines(path)
    for number, line in enumerate(lines, start=1):
      try:
        content = json.loads(line)
        kept[content['cell']] = {key: content[key] for key in _KEYS}
      except (ValueError, KeyError, TypeError) as error:
        raise UserError(
          f'{path}, line {number} is damaged; delete the line, and its cell is '
          'computed again'
        ) from error
  return kept


def keep_row(
  folder: pathlib.Path, name: str, digest: str, row: Mapping[str, Any]
) -> None:
  """Writes the row of a cell into `rows.jsonl`, in place of an older one.

  Floats keep all bits. In a bucket, where nothing can be appended, each row has a file
  of its own.

  Args:
    folder: The folder of the file.
    name: The name of the cell.
    digest: The digest of everything that the row depends on. With another digest the
      row is stale.
    row: Numbers by name, as JSON can hold them.

  Raises:
    UserError: If JSON cannot hold the row.
    OSError: If the file cannot be written.

  Example:
    >>> import pathlib
    >>> folder = pathlib.Path('rows')
    >>> folder.mkdir()
    >>> keep_row(folder, 'seed=0', version_digest('seed=0'), {'risk': 0.5})
    >>> read_rows(folder)['seed=0']['row']
    {'risk': 0.5}
  """
  content = {
    'cell': name,
    'digest': digest,
    'versions': versions(),
    'row': row,
  }
  try:
    line = json.dumps(content).encode() + b'\n'
  except (TypeError, ValueError) as error:
    raise UserError(
      f'the row of {name!r} cannot be kept as JSON: {error}; it must have numbers of '
      'Python, texts, booleans, None, and lists or dictionaries of these'
    ) from error
  if is_url(folder):
    (folder / _BUCKET_ROWS).mkdir(parents=True, exist_ok=True)
    file = f'{urllib.parse.quote(name, safe="")}.jsonl'
    write_atomically(folder / _BUCKET_ROWS / file, line)
    return
  path = folder / FILE
  with _locked_file(folder):
    lines = whole_lines(path)
    others = [other for other in lines if json.loads(other)['cell'] != name]
    if len(others) < len(lines):
      write_atomically(path, b''.join([*others, line]))
      return
    with path.open('ab') as file:
      file.truncate(sum(map(len, lines)))  # A killed process may have begun a line.
      file.write(line)
      file.flush()
      os.fsync(file.fileno())


def version_digest(text: str) -> str:
  """Returns a digest of a config, or of another text, and of this version."""
  content = text + metadata.version('icl-zoo')
  return hashlib.sha256(content.encode()).hexdigest()[:8]


def weights_digest(model: Any, text: str = '') -> str:
  """Returns a digest of a text and the trained weights of a model.

  Args:
    model: A model. Another predictor has no weights.
    text: What else the rows of the model depend on, such as its config.
  """
  # These are slow to import, and most users of this module need none of them.
  import jax
  import numpy as np
  from flax import nnx

  sha = hashlib.sha256(text.encode())
  if isinstance(model, nnx.Module):
    for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)):
      sha.update(np.asarray(leaf).tobytes())
  return sha.hexdigest()


def whole_lines(path: pathlib.Path) -> list[bytes]:
  """Returns the lines of a file with their ends, without one that is not whole."""
  content = read_bytes(path) if path.is_file() else b''
  return [line for line in content.splitlines(keepends=True) if line.endswith(b'\n')]


@contextlib.contextmanager
def _locked_file(folder: pathlib.Path) -> Iterator[None]:
  """Locks the rows of a local folder for reading and writing in the block."""
  if is_url(folder) or not folder.is_dir():
    yield
    return
  with filelock.FileLock(folder / _LOCK, fallback_to_soft=False):
    yield
