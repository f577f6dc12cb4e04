"""Copies of saved models between a bucket and a local folder, with their checks."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator

from zoo.core.errors import RunError
from zoo.storage.bucket_steps import (
  COPY,
  MANIFEST,
  RECORDS,
  SAVE,
  Objects,
  find_corruption,
  is_complete,
  objects_by_step,
  step_of,
)
from zoo.storage.buckets import Folder, local_stand_in, open_folder
from zoo.storage.steps import MANIFEST as LOCAL_MANIFEST
from zoo.storage.steps import chosen_step, write_manifest

# Objects that no model needs.
_LEFT_OUT = 'optimizer/', RECORDS, MANIFEST


@contextlib.contextmanager
def copied_step(url: str, step: int | None) -> Iterator[pathlib.Path]:
  """Copies a step of a run, or a saved model, from a bucket into a local folder.

  The optimizer of a run is left out. Errors in the block name the URL, not the folder.
  Raises UserError for a URL without checkpoints or a missing step, RunError for damage.
  """
  below, folder, objects = _find(url, step)
  place = f'{folder}/{below}'.rstrip('/')
  if MANIFEST in objects:
    reason = find_corruption(folder, below, objects)
    if reason is not None:
      raise RunError(f'the checkpoint {place} is damaged: {reason}')
  with local_stand_in(place) as local:
    if MANIFEST in objects:
      needed = {
        name: stored
        for name, stored in objects.items()
        if not name.startswith(_LEFT_OUT)
      }
      folder.fetch(needed, local, below)
      write_manifest(local)
    else:  # a copy of a local folder, with a manifest of its own
      folder.fetch(objects, local, below)
    yield local


def upload(local: pathlib.Path, folder: Folder) -> None:
  """Copies a local folder of `zoo.save` into a bucket, or nothing; raises RunError."""
  paths = [path for path in local.rglob('*') if path.is_file()]
  # The manifest last: without it no model is loaded.
  paths.sort(key=lambda path: path.name == LOCAL_MANIFEST)
  names = [path.relative_to(local).as_posix() for path in paths]
  try:
    for name, path in zip(names, paths, strict=True):
      folder.write(name, path.read_bytes())
  except RunError:
    with contextlib.suppress(RunError):
      folder.with_patience(0.0).delete(names)
    raise


def _find(url: str, step: int | None) -> tuple[str, Folder, Objects]:
  """The prefix of the step's names in its folder, the folder, and the objects."""
  folder = open_folder(url)
  objects = folder.list()
  if 'origin/data.json' in objects:  # a step or a saved model
    return '', folder, objects
  if folder.url.endswith('/checkpoints'):
    folder = open_folder(folder.url.removesuffix('/checkpoints'))
  saves = {
    step_of(name): (f'checkpoints/{name}/', found)
    for name, found in objects_by_step(folder, SAVE).items()
    if is_complete(found)
  }
  # Points of sweeps are copied from a local folder.
  saves |= {
    int(name): (f'checkpoints/{name}/', found)
    for name, found in objects_by_step(folder, COPY).items()
    if LOCAL_MANIFEST in found
  }
  below, found = chosen_step(url, saves, step)
  return below, folder, found
