"""Checkpoints: Orbax, with a manifest of checksums that makes damage visible.

A step is one folder of `<workdir>/checkpoints`, named by its number, that explains
itself: beside the items `model` and `optimizer` there is `origin`, JSON with the step,
the config and the versions that made it. Orbax writes the folder under a temporary name
and renames it when it is whole; just before, `SHA256SUMS` is written into it, in the
format of sha256sum. Orbax itself restores a flipped bit without a word, so a step is
opened only when all its sums are right.
"""

from __future__ import annotations

import pathlib
import shutil
from typing import Any

from absl import logging
from orbax.checkpoint import v1 as ocp

from zoo import processes
from zoo.checkpoints.steps import (
  FORMAT,
  fault,
  orbax_context,
  step_folders,
  write_manifest,
)
from zoo.errors import RunError

_TEMPORARY = '*.orbax-checkpoint-tmp*'


class Checkpoints:
  """The checkpoints of the run that is being trained; a context manager.

  Opening it deletes the temporary folders that a killed run left, and moves steps that
  are damaged aside, into `<workdir>/damaged`, with a warning that names them. Process 0
  does that, and writes the manifests; all processes write their arrays.
  """

  def __init__(self, workdir: pathlib.Path, keep: int, origin: dict[str, Any]):
    """The `keep` newest steps stay; `origin`, JSON, goes into each."""
    self._origin = {'format': FORMAT, **origin}
    self._folder = workdir.resolve() / 'checkpoints'  # Orbax takes absolute paths only

    def clean() -> bool:
      self._folder.mkdir(exist_ok=True)
      for left_over in self._folder.glob(_TEMPORARY):
        shutil.rmtree(left_over)
      return _set_damaged_steps_aside(self._folder, workdir / 'damaged')

    self.set_aside = processes.on_first(clean)  # whether a step was damaged
    context = orbax_context()
    context.asynchronous.post_finalization_callback = self._write_manifest
    self._orbax = ocp.training.Checkpointer(
      str(self._folder),
      context=context,
      # Orbax's own policy does not fit Orbax's own annotation.
      preservation_policy=ocp.training.preservation_policies.LatestN(keep),  # pyright: ignore[reportArgumentType]
    )

  def __enter__(self) -> Checkpoints:
    return self

  def __exit__(self, *exception: object) -> None:
    if processes.count() > 1 and exception != (None, None, None):
      return  # Orbax would wait for the others, of which one may be lost
    try:
      self._orbax.close()
    except Exception as error:
      # While another exception passes through, that one is the news.
      if exception == (None, None, None):
        raise self._failure(error) from error

  @property
  def latest(self) -> int | None:
    """The newest step that was saved, or None."""
    latest = self._orbax.latest
    return None if latest is None else latest.step

  def load(self, step: int, abstract: dict[str, Any]) -> dict[str, Any]:
    """The state at a step, with the shapes and shardings of `abstract`."""
    return self._orbax.load_checkpointables(step, abstract)

  def save(self, step: int, state: dict[str, Any]) -> None:
    """Starts to save a state, and returns as soon as it may be donated.

    Raises RunError if this save, or the one before it, could not be written.
    """
    self.wait()
    items = {**state, 'origin': {**self._origin, 'step': step}}
    try:
      self._orbax.save_checkpointables_async(step, items, force=True)
    except Exception as error:
      raise self._failure(error) from error

  def wait(self) -> None:
    """Waits until the last save is whole; raises RunError if it could not be."""
    try:
      self._orbax.wait()
    except Exception as error:
      raise self._failure(error) from error

  def _failure(self, error: Exception) -> RunError:
    good = [int(path.name) for path in step_folders(self._folder) if not fault(path)]
    kept = (
      f'there are good ones at steps {sorted(good)}' if good else 'there is none yet'
    )
    reason = ' '.join(str(error).split())[-300:]
    return RunError(
      f'a checkpoint could not be written to {self._folder}; {kept}; the reason: '
      f'{type(error).__name__}: {reason}'
    )

  def _write_manifest(self) -> None:
    # Orbax calls this, on process 0, once all files of the step are there, and before
    # it renames the folder: the manifest is part of the step or the step is not there.
    for folder in self._folder.glob(_TEMPORARY):
      write_manifest(folder)


def _set_damaged_steps_aside(folder: pathlib.Path, aside: pathlib.Path) -> bool:
  found = False
  for path in step_folders(folder):
    reason = fault(path)
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
      'checkpoint step %s is damaged: %s; moved to %s, falling back to the one before',
      path.name,
      reason,
      target,
    )
  return found
