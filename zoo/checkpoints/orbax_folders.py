"""All that is asked of Orbax: to write a folder of arrays, describe it, and read it.

No private part of Orbax is used. What it writes is known to be files of JSON beside
folders `d` of data, and a marker `commit_success.txt`.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import math
import pathlib
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import jax
import numpy as np
import orbax.checkpoint
from absl import logging as absl_logging
from jaxtyping import PyTree
from orbax.checkpoint import v1 as ocp

from zoo.checkpoints.steps import find_corruption, write_manifest
from zoo.errors import RunError, UserError
from zoo.files import MIB, read_json

# On disk the metadata is the item `origin`, as it was in the first checkpoints.
METADATA_ITEM = 'origin'
METADATA_FILE = 'origin/data.json'

# No wait ends by this. Orbax measures it by the clock of the system, which may be set
# while a save is under way; a process that is lost is noticed by its heartbeat.
_TIMEOUT_SECONDS = 365 * 24 * 3600

_SECONDS_TO_END = 5.0  # for the other parts of a save of which one has failed

_MAX_JSON_BYTES = 16 * MIB  # about what 50,000 arrays need
# What a checkpoint may take in memory: this much in any case, and so many times the
# size of its files. Trained weights hardly shrink when they are compressed.
_SMALL_BYTES = 256 * MIB
_MAX_COMPRESSION = 1000


_PACKAGE = pathlib.Path(orbax.checkpoint.__file__).parent

# Once one array has failed, Orbax leaves its work for the others behind. When that
# ends, or is collected as garbage at some time later, Python would print how it failed.
_print_unraisable = sys.unraisablehook


def _print_unless_left_behind(unraisable: sys.UnraisableHookArgs) -> None:
  code = getattr(unraisable.object, 'cr_code', None)  # of a coroutine
  if str(unraisable.exc_value) == 'Event loop is closed' or (
    code is not None and _PACKAGE in pathlib.Path(code.co_filename).parents
  ):
    return
  _print_unraisable(unraisable)


sys.unraisablehook = _print_unless_left_behind


class SavedArray(NamedTuple):
  """What is known of a saved array before it is read."""

  shape: tuple[int, ...]
  dtype: np.dtype


def start_save(
  folder: pathlib.Path, items: Mapping[str, PyTree], metadata: Mapping[str, object]
) -> Callable[[], None]:
  """Starts to write a new folder; returns as soon as the arrays may be donated.

  What is returned waits until Orbax has written all, and raises whatever it raised.
  """
  context = ocp.Context()
  handlers = ocp.handlers.local_registry()
  handlers.add(ocp.handlers.JsonHandler, checkpointable_name=METADATA_ITEM)
  context.checkpointables.registry = handlers
  context.asynchronous.timeout_secs = _TIMEOUT_SECONDS
  # Otherwise, if a folder cannot be made, the threads that write into it wait for it
  # for minutes, and the process with them.
  context.asynchronous.create_directories_asynchronously = False
  others = set(threading.enumerate())
  try:
    with context:
      response = ocp.save_checkpointables_async(
        str(folder), {**items, METADATA_ITEM: dict(metadata)}
      )
  except Exception as error:
    _abandon(error, others)
    raise

  def wait() -> None:
    try:
      response.result()
    except Exception as error:
      _abandon(error, others)
      raise

  return wait


def finish_save(folder: pathlib.Path) -> None:
  """Writes the checksums of a folder that Orbax has written; raises OSError."""
  # They hold the absolute path of this machine, and no load needs them.
  for marker in folder.rglob('commit_success.txt'):
    marker.unlink()
  write_manifest(folder)


def load_metadata(folder: pathlib.Path) -> object:
  """The metadata of a step; raises RunError unless all its files are as written."""
  if reason := find_corruption(folder):
    raise RunError(f'the checkpoint {folder} is damaged: {reason}')
  try:
    return read_json(folder / METADATA_FILE, _MAX_JSON_BYTES)
  except UserError as error:
    raise RunError(f'the checkpoint {folder} is damaged: {error}') from error


def saved_arrays(folder: pathlib.Path, item: str) -> dict[str, SavedArray]:
  """The shapes and types of an item's arrays, by name; no array is read.

  Raises RunError if Orbax cannot read them, or if they would take much more memory than
  the sizes of the files let expect.
  """
  with _reading(folder):
    for path in _json_files(folder, item):
      read_json(path, _MAX_JSON_BYTES)
    tree = ocp.metadata(str(folder), checkpointable_name=item).metadata
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    named = {array_name(path): leaf for path, leaf in leaves}
    chunks = {name: leaf.storage_metadata.chunk_shape for name, leaf in named.items()}
    arrays = {
      name: SavedArray(tuple(leaf.shape), np.dtype(leaf.dtype))
      for name, leaf in named.items()
    }
    files = [path for path in (folder / item).rglob('*') if path.is_file()]
    num_bytes = sum(path.stat().st_size for path in files)
  if not arrays:
    raise RunError(f'{folder} cannot be read: Orbax finds no arrays in its {item}')
  _check_memory(folder, arrays, chunks, num_bytes)
  return arrays


def load_arrays(
  folder: pathlib.Path, abstract: Mapping[str, PyTree]
) -> dict[str, PyTree]:
  """Items of a folder, with the shapes and shardings of `abstract`; raises RunError."""
  with _reading(folder):
    return ocp.load_checkpointables(str(folder), dict(abstract))


def one_line(error: BaseException) -> str:
  """The type of an error and what it says, shortened, without TensorStore's sources."""
  text = ' '.join(str(error).split('[source locations', 1)[0].split())
  return f'{type(error).__name__}: {text if len(text) <= 300 else f"…{text[-300:]}"}'


def array_name(path: tuple) -> str:
  """The name of an array in a state, or in what Orbax tells of one."""
  # Both end in the field of the variable that holds the array.
  name = jax.tree_util.keystr(path, simple=True, separator='.')
  return name.removesuffix('.value')


@contextlib.contextmanager
def quiet_orbax() -> Iterator[None]:
  """Keeps Orbax from printing the errors that it raises, too, with their tracebacks.

  Where several parts of a save fail, it raises the first error, and leaves the others
  to its log and to asyncio's.
  """
  logger, asyncio_logger = absl_logging.get_absl_logger(), logging.getLogger('asyncio')

  def is_wanted(record: logging.LogRecord) -> bool:
    from_orbax = _PACKAGE in pathlib.Path(record.pathname).parents
    return record.levelno < logging.WARNING or not from_orbax

  def is_retrieved(record: logging.LogRecord) -> bool:
    return 'exception was never retrieved' not in record.getMessage()

  logger.addFilter(is_wanted)
  asyncio_logger.addFilter(is_retrieved)
  try:
    yield
  finally:
    logger.removeFilter(is_wanted)
    asyncio_logger.removeFilter(is_retrieved)


def _abandon(error: BaseException, others: set[threading.Thread]) -> None:
  """Lets what a failed save has started come to its end, while it is still unheard.

  `others` are the threads that ran before it.
  """
  others = others | {threading.current_thread()}
  deadline = time.monotonic() + _SECONDS_TO_END
  while started := set(threading.enumerate()) - others:
    if (seconds := deadline - time.monotonic()) < 0:
      break
    started.pop().join(seconds)
  with warnings.catch_warnings():
    warnings.filterwarnings('ignore', 'coroutine .* was never awaited')
    _release(error)


def _release(error: BaseException | None) -> None:
  """Frees what the tracebacks of an error hold, such as tasks that would yet print."""
  while error is not None:
    traceback.clear_frames(error.__traceback__)
    error = error.__cause__ or error.__context__
  gc.collect(1)  # what is young: to go through all objects takes long


def _json_files(folder: pathlib.Path, item: str) -> Iterator[pathlib.Path]:
  """The files that Orbax would read whole, of whatever size and depth they are."""
  yield folder / '_CHECKPOINT_METADATA'
  yield folder / item / '_METADATA'
  yield folder / item / '_sharding'
  yield from (folder / item / 'array_metadatas').iterdir()


def _check_memory(
  folder: pathlib.Path,
  arrays: Mapping[str, SavedArray],
  chunks: Mapping[str, tuple[int, ...]],
  on_disk: int,
) -> None:
  for name, chunk in chunks.items():
    shape = arrays[name].shape
    # A whole chunk is made in memory, whatever part of it is asked for.
    if len(chunk) != len(shape) or any(
      part > max(size, 1) for part, size in zip(chunk, shape, strict=True)
    ):
      raise RunError(
        f'{folder} is damaged: {name} is saved in pieces of {chunk}, which are larger '
        f'than its shape {shape}'
      )
  needed = sum(
    math.prod(array.shape) * array.dtype.itemsize for array in arrays.values()
  )
  allowed = max(_SMALL_BYTES, _MAX_COMPRESSION * on_disk)
  if needed > allowed:
    raise RunError(
      f'{folder} is damaged: it says that its arrays have {needed:,} bytes, and its '
      f'files have {on_disk:,}; that many hold at most {allowed:,}'
    )


@contextlib.contextmanager
def _reading(folder: pathlib.Path) -> Iterator[None]:
  """Raises RunError, in one line that names the folder, for whatever is raised."""
  with quiet_orbax(), warnings.catch_warnings():
    warnings.filterwarnings('ignore', 'coroutine .* was never awaited')
    try:
      yield
    except Exception as error:
      reason: BaseException = error
      while reason.__cause__ is not None:  # Orbax does not say it
        reason = reason.__cause__
      failure = RunError(f'{folder} cannot be read: {one_line(reason)}')
      _release(error)
      raise failure from error
