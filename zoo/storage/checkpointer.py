"""The checkpoints of a run, written by Orbax, with checksums that detect damage.

A step is one self-contained folder of `<workdir>/checkpoints`, in a local folder or in
a bucket. It holds the items `model` and `optimizer`, and the metadata: JSON with the
step, the config and the versions that made it. When all its files are complete,
`SHA256SUMS` is added, in the format of sha256sum. Orbax itself would silently restore a
flipped bit, so a step is opened only if all its checksums match.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import itertools
import pathlib
import secrets
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from typing import cast

from absl import logging
from jaxtyping import PyTree

from zoo.core.errors import RunError
from zoo.host import processes
from zoo.host.files import (
  delete_folder,
  is_url,
  move_folder,
  read_json,
  sync_folder,
  upload,
  write_atomically,
)
from zoo.storage import lease
from zoo.storage.metadata import check_own_step
from zoo.storage.orbax_errors import one_line, quiet_orbax
from zoo.storage.orbax_folders import (
  MARKER,
  METADATA_FILE,
  load_arrays,
  start_save,
)
from zoo.storage.steps import (
  FORMAT,
  MANIFEST,
  add_manifest,
  chosen_step,
  files_of,
  find_corruption,
  incomplete_saves,
  step_folders,
  step_of,
  written_sums,
)

_SAVING, _DELETING = '.saving.', '.deleting.'  # before the number of a local step
# Temporary folders that a killed run leaves; the last is that of version 0.1.0.
_LEFT_OVER = f'{_SAVING}*', f'{_DELETING}*', '*.orbax-checkpoint-tmp*'

_exchanges = itertools.count()  # between processes; all count the same ones


def _nothing() -> None:
  pass


class Checkpoints:
  """The checkpoints of the run that is being trained; a context manager.

  Opening it deletes what a killed run left, and moves damaged steps into
  `<workdir>/damaged`, with a warning that names them. Process 0 does this, and names
  and deletes steps; all processes write their arrays, and share the checksums.
  """

  def __init__(self, workdir: pathlib.Path, keep: int, metadata: Mapping[str, object]):
    """Keeps the `keep` newest steps, each with the `metadata`, which is JSON.

    Raises UserError if the newest step was saved by another run, or under another
    number; RunError; OSError.
    """
    self._metadata = {'format': FORMAT, **metadata}
    self._in_bucket = is_url(workdir)
    # Orbax takes absolute paths only.
    self._workdir = workdir if self._in_bucket else workdir.resolve()
    self._folder = self._workdir / 'checkpoints'
    self._keep = keep
    self._saving: concurrent.futures.Future[None] | None = None
    self._quiet = contextlib.ExitStack()
    self.set_aside = self._open()  # whether a step was damaged

  def __enter__(self) -> Checkpoints:
    self._quiet.enter_context(quiet_orbax())
    return self

  def __exit__(self, *exception: object) -> None:
    with self._quiet:
      failed = exception != (None, None, None)
      if failed and (self._in_bucket or processes.count() > 1):
        return  # the save would wait for what may be lost
      try:
        self.wait()
      except RunError:
        # If another exception is being raised, the user must see that one.
        if not failed:
          raise

  @property
  def latest(self) -> int | None:
    """The newest saved step, or None."""
    return next(map(step_of, step_folders(self._folder)), None)

  def load(self, step: int, abstract: Mapping[str, PyTree]) -> dict[str, PyTree]:
    """The state at a step, with the shapes and shardings of `abstract`.

    Raises RunError if it cannot be read.
    """
    # Of two saves of a step the one that was checked.
    name = processes.run_on_main(
      lambda: chosen_step(self._folder, step_folders(self._folder), step).name
    )
    return load_arrays(self._folder / name, abstract)

  def save(
    self,
    step: int,
    state: Mapping[str, PyTree],
    before_commit: Callable[[], None] = _nothing,
  ) -> None:
    """Starts to save a state, and returns as soon as its arrays may be donated.

    When all is written, `before_commit` is called in the background, on process 0.
    Raises RunError if this save or the previous one could not be written.
    """
    self.wait()
    name = f'{_SAVING}{step}'
    if self._in_bucket:
      name = processes.run_on_main(lambda: f'{step}-{secrets.token_hex(8)}')
    exchange = f'sums/{next(_exchanges)}'
    try:
      self._check_lease()
      written = start_save(self._folder / name, state, {**self._metadata, 'step': step})
    except Exception as error:
      raise self._failure(error) from error

    def finish() -> None:
      written()
      if processes.index() == 0:
        before_commit()
      self._complete(self._folder / name, step, exchange)

    self._saving = in_background(finish)

  def wait(self) -> None:
    """Waits until the last save is complete; raises RunError if it failed."""
    if self._saving is None:
      return
    saving, self._saving = self._saving, None
    try:
      saving.result()
    except Exception as error:
      raise self._failure(error) from error
    # The other processes wait until process 0 has completed the step.
    with processes.propagate_errors():
      pass

  def _open(self) -> bool:
    """Deletes left-overs, and sets damaged steps aside; returns whether there were."""
    processes.run_on_main(self._clean)
    found = False
    # Older steps than the newest good one matter only if that one fails later.
    for name in processes.run_on_main(
      lambda: [path.name for path in step_folders(self._folder)]
    ):
      exchange = f'damage/{next(_exchanges)}'
      share = processes.index(), processes.count()
      reasons = processes.gather(exchange, find_corruption(self._folder / name, *share))
      reason = next(filter(None, reasons), None)
      if reason is None:
        processes.run_on_main(lambda name=name: self._check_own(self._folder / name))
        break
      found = True
      processes.run_on_main(
        lambda name=name, reason=reason: self._set_aside(name, str(reason))
      )
    return found

  def _clean(self) -> None:
    if self._in_bucket:
      for left_over in incomplete_saves(self._folder):
        logging.info(
          'checkpoint step %d has no %s, as after a kill: deleting it',
          *(step_of(left_over), MANIFEST),
        )
        delete_folder(left_over)
      return
    self._folder.mkdir(exist_ok=True)
    for pattern in _LEFT_OVER:
      for left_over in self._folder.glob(pattern):
        if left_over.is_dir() and not left_over.is_symlink():
          delete_folder(left_over)
        else:
          left_over.unlink()

  def _check_own(self, step_folder: pathlib.Path) -> None:
    if self._in_bucket and not (step_folder / MARKER).exists():
      write_atomically(step_folder / MARKER, '')  # a local step, copied into a bucket
    saved = read_json(step_folder / METADATA_FILE)
    check_own_step(step_folder, step_of(step_folder), saved, self._metadata)

  def _set_aside(self, name: str, reason: str) -> None:
    aside = self._workdir / 'damaged'
    target, copy = aside / name, 1
    while target.exists():
      copy += 1
      target = aside / f'{name}.{copy}'
    path = self._folder / name
    move_folder(path, target)
    logging.warning(
      'checkpoint step %d is damaged: %s; moved to %s, falling back to the previous '
      'one',
      *(step_of(path), reason, target),
    )

  def _complete(self, written: pathlib.Path, step: int, exchange: str) -> None:
    """Adds checksums to a step, gives it its name, and deletes the oldest steps.

    Each process hashes a share of the files.
    """
    main, number = processes.index(), processes.count()
    if main == 0 and not self._in_bucket:
      for marker in written.rglob(MARKER):
        marker.unlink()
    mine = files_of(written) if main == 0 else None
    names = cast(list[str], processes.gather(f'{exchange}/names', mine)[0])
    shares = processes.gather(
      f'{exchange}/sums', written_sums(written, names[main::number])
    )
    if main > 0:
      return
    sums = dict[str, str]()
    for i, share in enumerate(shares):
      sums |= zip(names[i::number], cast(list[str], share), strict=True)
    # Another program would have deleted files only after the lease had ended.
    self._check_lease()
    add_manifest(written, names, [sums[name] for name in names])
    if not self._in_bucket:
      written.rename(self._folder / str(step))
      sync_folder(self._folder)  # before an older step goes, or a power cut may undo it
    self._delete_oldest()

  def _delete_oldest(self) -> None:
    for old in step_folders(self._folder)[self._keep :]:
      if self._in_bucket:
        (old / MANIFEST).unlink(missing_ok=True)  # without it the rest is no step
        delete_folder(old)
        continue
      # A concurrent reader finds the whole step under its name, or nothing.
      deleting = old.with_name(f'{_DELETING}{old.name}')
      old.rename(deleting)
      with contextlib.suppress(OSError):  # the next start deletes the rest
        delete_folder(deleting)

  def _check_lease(self) -> None:
    if self._in_bucket and processes.index() == 0:
      lease.make_sure(self._folder)

  def _failure(self, error: Exception) -> RunError:
    if isinstance(error, lease.LostLease):
      return error
    try:
      steps = sorted(map(step_of, step_folders(self._folder)))
      saved = f'there are good ones at steps {steps}' if steps else 'there is none yet'
    except OSError:
      saved = 'the folder cannot be read'
    return RunError(
      f'a checkpoint could not be written to {self._folder}; {saved}; the reason: '
      f'{one_line(error)}'
    )


def save_result(
  workdir: pathlib.Path,
  step: int,
  state: Mapping[str, PyTree],
  metadata: Mapping[str, object],
) -> None:
  """Saves a single step of a run, unless it is there; raises RunError, OSError.

  Orbax makes some hundred requests for a save into a bucket, so a local copy is made.
  """
  if not is_url(workdir):
    with Checkpoints(workdir, sys.maxsize, metadata) as checkpoints:
      if checkpoints.latest != step:
        checkpoints.save(step, state)
    return
  with tempfile.TemporaryDirectory(prefix='icl_zoo_') as temporary:
    save_result(pathlib.Path(temporary), step, state, metadata)
    target = workdir / 'checkpoints' / str(step)
    delete_folder(target)  # which may be incomplete
    write_atomically(target / MARKER, '')
    upload(pathlib.Path(temporary, 'checkpoints', str(step)), target, last=MANIFEST)


def in_background(function: Callable[[], None]) -> concurrent.futures.Future[None]:
  """Calls a function in a daemon thread, which does not keep the process alive."""
  future: concurrent.futures.Future[None] = concurrent.futures.Future()

  def call() -> None:
    try:
      future.set_result(function())
    except BaseException as error:
      future.set_exception(error)

  threading.Thread(target=call, name='checkpoint', daemon=True).start()
  return future
