"""The checkpoints of a run, written by Orbax, with checksums that detect damage.

A step is one self-contained folder of `<workdir>/checkpoints`, named by its number. It
holds the items `model` and `optimizer`, and the metadata: JSON with the step, the
config and the versions that made it. A step is written under a temporary name. When all
its files are complete, `SHA256SUMS` is added, in the format of sha256sum, and the
folder is renamed. Orbax itself would silently restore a flipped bit, so a step is
opened only if all its checksums match.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import pathlib
import shutil
import threading
from collections.abc import Callable, Mapping

from absl import logging
from jaxtyping import PyTree

from zoo.core.errors import RunError
from zoo.host import processes
from zoo.host.files import read_json, sync_folder
from zoo.storage.metadata import check_own_step
from zoo.storage.orbax_errors import one_line, quiet_orbax
from zoo.storage.orbax_folders import (
  METADATA_FILE,
  finish_save,
  load_arrays,
  start_save,
)
from zoo.storage.steps import FORMAT, MANIFEST, find_corruption, step_folders

_SAVING, _DELETING = '.saving.', '.deleting.'  # before the number of a step
# Temporary folders that a killed run leaves; the last is that of version 0.1.0.
_LEFT_OVER = f'{_SAVING}*', f'{_DELETING}*', '*.orbax-checkpoint-tmp*'


class Checkpoints:
  """The checkpoints of the run that is being trained; a context manager.

  Opening it deletes the temporary folders that a killed run left, and moves damaged
  steps into `<workdir>/damaged`, with a warning that names them. Process 0 does this,
  and renames and deletes steps; all processes write their arrays.
  """

  def __init__(self, workdir: pathlib.Path, keep: int, metadata: Mapping[str, object]):
    """Keeps the `keep` newest steps, each with the `metadata`, which is JSON.

    Raises UserError if the newest step was saved by another run, or under another
    number; OSError.
    """
    self._metadata = {'format': FORMAT, **metadata}
    self._folder = workdir.resolve() / 'checkpoints'  # Orbax takes absolute paths only
    self._keep = keep
    self._saving: concurrent.futures.Future[None] | None = None
    self._quiet = contextlib.ExitStack()

    def clean() -> bool:
      self._folder.mkdir(exist_ok=True)
      for pattern in _LEFT_OVER:
        for left_over in self._folder.glob(pattern):
          if left_over.is_dir() and not left_over.is_symlink():
            shutil.rmtree(left_over)
          else:
            left_over.unlink()
      found = _set_damaged_steps_aside(self._folder, workdir / 'damaged')
      for newest in step_folders(self._folder)[:1]:
        saved = read_json(newest / METADATA_FILE)
        check_own_step(newest, int(newest.name), saved, self._metadata)
      return found

    self.set_aside = processes.run_on_main(clean)  # whether a step was damaged

  def __enter__(self) -> Checkpoints:
    self._quiet.enter_context(quiet_orbax())
    return self

  def __exit__(self, *exception: object) -> None:
    with self._quiet:
      if processes.count() > 1 and exception != (None, None, None):
        return  # the save would wait for the other processes, and one may be lost
      try:
        self.wait()
      except RunError:
        # If another exception is being raised, the user must see that one.
        if exception == (None, None, None):
          raise

  @property
  def latest(self) -> int | None:
    """The newest saved step, or None."""
    steps = step_folders(self._folder)
    return int(steps[0].name) if steps else None

  def load(self, step: int, abstract: Mapping[str, PyTree]) -> dict[str, PyTree]:
    """The state at a step, with the shapes and shardings of `abstract`.

    Raises RunError if it cannot be read.
    """
    return load_arrays(self._folder / str(step), abstract)

  def save(self, step: int, state: Mapping[str, PyTree]) -> None:
    """Starts to save a state, and returns as soon as its arrays may be donated.

    Raises RunError if this save or the previous one could not be written.
    """
    self.wait()
    temporary = self._folder / f'{_SAVING}{step}'
    try:
      written = start_save(temporary, state, {**self._metadata, 'step': step})
    except Exception as error:
      raise self._failure(error) from error

    def finish() -> None:
      written()
      if processes.index() == 0:
        self._complete(temporary, self._folder / str(step))

    self._saving = in_background(finish)

  def wait(self) -> bool:
    """Waits until the last save is complete; returns True, or raises RunError."""
    if self._saving is None:
      return True
    try:
      self._saving.result()
    except Exception as error:
      self._saving = None
      raise self._failure(error) from error
    self._saving = None
    # The other processes wait until process 0 has renamed the folder.
    with processes.propagate_errors():
      pass
    return True

  def _complete(self, temporary: pathlib.Path, step_folder: pathlib.Path) -> None:
    """Adds checksums to a step, renames its folder, and deletes the oldest steps."""
    finish_save(temporary)
    temporary.rename(step_folder)
    sync_folder(self._folder)  # before an older step goes, which a power cut may undo
    if not (step_folder / MANIFEST).is_file():
      raise RunError(f'{step_folder} has no {MANIFEST} after it was saved')
    for old in step_folders(self._folder)[self._keep :]:
      # A concurrent reader finds the whole step under its name, or nothing.
      deleting = old.with_name(f'{_DELETING}{old.name}')
      old.rename(deleting)
      shutil.rmtree(deleting, ignore_errors=True)  # the next start deletes the rest

  def _failure(self, error: Exception) -> RunError:
    try:
      steps = sorted(int(path.name) for path in step_folders(self._folder))
      saved = f'there are good ones at steps {steps}' if steps else 'there is none yet'
    except OSError:
      saved = 'the folder cannot be read'
    return RunError(
      f'a checkpoint could not be written to {self._folder}; {saved}; the reason: '
      f'{one_line(error)}'
    )


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


def _set_damaged_steps_aside(folder: pathlib.Path, aside: pathlib.Path) -> bool:
  found = False
  for path in step_folders(folder):
    reason = find_corruption(path)
    if reason is None:
      break  # the newest good one; older ones matter only if this one fails later
    found = True
    aside.mkdir(exist_ok=True)
    target = aside / path.name
    copy = 1
    while target.exists():
      copy += 1
      target = aside / f'{path.name}.{copy}'
    path.rename(target)
    logging.warning(
      'checkpoint step %s is damaged: %s; moved to %s, falling back to the previous '
      'one',
      path.name,
      reason,
      target,
    )
  return found
