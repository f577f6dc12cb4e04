"""A hook that logs runs to Weights & Biases (W&B); needs the extra `wandb`."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import pathlib
import secrets
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import jax

from zoo.config.read import to_content
from zoo.config.saved import differences
from zoo.core.errors import RunError, UserError, in_one_line, not_installed
from zoo.host.files import failures, is_url, read_json, said, write_atomically
from zoo.training.hooks import Event, Hook
from zoo.training.records import read_lines, scalars_of

WANDB = 'wandb.json'  # A workdir has the id of its run at W&B in this file.


class _Saved(TypedDict):
  """The content of `wandb.json`: the id of a run at W&B, and its config."""

  id: str
  config: dict[str, Any]  # A run of another config gets another id.


@dataclasses.dataclass
class _Open:
  """A run at W&B that this process has not finished."""

  run: Any
  step: int  # W&B has the lines up to this step.

  def log(self, line: Mapping[str, Any]) -> None:
    """Logs a line of `metrics.jsonl`, unless W&B has its step."""
    if line['step'] > self.step:
      self.step = line['step']
      self.run.log(scalars_of(line), step=self.step, commit=True)


# The keys are workdirs. A run that was stopped in a notebook goes on in the run at W&B
# that is still open, since W&B refuses to open it twice.
_OPEN: dict[str, _Open] = {}


class WandbWriter(Hook):
  """A hook that logs runs to Weights & Biases (W&B).

  It logs each line of `metrics.jsonl`, the config, and the summary at the end. Each run
  is one run at W&B, and so is each point of a sweep. Numbers have the same names as in
  TensorBoard: `loss`, `norm/weights`, and `curve/0001` for the loss after one example.
  The variable WANDB_MODE says where they go: `online` (the default), `offline` (to
  files alone) or `disabled`. The files of W&B are in the folder `wandb` of the workdir.
  For a run in a bucket they are in a temporary folder, which is not deleted.

  A run that resumes is the same run at W&B; its id is in `wandb.json` of the workdir.
  W&B loses its last lines when a process is killed, so that each launch first logs the
  lines of `metrics.jsonl` that W&B does not have. Offline it logs all lines, into a new
  folder; the newest folder then has the whole run. Only process 0 writes.

  Example:
    >>> zoo.train(config, 'runs/a', hooks=[zoo.WandbWriter('icl', tags=['first'])])
  """

  def __init__(
    self,
    project: str,
    entity: str | None = None,
    name: str | None = None,
    group: str | None = None,
    tags: Sequence[str] = (),
  ):
    """Checks the arguments; the run at W&B begins with the first logged step.

    Args:
      project: The project at W&B.
      entity: The user or the team whose project it is; None means the default of W&B.
      name: The name of the run; None means the name of the workdir.
      group: The group of the run, such as the name of a sweep.
      tags: Labels of the run.

    Raises:
      UserError: If wandb is not installed, if W&B allows no project of this name, or if
        W&B is online and has no key.
    """  # noqa: DOC501
    try:
      self._wandb: Any = importlib.import_module('wandb')
    except ModuleNotFoundError as error:
      raise not_installed(error.name, 'zoo.WandbWriter needs', 'wandb') from error
    if not isinstance(project, str) or not project:
      raise UserError(f'the project is {project!r}; it must be a name')
    try:
      self._wandb.Settings(project=project)
    except self._wandb.errors.Error as error:
      raise UserError(f'the project is {project!r}: {in_one_line(error)}') from error
    if jax.process_index() == 0 and self._mode() == 'online':
      try:  # Without a key a run would fail at its first step.
        self._wandb.login()
      except self._wandb.errors.Error as error:
        raise UserError(
          f'Weights & Biases: {in_one_line(error)} (WANDB_MODE=offline needs no key)'
        ) from error
    self._project, self._entity = project, entity
    self._name, self._group, self._tags = name, group, [*tags]

  def _mode(self) -> str:
    """Returns where W&B's own variable or settings send runs, such as `online`."""
    return os.environ.get('WANDB_MODE') or self._wandb.Settings().mode or 'online'

  def on_chunk(self, event: Event) -> None:
    """Logs the numbers of a step.

    Raises:
      UserError: If `wandb.json` or `metrics.jsonl` cannot be read.
      RunError: If W&B cannot be reached or refuses the run, or if the disk is full.
    """
    if jax.process_index() == 0:
      self._opened(event).log(event.metrics)

  def on_end(self, event: Event) -> None:
    """Sends the summary to W&B, and finishes the run there."""
    if jax.process_index() != 0:
      return
    run = self._opened(event).run
    summary = event.summary or {}
    run.summary.update(
      {name: value for name, value in summary.items() if value is not None}
    )
    run.finish()
    del _OPEN[_key(event.workdir)]

  def _opened(self, event: Event) -> _Open:
    """Returns the open run at W&B of an event; a launch opens it at its first event.

    Raises:
      UserError: If `wandb.json` or `metrics.jsonl` cannot be read.
      RunError: If W&B cannot be reached or refuses the run, or if the disk is full.
    """
    key = _key(event.workdir)
    opened = _OPEN.get(key)
    if opened is not None and event.step > opened.step:
      return opened
    # A launch begins. It repeats steps, or the folder was deleted and has a new run.
    path = event.workdir / WANDB
    config = to_content(event.config)
    saved = _Saved(id=secrets.token_hex(8), config=config)
    if path.exists():
      before = read_json(path, _Saved)
      if not differences(before['config'], config):
        saved = before
    if opened is None or opened.run.id != saved['id']:
      if opened is not None:
        opened.run.finish()
      opened = _OPEN[key] = self._open(event, saved['id'])
      if not opened.run.disabled:
        try:
          write_atomically(path, json.dumps(saved))
        except failures(path) as error:
          raise RunError(f'{path} could not be written: {said(error)}') from error
      for line in read_lines(event.workdir):
        if line['step'] <= event.step:
          opened.log(line)
    return opened

  def _open(self, event: Event, identity: str) -> _Open:
    """Begins the run at W&B with an id, or goes on with it.

    Returns:
      The run, and its last step at W&B; −1 for a new run.

    Raises:
      RunError: If W&B cannot be reached or refuses the run.
    """
    at_url = is_url(event.workdir)
    folder = tempfile.mkdtemp(prefix='icl_zoo_') if at_url else event.workdir
    try:
      run = self._wandb.init(
        project=self._project,
        entity=self._entity,
        name=self._name or event.workdir.name,
        group=self._group,
        tags=self._tags,
        id=identity,
        resume='allow',
        dir=folder,
        config=to_content(event.config),
        reinit='create_new',  # Points of a sweep and a user's own run may be open.
      )
    except self._wandb.errors.Error as error:
      raise RunError(
        f'Weights & Biases: {in_one_line(error)} (WANDB_MODE=offline needs no network)'
      ) from error
    return _Open(run, run.step - 1 if run.resumed else -1)


def _key(workdir: pathlib.Path) -> str:
  return str(workdir)
