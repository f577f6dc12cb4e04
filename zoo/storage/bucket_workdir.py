"""Workdirs in a bucket: gs://bucket/runs/a.

A run writes its records into a local folder, the stage, as into any workdir. Process 0
copies the files that have changed into the bucket every 30 s, at saves and at the end.
Checkpoints are written directly into the bucket, each with the records up to its step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from zoo.config.validation import Config, to_json
from zoo.core.errors import UserError
from zoo.host import processes
from zoo.host.files import UnreadableFile, parse_json
from zoo.storage import buckets
from zoo.storage.bucket_steps import COPY, objects_by_step
from zoo.storage.buckets import Conflict, Folder, local_stand_in
from zoo.storage.mirror import Mirror, not_a_run
from zoo.storage.workdir import check_same_config

_CONFIG = 'config.json'
_FETCHED = ('summary.json',)


@contextlib.contextmanager
def bucket_workdir(url: str, config: Config, patience: float) -> Iterator[Mirror]:
  """Locks the workdir of a run in a bucket; every process has a stage of its own.

  Raises UserError, and writes nothing, if the workdir belongs to another config, holds
  something else, is in use, or cannot be read.
  """
  with processes.propagate_errors():
    folder = buckets.open_folder(url, patience)
  with local_stand_in(folder.url) as stage:
    mirror = Mirror(folder, stage)

    def open_on_main() -> None:
      _open(folder, config)
      mirror.lock()
      mirror.fetch(_FETCHED)

    processes.run_on_main(open_on_main)
    if processes.index() > 0:
      yield mirror
      return
    mirror.start()
    try:
      yield mirror
    finally:
      mirror.close()


def _open(folder: Folder, config: Config) -> None:
  """Writes the config, or compares it with the one that is there."""
  saved = folder.read(_CONFIG)
  if saved is None:
    if others := folder.list():
      raise not_a_run(folder, others)
    try:
      folder.write(_CONFIG, f'{to_json(config)}\n'.encode(), generation=0)
      return
    except Conflict:  # another program has just written it
      saved = folder.read(_CONFIG)
  if saved is not None:
    _compare(f'{folder}/{_CONFIG}', folder, saved.data, config)
  if objects_by_step(folder, COPY) and not objects_by_step(folder):
    raise UserError(
      f'{folder} was copied from a local folder: its checkpoints can be loaded, but a '
      'run in a bucket cannot go on from them; resume it in a local folder, or give '
      'another URL'
    )


def _compare(path: str, folder: Folder, saved: bytes, config: Config) -> None:
  try:
    content = parse_json(saved, path)
  except UnreadableFile:
    content = None
  check_same_config(path, str(folder), content, config)
