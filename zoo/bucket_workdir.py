"""Workdirs in a bucket: gs://bucket/runs/a.

The records of a run are written into a local folder, its stage, as into any workdir,
and mirrored into the bucket by process 0: all files that have changed, every 30 s, at
saves and at the end. Checkpoints go into the bucket at once, each with the records
until its step.
"""

from __future__ import annotations

import contextlib
import pathlib
import tempfile
import threading
import time

from absl import logging

from zoo import buckets, processes
from zoo.buckets import Conflict, Folder, Lock, LostLock, Unreachable
from zoo.config import Config, to_json
from zoo.errors import RunError, UserError
from zoo.files import UnreadableFile, parse_json
from zoo.workdir import check_same_config

_CONFIG = 'config.json'
_MIRROR_SECONDS = 30.0
_MIRRORED_AT_START = ('summary.json',)


class BucketWorkdir:
  """The workdir of a run in a bucket, locked for this program; a context manager.

  Raises UserError, and writes nothing, when it belongs to another config, holds
  something else, is in use, or cannot be read.
  """

  stage: pathlib.Path  # the local folder of this process

  def __init__(self, url: str, config: Config, patience: float):
    with processes.propagate_errors():
      self.folder = buckets.open_folder(url, patience)
    self._lock = Lock(self.folder)
    self._config = config
    self._uploaded: dict[str, tuple[int, int]] = {}  # time and size of each file
    self._mirroring = threading.Lock()
    self._stop = threading.Event()
    self._unreachable_since: float | None = None
    self._lost: LostLock | None = None
    self._stack = contextlib.ExitStack()

  def __enter__(self) -> BucketWorkdir:
    with contextlib.ExitStack() as stack:
      temporary = tempfile.TemporaryDirectory(prefix='icl_zoo_')
      folder = pathlib.Path(stack.enter_context(temporary))
      self.stage = folder / self.folder.url.rpartition('/')[2]  # its name is shown
      self.stage.mkdir()
      processes.run_on_main(self._open)
      if processes.index() == 0:
        stack.callback(self._close)
        threading.Thread(target=self._keep, name='bucket', daemon=True).start()
      self._stack = stack.pop_all()
    return self

  def __exit__(self, *exception: object) -> None:
    self._stack.close()

  def check(self) -> None:
    """Raises RunError if another program has taken over, or the bucket is gone.

    Only process 0 knows.
    """
    if self._lost is not None:
      raise self._lost
    since = self._unreachable_since
    if since is not None and time.monotonic() - since > self.folder.patience:
      raise Unreachable(
        f'{self.folder} could not be reached for {self.folder.patience:g} s'
      )

  def make_sure(self) -> None:
    """Renews the lock, so that what follows is written by its holder; RunError."""
    try:
      self._lock.renew()
    except LostLock as error:
      self._lost = error
      raise

  def mirror(self) -> None:
    """Copies into the bucket what has changed in the stage; RunError."""
    self.make_sure()
    self._mirror(self.folder)

  def _open(self) -> None:
    """Writes the config, or compares it, takes the lock and reads the summary."""
    saved = self.folder.read(_CONFIG)
    if saved is None:
      if others := [name for name in self.folder.list() if not name.endswith('/')]:
        raise UserError(
          f'{self.folder} is not empty and holds no run (it has {others[0]}); give '
          'another folder'
        )
      try:
        self.folder.write(_CONFIG, f'{to_json(self._config)}\n'.encode(), generation=0)
      except Conflict:  # of another program that has started just now
        saved = self.folder.read(_CONFIG)
    if saved is not None:
      self._compare(saved)
    self._lock.acquire()
    for name in _MIRRORED_AT_START:
      if (found := self.folder.read(name)) is not None:
        (self.stage / name).write_bytes(found.data)
        self._uploaded[name] = _state(self.stage / name)

  def _compare(self, saved: buckets.Content) -> None:
    path = f'{self.folder}/{_CONFIG}'
    try:
      content = parse_json(saved.data, path)
    except UnreadableFile:
      content = None
    check_same_config(path, str(self.folder), content, self._config)

  def _keep(self) -> None:
    """Renews the lock and mirrors the stage, until the end of the run."""
    mirrored = time.monotonic()
    folder = self.folder.with_patience(0.0)
    while not self._stop.wait(buckets.LEASE / 3):
      try:
        self._lock.renew(patience=0.0)
        if time.monotonic() > mirrored + _MIRROR_SECONDS:
          self._mirror(folder)
          mirrored = time.monotonic()
        if self._unreachable_since is not None:
          logging.info('%s can be reached again', self.folder)
        self._unreachable_since = None
      except LostLock as error:
        self._lost = error
        return
      except RunError as error:
        if self._unreachable_since is None:
          self._unreachable_since = time.monotonic()
          logging.warning('%s; training goes on, and this is tried again', error)
      except OSError as error:  # of the stage
        logging.warning('the records could not be mirrored: %s', error)

  def _close(self) -> None:
    """Mirrors the stage and releases the lock, as far as that is possible."""
    self._stop.set()
    if self._lost is not None:
      return
    # The bucket may be out of reach, and the run may already be ending for it.
    away = self._unreachable_since is not None
    try:
      self._lock.renew(patience=0.0 if away else None)
      self._mirror(self.folder.with_patience(0.0) if away else self.folder)
      self._lock.release()
    except (RunError, OSError) as error:
      logging.warning('the last records were not mirrored: %s', error)

  def _mirror(self, folder: Folder) -> None:
    with self._mirroring:
      paths = [
        path
        for path in self.stage.rglob('*')
        if path.is_file() and path.name[0] != '.'  # being written
      ]
      names = {path.relative_to(self.stage).as_posix(): path for path in paths}
      for name, path in names.items():
        if self._uploaded.get(name) != (state := _state(path)):
          folder.write(name, path.read_bytes())
          self._uploaded[name] = state
      gone = self._uploaded.keys() - names.keys()
      folder.delete(gone)
      for name in gone:
        del self._uploaded[name]


def _state(path: pathlib.Path) -> tuple[int, int]:
  status = path.stat()
  return status.st_mtime_ns, status.st_size
