"""All calls of Orbax, which write, describe and read a folder of arrays.

No private function of Orbax is called, but this module relies on the names of the JSON
files that Orbax writes, and of the marker `commit_success.txt`. Orbax works in threads
and event loops: if several arrays of a checkpoint fail, it raises the first error, and
logs others with their tracebacks, which are hidden.
"""

from __future__ import annotations

import contextlib
import logging
import math
import pathlib
import re
import warnings
from collections.abc import Callable, Iterator, Mapping

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint
from absl import logging as absl_logging
from jaxtyping import PyTree
from orbax.checkpoint import v1 as ocp

from zoo.core.errors import RunError, UserError, in_one_line
from zoo.host import processes
from zoo.host.files import MIB, is_url, read_json

# The metadata is the item `origin` on disk, as it was called in the first checkpoints.
METADATA_ITEM = 'origin'
METADATA_FILE = 'origin/data.json'
OPTIMIZER = 'optimizer/'  # with which the names of its files begin
# It holds an absolute path of this machine, and only in a bucket Orbax needs it.
MARKER = 'commit_success.txt'

# Practically unlimited: Orbax measures it by the system's clock, which may be changed
# during a save. A lost process is detected by its missing heartbeat instead.
_TIMEOUT_SECONDS = 365 * 24 * 3600

# Files that Orbax would read whole, whatever their size, and what 50,000 arrays need.
_JSON_FILES = '_CHECKPOINT_METADATA', '{}/_METADATA', '{}/_sharding', '{}/array_meta*/*'
_MAX_JSON_BYTES = 16 * MIB
# A checkpoint may take this much memory, or at most this many times the size of its
# files: trained weights hardly compress.
_SMALL_BYTES = 256 * MIB
_MAX_COMPRESSION = 1000


_PACKAGE = pathlib.Path(orbax.checkpoint.__file__).parent

# Where a folder cannot be created, Orbax forgets what it would have done there.
warnings.filterwarnings('ignore', "coroutine '_create_paths' was never awaited")


def start_save(
  folder: pathlib.Path,
  items: Mapping[str, PyTree],
  metadata: Mapping[str, object],
) -> Callable[[], None]:
  """Starts to write a new folder; returns as soon as the arrays may be donated.

  The returned function waits until Orbax has written everything, on all processes, and
  raises its errors.
  """
  context = ocp.Context()
  handlers = ocp.handlers.local_registry()
  handlers.add(ocp.handlers.JsonHandler, checkpointable_name=METADATA_ITEM)
  context.checkpointables.registry = handlers
  context.asynchronous.timeout_secs = _TIMEOUT_SECONDS
  # Otherwise, if a folder cannot be created, the threads that write into it wait for
  # minutes, and so does the process.
  context.asynchronous.create_directories_asynchronously = False
  with _quiet(), context:
    response = ocp.save_checkpointables_async(
      str(folder), {**items, METADATA_ITEM: dict(metadata)}
    )

  def wait() -> None:
    with _quiet():
      response.result()
    if processes.index() == 0 and not is_url(folder):
      for marker in folder.rglob(MARKER):
        marker.unlink()

  return wait


def saved_arrays(folder: pathlib.Path, item: str) -> dict[str, jax.ShapeDtypeStruct]:
  """The shapes and types of an item's arrays, by name; no array is read.

  Raises RunError if Orbax cannot read them, or if they would take far more memory than
  the sizes of the files suggest.
  """
  with _reading(folder):
    for name in _JSON_FILES:
      for path in folder.glob(name.format(item)):
        read_json(path, _MAX_JSON_BYTES)
    tree = ocp.metadata(str(folder), checkpointable_name=item).metadata
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    named = {array_name(path): leaf for path, leaf in leaves}
    arrays = {
      name: jax.ShapeDtypeStruct(tuple(leaf.shape), np.dtype(leaf.dtype))
      for name, leaf in named.items()
    }
    if not arrays:
      raise RunError(f'{folder} cannot be read: Orbax finds no arrays in its {item}')
    # A whole chunk is allocated, whatever part of it is read.
    chunks = {name: leaf.storage_metadata.chunk_shape for name, leaf in named.items()}
    needed = sum(
      max(math.prod(array.shape), math.prod(chunks[name])) * array.dtype.itemsize
      for name, array in arrays.items()
    )
    files = [path for path in (folder / item).rglob('*') if path.is_file()]
    on_disk = sum(path.stat().st_size for path in files)
    allowed = max(_SMALL_BYTES, _MAX_COMPRESSION * on_disk)
    if needed > allowed:
      raise RunError(
        f'{folder} is damaged: its metadata claims arrays of {needed:,} bytes, but its '
        f'files have {on_disk:,}, which can hold at most {allowed:,}'
      )
  return arrays


def load_arrays(
  folder: pathlib.Path, abstract: Mapping[str, PyTree]
) -> dict[str, PyTree]:
  """Items of a folder, with the shapes and shardings of `abstract`; raises RunError."""
  with _reading(folder):
    return ocp.load_checkpointables(str(folder), dict(abstract))


def check_precision(folder: pathlib.Path, item: str, abstract: PyTree) -> None:
  """Raises UserError if an item's numbers are of other types than `abstract`'s.

  Orbax would convert them without a word. Raises RunError if it cannot read them.
  """
  with _reading(folder):
    tree = ocp.metadata(str(folder), checkpointable_name=item).metadata
  saved, here = (
    {array_name(path): leaf.dtype for path, leaf in leaves}
    for leaves, _ in map(jax.tree_util.tree_flatten_with_path, (tree, abstract))
  )
  for name, dtype in here.items():
    if jnp.issubdtype(dtype, jnp.floating) and saved.get(name, dtype) != dtype:
      raise UserError(
        f'{folder} holds {name} as {saved[name]}, and this program would train it as '
        f'{dtype}; jax_enable_x64 must be as it was when the run was started'
      )


def array_name(path: tuple) -> str:
  """The name of an array in a state, or in Orbax's metadata of a state."""
  # Both paths end in the field of the variable that holds the array.
  name = jax.tree_util.keystr(path, simple=True, separator='.')
  return name.removesuffix('.value')


def one_line(error: BaseException) -> str:
  """The type and message of an error, shortened.

  TensorStore appends its whole configuration and its source locations.
  """
  text, *_ = re.split(r'\[(?:tensorstore_spec|source locations)=', str(error))
  text = in_one_line(text, None)
  return f'{type(error).__name__}: {text if len(text) <= 300 else f"…{text[-300:]}"}'


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
  """Hides warnings and errors of Orbax, which raises the first one, in the block."""
  logger = absl_logging.get_absl_logger()

  def is_wanted(record: logging.LogRecord) -> bool:
    from_orbax = _PACKAGE in pathlib.Path(record.pathname).parents
    return record.levelno < logging.WARNING or not from_orbax

  logger.addFilter(is_wanted)
  try:
    yield
  finally:
    logger.removeFilter(is_wanted)


@contextlib.contextmanager
def _reading(folder: pathlib.Path) -> Iterator[None]:
  """Turns any error in the block into a RunError of one line that names the folder."""
  with _quiet():
    try:
      yield
    except RunError:
      raise
    except Exception as error:
      reason: BaseException = error
      while reason.__cause__ is not None:  # Orbax wraps it in less specific errors
        reason = reason.__cause__
      raise RunError(f'{folder} cannot be read: {one_line(reason)}') from error
