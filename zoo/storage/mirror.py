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
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping

from absl import logging

from zoo.core.errors import RunError, UserError, in_one_line
from zoo.host.files import UnreadableFile
from zoo.storage import bucket_lock, buckets
from zoo.storage.bucket_lock import (
  Lock,
  LostLock,
  is_lock,
  lock_of_part,
  locks_of_parts,
  wait_for_end,
)
from zoo.storage.buckets import Changed, Folder, Stored, Unreachable, local_stand_in

_SECONDS = 30.0  # between two copies
_MANIFEST = 'SHA256SUMS'  # the last file of a checkpoint
_TRIES = 5  # to read all objects of a folder as they are listed
_SUMMARY = 'summary.json'  # the last file of a run

# Locks a part of a folder, named by a path in it, and waits for that if it is told to;
# whether that succeeded.
Hold = Callable[[pathlib.Path, bool], contextlib.AbstractContextManager[bool]]

# The time and size of each file of a stage when it was copied.
Copied = dict[str, tuple[int, int]]


class Mirror:
  """Copies the files of a local folder, the stage, into a folder of a bucket.

  Files that have changed are copied every 30 s, when `copy` is called and at the end.
  Files and folders whose names begin with a dot are not copied. Of the files that are
  deleted, only those of checkpoints are also deleted in the bucket.
  """

  def __init__(
    self,
    folder: Folder,
    stage: pathlib.Path,
    lock: Lock | None = None,
    copied: Copied | None = None,
  ):
    """A mirror that `lock` protects, by default that of the whole folder.

    `copied` is what an earlier mirror has copied between the same folders.
    """
    self.folder = folder
    self.stage = stage
    self._lock = lock or Lock(folder)
    self._copied: Copied = {} if copied is None else copied
    # False before the stage is complete and after the end: nothing is copied then.
    self._ready = False
    self._copying = threading.Lock()
    self._stop = threading.Event()
    self._renewed = -math.inf  # when the lock was last renewed, by time.monotonic()
    self._unreachable_since: float | None = None
    self._reason = ''  # why it is, if that is not plain
    self._lost: LostLock | None = None

  def lock(self) -> None:
    """Locks the folder; raises UserError if another program holds the lock."""
    self._lock.acquire()

  def fetch(self, names: Collection[str]) -> None:
    """Copies into the stage those of `names` that exist; raises RunError."""
    objects = self.folder.list()
    self._fetch({name: objects[name] for name in names if name in objects})

  def fetch_all(self) -> set[str]:
    """Makes the stage equal to the folder of the bucket; raises RunError.

    Returns the names of the objects that are left out: incomplete checkpoints, which
    another program is copying, or was copying when it was killed.
    """
    for _ in range(_TRIES - 1):
      # Programs that have other parts may change them between listing and reading.
      with contextlib.suppress(Changed, UnreadableFile):
        return self._fetch_all()
    return self._fetch_all()

  def _fetch_all(self) -> set[str]:
    objects = self.folder.list()
    files = {name for name in objects if not is_lock(name)}
    whole = {name for name in files if _is_whole(name, objects)}
    for name in self._copied.keys() - whole:  # another program has deleted it
      (self.stage / name).unlink(missing_ok=True)
      del self._copied[name]
    self._fetch({name: objects[name] for name in whole})
    return files - whole

  def _fetch(self, objects: Mapping[str, Stored]) -> None:
    try:
      self.folder.fetch(objects, self.stage)
    finally:  # what was copied before an error may not be in the next listing
      paths = {name: self.stage / name for name in objects}
      here = {name: _state(path) for name, path in paths.items() if path.is_file()}
      self._copied.update(here)
    self._ready = True

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
        f'{self._reason}'
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
      self._ready = False  # the stage may be deleted now
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
      except Exception as error:  # the lock would end if this thread did
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
      except Exception as error:  # such as an OSError of the stage
        logging.warning('the records could not be copied: %s', in_one_line(error))

  def _note_unreachable(self, error: Exception) -> None:
    said = in_one_line(error)
    self._reason = '' if isinstance(error, Unreachable) else f': {said}'
    if self._unreachable_since is None:
      self._unreachable_since = time.monotonic()
      logging.warning('%s; training goes on, and this is tried again', said)

  def _copy(self, folder: Folder) -> None:
    with (
      self._copying,
      concurrent.futures.ThreadPoolExecutor(buckets.THREADS) as threads,
    ):
      if not self._ready:
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
    with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
      path = self.stage / name
      if self._copied.get(name) == (state := _state(path)):
        return
      content = path.read_bytes()
      if time.monotonic() > self._renewed + bucket_lock.LEASE / 2:  # it was suspended
        self.make_sure(folder.patience)
      if name.endswith(f'/{_MANIFEST}') and (step := _step(name)):
        # What a program that was killed has left of this step.
        found = folder.list(step)
        folder.delete([left for left in found if not (self.stage / left).exists()])
      folder.write(name, content)
      self._copied[name] = state


@contextlib.contextmanager
def mirrored(url: str, patience: float = 600.0) -> Iterator[pathlib.Path]:
  """A local copy of a folder in a bucket, whose changes are copied back.

  If another program takes over, or the bucket cannot be reached for `patience` seconds,
  the block is asked to stop as by SIGTERM, and RunError is raised. Raises UserError if
  another program uses the folder, or if it holds something else; and the errors of
  `buckets.open_folder`.
  """
  folder = _open(url, patience)
  with local_stand_in(folder.url) as local:
    parts = locks_of_parts(folder)
    wait_for_end(parts.values())
    mirror = Mirror(folder, local)
    mirror.lock()
    # Again, since a program that shares the folder may have begun meanwhile.
    with _kept(mirror, lambda: (locks_of_parts(folder) | parts).values()) as incomplete:
      folder.delete(incomplete)
      yield local


@contextlib.contextmanager
def mirrored_in_parts(
  url: str, patience: float = 600.0
) -> Iterator[tuple[pathlib.Path, Hold]]:
  """A local copy of a folder in a bucket that several programs share, and its locks.

  When a program gets the lock of a part, its copy is brought up to date. While it holds
  the lock, its changes are copied back, as by `mirrored`; it may change only that part.
  A part is named by a path in the local copy. Raises the errors of `mirrored`.
  """
  folder = _open(url, patience)
  with local_stand_in(folder.url) as local:
    copied: Copied = {}
    whole = Lock(folder)
    locks: dict[pathlib.Path, Lock] = {}

    @contextlib.contextmanager
    def hold(path: pathlib.Path, wait: bool = False) -> Iterator[bool]:
      part = path.relative_to(local).as_posix()
      lock = locks.setdefault(path, lock_of_part(folder, part))
      while not (held := lock.try_acquire()) and wait:
        time.sleep(bucket_lock.LEASE / 30)
      if not held:
        yield False
        return
      with _kept(Mirror(folder, local, lock, copied), lambda: [whole]):
        yield True

    yield local, hold


def _open(url: str, patience: float) -> Folder:
  """Opens a folder; raises UserError if it holds something else."""
  folder = buckets.open_folder(url, patience)
  objects = folder.list()
  if objects and not any(map(is_lock, objects)):
    raise not_a_run(folder, objects)
  return folder


@contextlib.contextmanager
def _kept(mirror: Mirror, others: Callable[[], Iterable[Lock]]) -> Iterator[set[str]]:
  """Renews the lock, which is held, and copies changes back during the block.

  First it waits until nobody holds the locks of `others`, and fetches all; yields what
  `fetch_all` returns.
  """
  mirror.start()
  end = threading.Event()
  try:
    wait_for_end(others())
    incomplete = mirror.fetch_all()
    threading.Thread(target=_watch, args=(mirror, end), daemon=True).start()
    yield incomplete
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
