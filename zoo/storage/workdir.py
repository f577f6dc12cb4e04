"""Workdirs, each of which belongs to one config, and to one program at a time."""

import contextlib
import functools
import os
import pathlib
from collections.abc import Iterator
from typing import Any

from zoo.config.validation import differences, to_json
from zoo.core.errors import RunError, UserError, shown
from zoo.host import processes
from zoo.host.files import (
  UnreadableFile,
  entries,
  gcs,
  is_url,
  read_json,
  write_atomically,
)
from zoo.host.parts import Part
from zoo.storage.lease import LOCK, SECONDS, Lease, leased

POINTS = 'points'  # the folder of a sweep that holds the workdirs of its points

_OTHER = 'give another folder'
_CONFIG = 'config.json'
_NUMBER = '.parts'  # the file with the number of parts that a sweep is divided into
# Files that exist only in the workdirs of each kind of program.
_MARKS = {
  'run': ('checkpoints', 'metrics.jsonl'),
  'sweep': (POINTS, 'table.json'),
  'language-model experiment': ('prompts.jsonl',),
}


def open_workdir(
  workdir: pathlib.Path, config: Any, kind: str = 'run', held: bool = False
) -> None:
  """On process 0, creates a workdir, or checks that it belongs to the config.

  The folder of a run that ended before its first checkpoint, out of memory or with a
  loss that is not finite, belongs to any config; other runs may be given more steps.
  Where this program holds the lease of the folder (`held`), the config in it is
  replaced by this one. Raises UserError, and writes nothing, if the workdir belongs to
  another config or another kind of program, holds something else, or cannot be written.
  """
  processes.run_on_main(functools.partial(_open, workdir, config, kind, held))


def _open(workdir: pathlib.Path, config: Any, kind: str, held: bool) -> None:
  saved = workdir / _CONFIG
  try:
    names = _names_in(workdir)
    _check_kind(workdir, names, kind)
    if _CONFIG in names:
      is_other = _compare(saved, config, kind)
      if not (is_url(workdir) or os.access(workdir, os.W_OK)):
        raise PermissionError(None, 'it is not writable')
      if held and is_other:
        write_atomically(saved, to_json(config) + '\n')
    elif 'checkpoints' in names:
      raise UserError(
        f'{workdir} holds checkpoints, but no config.json with their config (each step '
        f'has it in origin/data.json); {_OTHER}'
      )
    elif others := {name for name in names if not name.startswith(f'.{_CONFIG}.')}:
      raise UserError(
        f'{workdir} is not empty and holds no run (it has {min(others)}); {_OTHER}'
      )
    else:
      workdir.mkdir(parents=True, exist_ok=True)
      write_atomically(saved, to_json(config) + '\n')
  except OSError as error:
    if isinstance(error, NotADirectoryError) and workdir.exists():
      raise UserError(f'the workdir {workdir} is not a folder; {_OTHER}') from error
    reason = f'the workdir {workdir} cannot be written: {error.strerror or error}'
    if is_url(workdir):  # a bucket may be out of reach
      raise RunError(reason) from error
    raise UserError(f'{reason}; {_OTHER}') from error


@contextlib.contextmanager
def occupied(
  workdir: pathlib.Path, config: Any, kind: str = 'run', part: Part | None = None
) -> Iterator[None]:
  """Opens and locks a workdir for the block.

  Raises UserError as `open_workdir` and `locked` do; RunError for an OSError.
  """
  open_workdir(workdir, config, kind)
  try:
    with locked(workdir, 60 * config.checkpoint.patience, part):
      open_workdir(workdir, config, kind, held=True)
      yield
  except OSError as error:
    raise RunError(f'{workdir} could not be written: {error}') from error


def _names_in(folder: pathlib.Path) -> set[str]:
  return {path.name for path in entries(folder)}


def _check_kind(workdir: pathlib.Path, names: set[str], kind: str) -> None:
  for other, marks in _MARKS.items():
    if other != kind and names.intersection(marks):
      raise UserError(
        f'{workdir} is the workdir of a {other}, not of a {kind}; {_OTHER}'
      )


def _compare(saved: pathlib.Path, config: Any, kind: str) -> bool:
  """Whether the saved config differs from this one, which may replace it.

  Raises UserError if it may not.
  """
  try:
    content = read_json(saved)
  except UnreadableFile:
    content = None
  if not isinstance(content, dict):
    raise UserError(f'{saved} is damaged: no config can be read from it; {_OTHER}')
  differing = differences(content, config)
  if differing and not (kind == 'run' and _is_untrained(saved.parent)):
    raise UserError(
      f'{saved.parent} belongs to another config; it differs in {shown(differing)}; '
      f'{_OTHER}'
    )
  return bool(differing) or _num_steps(content) != _num_steps(config)


def _num_steps(config: Any) -> Any:
  """How far a run or a sweep goes, which may grow; None for other programs."""
  return config.get('train', {}).get('num_steps')


def _is_untrained(workdir: pathlib.Path) -> bool:
  """Whether a run has saved nothing but its log."""
  empty = {_CONFIG, 'checkpoints', 'metrics.jsonl', 'tensorboard', LOCK}
  return _names_in(workdir) <= empty and not _names_in(workdir / 'checkpoints')


@contextlib.contextmanager
def locked(
  workdir: pathlib.Path, patience: float = 600.0, part: Part | None = None
) -> Iterator[None]:
  """Leases the workdir, or one part of the work in it, for this program.

  Other programs may have other parts, but none may have the whole folder. All calls to
  a bucket out of reach are tried again for `patience` seconds. A program that has ended
  without releasing the folder is waited for, up to half a minute if it ran on another
  machine. Raises InUseError if another program holds it; UserError if the processes of
  the run do not share the folder.
  """
  name = None if part is None else f'{part.index}-of-{part.number}'
  with contextlib.ExitStack() as stack:
    if is_url(workdir):
      stack.enter_context(gcs().patient(patience))
    lease = leased(workdir, patience if is_url(workdir) else SECONDS, name)
    holder = processes.run_on_main(lambda: stack.enter_context(lease))
    with processes.propagate_errors():
      lock = workdir / LOCK
      if processes.index() and not (lock.exists() and lock.read_text() == holder):
        raise UserError(
          f'{workdir} is not the folder of process 0; give a --workdir that all '
          'processes share'
        )
    yield


def check_number_of_parts(workdir: pathlib.Path, part: Part) -> None:
  """Notes in a workdir how many parts it is divided into.

  Parts of another number would train the same points again, at the same time. Raises
  UserError if it is divided into another number.
  """
  number = Lease(workdir, _NUMBER).agree(str(part.number))
  if number != str(part.number):
    raise UserError(
      f'--part is {part.index}/{part.number}, and {workdir} is divided into {number} '
      f'parts until the command without --part has ended; give --part=I/{number}'
    )


def forget_number_of_parts(workdir: pathlib.Path) -> None:
  """Lets a workdir be divided into another number of parts from now on."""
  (workdir / _NUMBER).unlink(missing_ok=True)
