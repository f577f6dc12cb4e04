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
import importlib.metadata
import json
import pathlib
import platform
import secrets
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from absl import logging
from jaxtyping import PyTree
from ml_collections import ConfigDict

from zoo.config.validation import Config, differences, to_json
from zoo.core.errors import RunError, UserError, shown
from zoo.host import processes
from zoo.host.files import (
  delete_folder,
  gcs,
  is_url,
  move_folder,
  read_json,
  sync_folder,
  write_atomically,
)
from zoo.storage import lease
from zoo.storage.orbax_folders import (
  MARKER,
  METADATA_FILE,
  check_precision,
  load_arrays,
  one_line,
  start_save,
)
from zoo.storage.steps import (
  FORMAT,
  MANIFEST,
  chosen_step,
  find_corruption,
  killed_saves,
  step_folders,
  step_of,
  write_manifest,
)

_PACKAGES = 'icl-zoo', 'jax', 'flax', 'optax', 'orbax-checkpoint'
_TEMPORARY = '.saving.'  # before the number of a local step that is not complete


class Checkpoints:
  """The checkpoints of the run that is being trained; a context manager.

  Opening it deletes what a killed run left, and moves damaged steps into
  `<workdir>/damaged`, with a warning that names them. Process 0 does this, and names,
  completes and deletes steps; all processes write their arrays.
  """

  def __init__(self, workdir: pathlib.Path, keep: int, metadata: Mapping[str, object]):
    """Keeps the `keep` newest steps, each with the `metadata`, which is JSON.

    Raises UserError if the newest step was saved by another run, or under another
    number; RunError; OSError.
    """
    self._metadata: dict[str, Any] = {'format': FORMAT, **metadata}
    self._in_bucket = is_url(workdir)
    # Orbax takes absolute paths only.
    self._workdir = workdir if self._in_bucket else workdir.resolve()
    self._folder = self._workdir / 'checkpoints'
    self._keep = keep
    self._saving: concurrent.futures.Future[None] | None = None
    self._known: list[int] = []  # the good steps that this launch has seen
    self.set_aside = processes.run_on_main(self._open)  # whether a step was damaged

  def __enter__(self) -> Checkpoints:
    return self

  def __exit__(self, *exception: object) -> None:
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

  def check_precision(self, step: int, abstract: Mapping[str, PyTree]) -> None:
    """Raises UserError if the weights of a step are of other types than `abstract`'s.

    Raises RunError if it cannot be read.
    """
    check_precision(self._path_of(step), 'model', abstract['model'])

  def load(self, step: int, abstract: Mapping[str, PyTree]) -> dict[str, PyTree]:
    """The state at a step, with the shapes and shardings of `abstract`.

    Raises RunError if it cannot be read.
    """
    return load_arrays(self._path_of(step), abstract)

  def _path_of(self, step: int) -> pathlib.Path:
    """The folder of a step; of two saves of it that which was checked."""
    name = processes.run_on_main(
      lambda: chosen_step(self._folder, step_folders(self._folder), step).name
    )
    return self._folder / name

  def save(
    self,
    step: int,
    state: Mapping[str, PyTree],
    before_commit: Callable[[], None] = lambda: None,
  ) -> None:
    """Starts to save a state, and returns as soon as its arrays may be donated.

    When all is written, `before_commit` is called in the background, on process 0.
    Raises RunError if this save or the previous one could not be written.
    """
    self.wait()
    name = f'{_TEMPORARY}{step}'
    if self._in_bucket:
      name = processes.run_on_main(lambda: f'{step}-{secrets.token_hex(8)}')
    folder = self._folder / name
    try:
      self._check_lease()
      written = start_save(folder, state, {**self._metadata, 'step': step})
    except Exception as error:
      raise self._failure(error) from error

    def finish() -> None:
      written()  # by all processes
      if processes.index() == 0:
        before_commit()
        self._complete(folder, step)

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
    if not self._in_bucket:
      self._folder.mkdir(parents=True, exist_ok=True)
    temporary = [] if self._in_bucket else self._folder.glob(f'{_TEMPORARY}*')
    for left_over in [*temporary, *killed_saves(self._folder)]:
      logging.info('deleting %s, which a kill has left', left_over)
      delete_folder(left_over)
    found = False
    # Older steps than the newest good one matter only if that one fails later.
    for folder in step_folders(self._folder):
      reason = find_corruption(folder)
      if reason is None:
        self._check_own(folder)
        self._known = [step_of(folder)]
        break
      found = True
      self._set_aside(folder, reason)
    return found

  def _check_own(self, folder: pathlib.Path) -> None:
    """Raises UserError unless a step is one of this run."""
    if self._in_bucket and not (folder / MARKER).exists():
      write_atomically(folder / MARKER, '')  # a local step, copied into a bucket
    saved, wanted = read_json(folder / METADATA_FILE), self._metadata
    step = step_of(folder)
    if saved.get('step') != step:
      raise UserError(
        f'{folder} holds step {saved.get("step")!r}, not step {step}; give it its own '
        'number again, or move it out of this folder'
      )
    differing = []
    if config := wanted.get('config'):
      differing = differences(saved.get('config') or {}, ConfigDict(config))
    if saved.get('points') != wanted.get('points'):
      differing.append('points')
    if differing:
      raise UserError(
        f'{folder} was saved by a run of another config, and cannot be resumed from '
        f'here; it differs in {shown(differing)}; move it out of this folder'
      )

  def _set_aside(self, folder: pathlib.Path, reason: str) -> None:
    aside = self._workdir / 'damaged'
    target, copy = aside / folder.name, 1
    while target.exists():
      copy += 1
      target = aside / f'{folder.name}.{copy}'
    move_folder(folder, target)
    logging.warning(
      'checkpoint step %d is damaged: %s; moved to %s, falling back to the previous '
      'one',
      step_of(folder),
      reason,
      target,
    )

  def _complete(self, written: pathlib.Path, step: int) -> None:
    """Adds checksums to a step, gives it its name, and deletes the oldest steps."""
    # Another program would have deleted files only after the lease had ended.
    self._check_lease()
    write_manifest(written)
    if not self._in_bucket:
      written.rename(self._folder / str(step))
      sync_folder(self._folder)  # before an older step goes, or a power cut may undo it
    folders = step_folders(self._folder)
    self._known = sorted(map(step_of, folders[: self._keep]))
    for old in folders[self._keep :]:
      if self._in_bucket:
        (old / MANIFEST).unlink(missing_ok=True)  # without it the rest is no step
        delete_folder(old)
        continue
      # A concurrent reader finds the whole step under its name, or nothing.
      deleting = old.with_name(f'{_TEMPORARY}{old.name}.deleting')
      old.rename(deleting)
      with contextlib.suppress(OSError):  # the next start deletes the rest
        delete_folder(deleting)

  def _check_lease(self) -> None:
    if processes.index() == 0:
      lease.make_sure(self._folder)

  def _failure(self, error: Exception) -> RunError:
    if isinstance(error, lease.LostLease):
      return error
    known = self._known
    saved = f'there are good ones at steps {known}' if known else 'there is none yet'
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
  """Saves a single step of a run, unless it is there; raises RunError, OSError."""
  target = workdir / 'checkpoints' / str(step)
  if find_corruption(target) is None:
    return
  delete_folder(target)  # which may be incomplete
  if is_url(target):
    write_atomically(target / MARKER, '')
  with new_step(target, state, {'format': FORMAT, **metadata, 'step': step}):
    pass  # nothing is to be checked


@contextlib.contextmanager
def new_step(
  target: pathlib.Path, state: Mapping[str, PyTree], metadata: Mapping[str, object]
) -> Iterator[pathlib.Path]:
  """Writes a whole step; the block may read it before it is put at `target`.

  An error, also in the block, leaves nothing there. Raises OSError. Orbax makes some
  hundred requests for a save into a bucket, so a local copy is made.
  """
  parent = None if is_url(target) else target.absolute().parent
  if parent is not None:
    parent.mkdir(parents=True, exist_ok=True)
  with tempfile.TemporaryDirectory(
    dir=parent,
    prefix=f'{_TEMPORARY}{target.name}.',
    ignore_cleanup_errors=True,  # of what Orbax may write meanwhile
  ) as temporary:
    folder = pathlib.Path(temporary, 'step')
    try:
      start_save(folder, state, metadata)()
    except Exception as error:
      raise OSError(one_line(error)) from error
    write_manifest(folder)
    yield folder
    if parent is not None:
      folder.replace(target)
      sync_folder(parent)
      return
    try:
      gcs().upload(folder, target, last=MANIFEST)  # without it the rest is no step
    except OSError:
      with contextlib.suppress(OSError):
        delete_folder(target)
      raise


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


def run_metadata(config: Config) -> dict[str, object]:
  """The config of a run, and the versions that run it, as plain JSON."""
  versions = {name: _version(name) for name in _PACKAGES}
  return {
    'config': json.loads(to_json(config)),
    'versions': {'python': platform.python_version(), **versions},
  }


def _version(package: str) -> str | None:
  """The installed version; None for a package that runs from its source tree."""
  try:
    return importlib.metadata.version(package)
  except importlib.metadata.PackageNotFoundError:
    return None
