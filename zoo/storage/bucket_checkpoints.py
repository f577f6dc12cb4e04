"""The checkpoints of a run in a bucket, written by Orbax, with checksums.

Nothing can be renamed in a bucket, so each save has a folder of its own,
`checkpoints/<step>-<a random number>`. What a killed or suspended program has left, or
still writes, therefore never mixes with the step of another program. When all objects
are complete, `MD5SUMS` is added, in the format of md5sum; only this file makes the
folder a step. Its sums come from the bucket's listing, which shows later damage without
reading any object. (A listing also has CRC32C, but that is the same for all files in
TensorStore's format OCDBT, since they end in their own CRC32C.)

A step also holds the records up to that step. The next launch continues from them, so
that no line is lost or doubled, whenever a program is killed.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import secrets
import time
from collections.abc import Callable, Mapping

from absl import logging
from jaxtyping import PyTree

from zoo.core.errors import RunError
from zoo.host import processes
from zoo.host.files import parse_json
from zoo.storage.bucket_lock import LostLock
from zoo.storage.bucket_steps import (
  DAMAGED,
  MANIFEST,
  RECORDS,
  Objects,
  find_corruption,
  is_complete,
  manifest_of,
  objects_by_step,
  step_of,
)
from zoo.storage.checkpointer import Checkpoints, in_background
from zoo.storage.metadata import check_own_step
from zoo.storage.mirror import Mirror
from zoo.storage.orbax_errors import one_line, quiet_orbax
from zoo.storage.orbax_folders import METADATA_FILE, load_arrays, start_save
from zoo.storage.steps import FORMAT

_MAX_PAUSE = 16.0  # seconds between two tries of a save
_MAX_RECORD_BYTES = 2**30


class BucketCheckpoints:
  """Like `Checkpoints`, in a bucket.

  Opening it deletes what killed programs have left, marks damaged steps, with a warning
  that names them, and copies the records of the newest good step into the stage.
  """

  def __init__(self, mirror: Mirror, keep: int, metadata: Mapping[str, object]):
    """Keeps the `keep` newest steps, each with the `metadata`, which is JSON.

    Raises UserError if the newest step was saved by another run.
    """
    self._metadata = {'format': FORMAT, **metadata}
    self._mirror = mirror
    self._folder = mirror.folder
    self._keep = keep
    self._names: dict[int, str] = {}  # the folder of each step; on process 0
    self._saving: concurrent.futures.Future[None] | None = None
    self._failing_since: float | None = None
    self._failures = 0  # the number of saves that have failed in a row
    self._quiet = contextlib.ExitStack()
    self.set_aside = processes.run_on_main(self._clean)  # whether a step was damaged

  def __enter__(self) -> BucketCheckpoints:
    self._quiet.enter_context(quiet_orbax())
    return self

  def __exit__(self, *exception: object) -> None:
    with self._quiet:
      if exception != (None, None, None):
        return  # the save may wait for the bucket, or for a process that is lost
      self.wait()

  @property
  def latest(self) -> int | None:
    """The newest good step, or None; on process 0."""
    return max(self._names, default=None)

  def load(self, step: int, abstract: Mapping[str, PyTree]) -> dict[str, PyTree]:
    """The state at a step, with the shapes and shardings of `abstract`.

    Raises RunError if it cannot be read.
    """
    name = processes.run_on_main(lambda: self._names[step])
    return load_arrays(f'{self._folder}/checkpoints/{name}', abstract)

  def save(self, step: int, state: Mapping[str, PyTree]) -> None:
    """Starts to save a step; returns as soon as the arrays may be donated.

    If the previous save has failed, this one replaces it. Raises RunError if the run
    cannot go on.
    """
    self.wait()
    self._start(step, state)

  def wait(self) -> bool:
    """Waits until the last save has ended; returns whether it is complete.

    If it is not, the caller has to save again. Raises RunError when patience has run
    out, when another program has taken over, or when one of several processes failed.
    """
    if self._saving is None:
      return True
    while not self._saving.done():
      if processes.index() == 0:
        self._check()  # ends this process, which the others notice
      concurrent.futures.wait([self._saving], timeout=1.0)
    failed, self._saving = self._saving.exception(), None
    if failed is not None and processes.count() > 1:
      # This process ends, which the others notice. They may wait for it within Orbax,
      # so that not all could try again.
      if isinstance(failed, LostLock):
        raise failed
      raise self._failure(one_line(failed)) from failed
    processes.run_on_main(self._check)  # the others wait until the step is complete
    if failed is None:
      self._failures, self._failing_since = 0, None
      return True
    self._note_failure(one_line(failed))
    self._failures += 1
    time.sleep(min(2.0**self._failures, _MAX_PAUSE))
    return False

  def _start(self, step: int, state: Mapping[str, PyTree]) -> None:
    name = processes.run_on_main(lambda: f'{step}-{secrets.token_hex(8)}')
    records = self._mirror.stage / RECORDS
    lines = records.read_bytes() if records.exists() else b''

    def finish(written: Callable[[], None]) -> None:
      written()
      if processes.index() == 0:
        self._commit(name, lines)

    try:
      written = start_save(
        f'{self._folder}/checkpoints/{name}', state, {**self._metadata, 'step': step}
      )
    except Exception as error:
      self._saving = concurrent.futures.Future()
      self._saving.set_exception(error)
    else:
      self._saving = in_background(lambda: finish(written))

  def _commit(self, name: str, records: bytes) -> None:
    """On process 0, makes a step of what was written, and deletes the oldest steps."""
    below = f'checkpoints/{name}/'
    self._folder.write(f'{below}{RECORDS}', records)
    objects = {
      path.removeprefix(below): stored
      for path, stored in self._folder.list(below).items()
    }
    # Another program would have deleted objects only after this lock has ended.
    self._mirror.make_sure()
    self._folder.write(f'{below}{MANIFEST}', manifest_of(objects), generation=0)
    self._names[step_of(name)] = name
    saves = objects_by_step(self._folder)
    for step in sorted(self._names, reverse=True)[self._keep :]:
      old = self._names.pop(step)
      self._delete(old, saves.get(old, {}))
    self._mirror.copy()

  def _delete(self, name: str, objects: Objects) -> None:
    # The manifest first: without it the rest is no step.
    names = [MANIFEST, *(one for one in objects if one != MANIFEST)]
    self._folder.delete(f'checkpoints/{name}/{one}' for one in names)

  def _check(self) -> None:
    """On process 0, raises RunError if the workdir is lost."""
    try:
      self._mirror.check()
    except LostLock:
      raise
    except RunError as error:
      raise self._failure(str(error)) from error

  def _note_failure(self, reason: str) -> None:
    """Records that a save has failed; raises RunError if patience has run out."""
    now = time.monotonic()
    if self._failing_since is None:
      self._failing_since = now
    if now - self._failing_since > self._folder.patience:
      raise self._failure(reason)
    logging.warning('a checkpoint could not be saved: %s; trying again', reason)

  def _failure(self, reason: str) -> RunError:
    steps = sorted(self._names)
    saved = f'there are good ones at steps {steps}' if steps else 'there is none yet'
    if processes.index() > 0:
      saved = 'process 0 knows the good ones'
    return RunError(
      f'no checkpoint can be written to {self._folder}; {saved}; the reason: {reason}'
    )

  def _clean(self) -> bool:
    """On process 0, finds the newest good step; returns whether a newer is damaged."""
    saves = objects_by_step(self._folder)
    for name, objects in saves.items():
      if is_complete(objects):
        self._names[step_of(name)] = name
      elif MANIFEST not in objects:
        logging.info(
          'checkpoint step %d has no %s, as after a kill: deleting it',
          *(step_of(name), MANIFEST),
        )
        self._delete(name, objects)
    found = False
    for step in sorted(self._names, reverse=True):
      name = self._names[step]
      if (
        reason := find_corruption(self._folder, f'checkpoints/{name}/', saves[name])
      ) is None:
        self._check_own(step, name)
        self._read_records(name)
        break  # older ones matter only if this one fails later
      found = True
      del self._names[step]
      marker = f'checkpoints/{name}/{DAMAGED}'
      self._folder.write(marker, f'{reason}\n'.encode())
      logging.warning(
        'checkpoint step %d is damaged: %s; marked by %s, falling back to the previous '
        'one',
        *(step, reason, f'{self._folder}/{marker}'),
      )
    return found

  def _check_own(self, step: int, name: str) -> None:
    """Raises UserError if a step was saved by another run, or under another number."""
    path = f'checkpoints/{name}/{METADATA_FILE}'
    stored = self._folder.read(path)
    if stored is not None:  # unless the step is deleted by hand meanwhile
      saved = parse_json(stored.data, f'{self._folder}/{path}')
      where = f'{self._folder}/checkpoints/{name}'
      check_own_step(where, step, saved, self._metadata)

  def _read_records(self, name: str) -> None:
    records = self._folder.read(f'checkpoints/{name}/{RECORDS}', _MAX_RECORD_BYTES)
    if records is not None:  # unless the step is deleted by hand meanwhile
      (self._mirror.stage / RECORDS).write_bytes(records.data)


AnyCheckpoints = Checkpoints | BucketCheckpoints
