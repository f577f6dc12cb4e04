"""Workdirs, each of which belongs to one config, and to one program at a time."""

import contextlib
import functools
import os
import pathlib
import socket
from collections.abc import Iterator
from typing import Any

import filelock

from zoo.config.validation import differences, to_json
from zoo.core.errors import InUseError, RunError, UserError, in_one_line, shown
from zoo.host import processes
from zoo.host.files import (
  UnreadableFile,
  entries,
  failures,
  is_url,
  read_json,
  read_text,
  said,
  write_atomically,
)
from zoo.host.parts import Part

POINTS = 'points'  # the folder of a sweep that holds the workdirs of its points

_OTHER = 'give another folder'
_CONFIG = 'config.json'
LOCK = '.lock'  # the file that a program locks while it works in a folder
_PARTS = '.locks'  # the folder of such files for parts of the work in a folder
_NUMBER = '.parts'  # the file with the number of parts that a sweep is divided into
_MOMENT = 0.5  # seconds; another program may just be looking whether a lock is held
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
  Where this program has locked the folder (`held`), the config in it is
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
  except failures(workdir) as error:
    if isinstance(error, NotADirectoryError) and workdir.exists():
      raise UserError(f'the workdir {workdir} is not a folder; {_OTHER}') from error
    reason = f'the workdir {workdir} cannot be written: {said(error)}'
    if is_url(workdir):  # a bucket may be out of reach
      raise RunError(reason) from error
    raise UserError(f'{reason}; {_OTHER}') from error


@contextlib.contextmanager
def occupied(
  workdir: pathlib.Path, config: Any, kind: str = 'run', part: Part | None = None
) -> Iterator[None]:
  """Opens and locks a workdir for the block.

  Raises UserError as `open_workdir` and `locked` do; RunError for what cannot be
  written, and for a workdir that is deleted meanwhile.
  """
  open_workdir(workdir, config, kind)
  try:
    with locked(workdir, part):
      open_workdir(workdir, config, kind, held=True)
      yield
  except failures(workdir) as error:
    if not is_url(workdir) and not workdir.exists():
      raise RunError(
        f'{workdir} has gone: it was deleted while this program was working in it'
      ) from error
    raise RunError(f'{workdir} could not be written: {in_one_line(error)}') from error


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
  """Whether a run has saved nothing but its log; its first save may have failed."""
  empty = {_CONFIG, 'checkpoints', 'metrics.jsonl', 'tensorboard'}
  empty |= {LOCK, f'{LOCK}.holder'}
  saved = [name for name in _names_in(workdir / 'checkpoints') if name.isdecimal()]
  return _names_in(workdir) <= empty and not saved


@contextlib.contextmanager
def locked(workdir: pathlib.Path, part: Part | None = None) -> Iterator[None]:
  """Locks a local workdir, or one part of the work in it, for this program.

  Other programs may have other parts, but none may have the whole folder. The system
  releases the lock when the program ends, however it does. A bucket has no locks: two
  programs must not write into one folder of it. Raises InUseError if another program
  holds the lock; UserError if the processes of the run do not share the folder.
  """
  if is_url(workdir):
    yield
    return
  with contextlib.ExitStack() as stack:
    locks = _locks(workdir.resolve(), part)
    holder = processes.run_on_main(lambda: stack.enter_context(locks))
    with processes.propagate_errors():
      note = workdir / f'{LOCK}.holder'
      if processes.index() and not (note.exists() and note.read_text() == holder):
        raise UserError(
          f'{workdir} is not the folder of process 0; give a --workdir that all '
          'processes share'
        )
    yield


@contextlib.contextmanager
def _locks(workdir: pathlib.Path, part: Part | None) -> Iterator[str]:
  """Holds the lock of a folder or of a part, and yields what names this process."""
  whole, parts = workdir / LOCK, workdir / _PARTS
  own = whole if part is None else parts / f'{part.index}-of-{part.number}'
  others = [whole]
  if part is None:
    others = [path for path in entries(parts) if path.suffix != '.holder']
  own.parent.mkdir(exist_ok=True)
  with _lock(workdir, own):
    for other in others:
      with _lock(workdir, other):
        pass  # nobody holds it
    me = f'process {os.getpid()} on {socket.gethostname()}'
    _holder_of(own).write_text(me)
    yield me


@contextlib.contextmanager
def _lock(workdir: pathlib.Path, path: pathlib.Path) -> Iterator[None]:
  lock = filelock.FileLock(path, timeout=_MOMENT, fallback_to_soft=False)
  try:
    lock.acquire()
  except filelock.Timeout as error:
    note = _holder_of(path)
    holder = f' ({note.read_text():.100})' if note.exists() else ''
    raise InUseError(
      f'{workdir} is in use: another process is training in it{holder}; wait for it, '
      'or give another folder'
    ) from error
  try:
    yield
  finally:
    lock.release()


def _holder_of(lock: pathlib.Path) -> pathlib.Path:
  """The file that names the process that has taken a lock last."""
  return lock.with_name(f'{lock.name}.holder')


def check_number_of_parts(workdir: pathlib.Path, part: Part) -> None:
  """Notes in a workdir how many parts it is divided into.

  Parts of another number would train the same points again, at the same time. Raises
  UserError if it is divided into another number.
  """
  note = workdir / _NUMBER
  if not note.exists():
    write_atomically(note, str(part.number))
  number = read_text(note)
  if number != str(part.number):
    raise UserError(
      f'--part is {part.index}/{part.number}, and {workdir} is divided into {number} '
      f'parts until the command without --part has ended; give --part=I/{number}'
    )


def forget_number_of_parts(workdir: pathlib.Path) -> None:
  """Lets a workdir be divided into another number of parts from now on."""
  (workdir / _NUMBER).unlink(missing_ok=True)
