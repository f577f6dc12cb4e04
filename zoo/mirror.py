"""Local folders whose changes are copied into a locked folder in a bucket."""

from __future__ import annotations

import _thread
import concurrent.futures
import contextlib
import math
import os
import pathlib
import re
import signal
import threading
import time
from collections.abc import Collection, Container, Iterator, Mapping

from absl import logging

from zoo import bucket_lock, buckets
from zoo.bucket_lock import LOCK, Lock, LostLock
from zoo.buckets import Folder, Stored, Unreachable, local_stand_in
from zoo.errors import RunError, UserError

_SECONDS = 30.0  # between two copies
_MANIFEST = 'SHA256SUMS'  # the last file of a checkpoint
_SUMMARY = 'summary.json'  # the last file of a run


class Mirror:
  """Copies the files of a local folder, the stage, into a folder of a bucket.

  Files that have changed are copied every 30 s, when `copy` is called and at the end.
  Files and folders whose names begin with a dot are not copied. Of the files that are
  deleted, only those of checkpoints are also deleted in the bucket.
  """

  def __init__(self, folder: Folder, stage: pathlib.Path):
    self.folder = folder
    self.stage = stage
    self._lock = Lock(folder)
    # Time and size of each file when it was copied; None while nothing may be copied:
    # before the stage is complete and after the end.
    self._copied: dict[str, tuple[int, int]] | None = None
    self._copying = threading.Lock()
    self._stop = threading.Event()
    self._renewed = -math.inf  # when the lock was last renewed, by time.monotonic()
    self._unreachable_since: float | None = None
    self._lost: LostLock | None = None

  def lock(self) -> None:
    """Locks the folder; raises UserError if another program holds the lock."""
    self._lock.acquire()

  def fetch(self, names: Collection[str] | None = None) -> None:
    """Copies into the stage those of `names` that exist, by default all objects.

    Incomplete checkpoints, which a killed program leaves, are deleted instead. Raises
    RunError.
    """
    objects = self.folder.list()
    if names is not None:
      objects = {name: objects[name] for name in names if name in objects}
    whole = {
      name: stored
      for name, stored in objects.items()
      if name != LOCK and _is_whole(name, objects)
    }
    self.folder.fetch(whole, self.stage)
    self.folder.delete(objects.keys() - whole.keys() - {LOCK})
    self._copied = {name: _state(self.stage / name) for name in whole}

  def start(self) -> None:
    """Keeps the lock, and the copy up to date, until `close`."""
    # In two threads, since a copy may take longer than a lock lasts.
    for keep in self._keep_lock, self._keep_copy:
      threading.Thread(target=keep, name='bucket', daemon=True).start()

  def check(self) -> None:
    """Raises RunError if another program has taken over, or the bucket is gone."""
    if self._lost is not None:
      raise self._lost
    since = self._unreachable_since
    if since is not None and time.monotonic() - since > self.folder.patience:
      raise Unreachable(
        f'{self.folder} could not be reached for {self.folder.patience:g} s'
      )

  def make_sure(self, patience: float | None = None) -> None:
    """Renews the lock before a write; raises RunError if that fails."""
    try:
      self._lock.renew(patience)
      self._renewed = time.monotonic()
    except LostLock as error:
      self._lost = error
      raise

  def copy(self) -> None:
    """Copies into the bucket what has changed in the stage; raises RunError."""
    self.make_sure()
    self._copy(self.folder)

  def close(self) -> None:
    """Copies what has changed and releases the lock, as far as that is possible."""
    # The bucket may be out of reach, which may be why the program is ending.
    away = self._unreachable_since is not None
    try:
      if self._lost is None:
        self.make_sure(patience=0.0 if away else None)
        self._copy(self.folder.with_patience(0.0) if away else self.folder)
    except (RunError, OSError) as error:
      logging.warning('the last records were not copied: %s', error)
    with self._copying:
      self._copied = None  # the stage may be deleted now
    self._stop.set()
    if self._lost is None:
      with contextlib.suppress(RunError):
        self._lock.release()

  def _keep_lock(self) -> None:
    while not self._stop.wait(bucket_lock.LEASE / 3):
      try:
        self.make_sure(patience=0.0)
        if self._unreachable_since is not None:
          logging.info('%s can be reached again', self.folder)
        self._unreachable_since = None
      except LostLock:
        return
      except RunError as error:
        self._note_unreachable(error)

  def _keep_copy(self) -> None:
    folder = self.folder.with_patience(0.0)
    while not self._stop.wait(_SECONDS) and self._lost is None:
      try:
        self._copy(folder)
      except LostLock:
        return
      except RunError as error:
        self._note_unreachable(error)
      except OSError as error:  # of the stage
        logging.warning('the records could not be copied: %s', error)

  def _note_unreachable(self, error: RunError) -> None:
    if self._unreachable_since is None:
      self._unreachable_since = time.monotonic()
      logging.warning('%s; training goes on, and this is tried again', error)

  def _copy(self, folder: Folder) -> None:
    with (
      self._copying,
      concurrent.futures.ThreadPoolExecutor(buckets.THREADS) as threads,
    ):
      if self._copied is None:
        return
      groups = _in_order(self.stage)
      for group in groups:
        list(threads.map(lambda name: self._upload(folder, name), group))
      gone = self._copied.keys() - {name for group in groups for name in group}
      steps = [name for name in gone if _step(name)]
      # The manifest first: without it the rest is no checkpoint.
      for name in sorted(steps, key=lambda name: not name.endswith(f'/{_MANIFEST}')):
        folder.delete([name])
        del self._copied[name]

  def _upload(self, folder: Folder, name: str) -> None:
    """Copies a file if it has changed; raises RunError."""
    assert self._copied is not None
    with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
      path = self.stage / name
      if self._copied.get(name) == (state := _state(path)):
        return
      content = path.read_bytes()
      if time.monotonic() > self._renewed + bucket_lock.LEASE / 2:  # it was suspended
        self.make_sure(folder.patience)
      folder.write(name, content)
      self._copied[name] = state


@contextlib.contextmanager
def mirrored(
  url: str, num_processes: int = 1, patience: float = 600.0
) -> Iterator[pathlib.Path]:
  """A local copy of a folder in a bucket, whose changes are copied back.

  If another program takes over, or the bucket cannot be reached for `patience` seconds,
  the block is asked to stop as by SIGTERM, and RunError is raised. Raises UserError if
  several processes are to share the folder, if another program uses it, or if it holds
  something else; and the errors of `buckets.open_folder`.
  """
  if num_processes > 1:
    raise UserError(
      f'{num_processes} processes would share {url}, which is in a bucket; start one, '
      'or give a folder on a disk that they share'
    )
  folder = buckets.open_folder(url, patience)
  objects = folder.list()
  if objects and LOCK not in objects:
    raise not_a_run(folder, objects)
  with local_stand_in(folder.url) as local:
    mirror = Mirror(folder, local)
    mirror.lock()
    mirror.start()
    end = threading.Event()
    try:
      mirror.fetch()
      threading.Thread(target=_watch, args=(mirror, end), daemon=True).start()
      yield local
      mirror.check()
      mirror.copy()
    finally:
      end.set()
      mirror.close()


def not_a_run(folder: Folder, objects: Mapping[str, Stored]) -> UserError:
  """The error for a folder that holds something else."""
  return UserError(
    f'{folder} is not empty and holds no run (it has {min(objects)}); give another '
    'folder'
  )


def _watch(mirror: Mirror, end: threading.Event) -> None:
  """Asks the main thread to stop, as SIGTERM does, once the bucket is lost."""
  while not end.wait(1.0):
    try:
      mirror.check()
    except RunError:
      _thread.interrupt_main(signal.SIGTERM)


def _in_order(stage: pathlib.Path) -> list[list[str]]:
  """The files of a stage, in groups to be copied one after the other.

  A program that is killed in between must not leave a checkpoint without the lines that
  were written before it, nor a summary without its checkpoint. What is written last is
  therefore listed first, and copied last.
  """
  groups = [
    [name for name in _walk(stage) if _group(name) == group] for group in (3, 2, 1, 0)
  ]
  return groups[::-1]


def _group(name: str) -> int:
  folders, _, file = name.rpartition('/')
  if file == _SUMMARY:
    return 3
  if 'checkpoints' in folders.split('/'):
    return 2 if file == _MANIFEST else 1
  return 0


def _walk(stage: pathlib.Path) -> Iterator[str]:
  """The names of the files below a folder, without what is being written."""
  for folder, folders, files in os.walk(stage):
    folders[:] = [name for name in folders if name[0] != '.']
    for name in files:
      if name[0] != '.':
        yield pathlib.Path(folder, name).relative_to(stage).as_posix()


def _is_whole(name: str, names: Container[str]) -> bool:
  """Whether an object belongs to no checkpoint, or to one that has its manifest."""
  step = _step(name)
  return step is None or f'{step}{_MANIFEST}' in names


def _step(name: str) -> str | None:
  """The folder of the checkpoint that a file belongs to; None if it belongs to none."""
  step = re.match('(?:.*/)?checkpoints/[0-9]+/', name)
  return step and step[0]


def _state(path: pathlib.Path) -> tuple[int, int]:
  status = path.stat()
  return status.st_mtime_ns, status.st_size
