"""All that is asked of Orbax: to write a folder of arrays, describe it, and read it.

No private function of Orbax is called. Of the files that it writes, the names of those
that are JSON are known here, and of the marker `commit_success.txt`.
"""

from __future__ import annotations

import math
import pathlib
import threading
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree
from orbax.checkpoint import v1 as ocp

from zoo.checkpoints.orbax_errors import reading, writing
from zoo.checkpoints.steps import find_corruption, write_manifest
from zoo.errors import RunError, UserError
from zoo.files import MIB, read_json

# On disk the metadata is the item `origin`, as it was in the first checkpoints.
METADATA_ITEM = 'origin'
METADATA_FILE = 'origin/data.json'

# No wait ends by this. Orbax measures it by the clock of the system, which may be set
# while a save is under way; a process that is lost is noticed by its heartbeat.
_TIMEOUT_SECONDS = 365 * 24 * 3600

_MAX_JSON_BYTES = 16 * MIB  # about what 50,000 arrays need
# What a checkpoint may take in memory: this much in any case, and so many times the
# size of its files. Trained weights hardly shrink when they are compressed.
_SMALL_BYTES = 256 * MIB
_MAX_COMPRESSION = 1000


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
  threads = set(threading.enumerate())
  with writing(threads), context:
    response = ocp.save_checkpointables_async(
      str(folder), {**items, METADATA_ITEM: dict(metadata)}
    )

  def wait() -> None:
    with writing(threads):
      response.result()

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
  with reading(folder):
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
  with reading(folder):
    return ocp.load_checkpointables(str(folder), dict(abstract))


def array_name(path: tuple) -> str:
  """The name of an array in a state, or in what Orbax tells of one."""
  # Both end in the field of the variable that holds the array.
  name = jax.tree_util.keystr(path, simple=True, separator='.')
  return name.removesuffix('.value')


def _json_files(folder: pathlib.Path, item: str) -> list[pathlib.Path]:
  """The files that Orbax would read whole, of whatever size and depth they are."""
  names = '_CHECKPOINT_METADATA', f'{item}/_METADATA', f'{item}/_sharding'
  paths = [folder / name for name in names]
  paths += (folder / item / 'array_metadatas').glob('*')
  return [path for path in paths if path.exists()]


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
