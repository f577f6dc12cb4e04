"""Workdirs, each of which belongs to one config, and to one program at a time."""

import contextlib
import errno
import functools
import os
import pathlib
import socket
import time
from collections.abc import Iterator
from typing import Any

import filelock
import jax

from zoo.config.saved import differences, to_json
from zoo.core.errors import InUseError, RunError, UserError, in_one_line, shown
from zoo.host import processes
from zoo.host.files import (
  UnreadableFile,
  create,
  failures,
  is_url,
  names_in,
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
_HOLDER = '.holder'  # ends the name of a file that names who has a lock
_PARTS = '.locks'  # the folder of such files for parts of the work in a folder
# How the names begin of what a program that was killed may have left in a new folder.
_BEFORE_CONFIG = LOCK, f'.{_CONFIG}.'
_NUMBER = '.parts'  # the file with the number of parts that a sweep is divided into
_MOMENT = 0.5  # seconds; another program may just be looking whether a lock is held
# What the system says of a disk or its locks, whatever file is open.
_OF_DISKS = (
  errno.ENOSPC,
  errno.EDQUOT,
  errno.EIO,
  errno.EFBIG,
  errno.ENOLCK,
  errno.ENOTCONN,
  errno.EROFS,
  errno.ESTALE,
  errno.ETIMEDOUT,
)
# Files that exist only in the workdirs of each kind of program.
_MARKS = {
  'run': ('checkpoints', 'metrics.jsonl'),
  'sweep': (POINTS, 'table.json'),
}


def make_folder(workdir: pathlib.Path, config: Any, kind: str = 'run') -> None:
  """Makes the folder of a workdir, unless it belongs to another; for process 0.

  The folder of a run that ended before its first checkpoint, out of memory or with a
  loss that is not finite, belongs to any config; other runs may be given more steps.
  Raises UserError, and writes nothing, if the workdir belongs to another config or
  another kind of program, holds something else, or cannot be written.
  """
  try:
    names = names_in(workdir)
    for other, marks in _MARKS.items():
      if other != kind and names.intersection(marks):
        raise UserError(
          f'{workdir} is the workdir of a {other}, not of a {kind}; {_OTHER}'
        )
    if _CONFIG in names:
      _check_config(workdir / _CONFIG, config, kind)
    elif 'checkpoints' in names:
      raise UserError(
        f'{workdir} holds checkpoints, but no config.json with their config (each step '
        f'has it in origin/data.json); {_OTHER}'
      )
    elif others := {name for name in names if not name.startswith(_BEFORE_CONFIG)}:
      raise UserError(
        f'{workdir} is not empty and holds no run (it has {min(others)}); {_OTHER}'
      )
    workdir.mkdir(parents=True, exist_ok=True)
    if not (is_url(workdir) or os.access(workdir, os.W_OK)):
      raise PermissionError(None, 'it is not writable')
  except failures(workdir) as error:
    raise _not_writable(workdir, error) from error


def open_workdir(
  workdir: pathlib.Path, config: Any, kind: str = 'run', held: bool = False
) -> None:
  """Creates a workdir, or checks that it belongs to the config; for process 0.

  Where this program has locked the folder (`held`), the config in it is replaced by
  this one. Raises UserError as `make_folder` does.
  """
  make_folder(workdir, config, kind)
  saved, text = workdir / _CONFIG, to_json(config) + '\n'
  try:
    if not saved.exists() or (held and read_text(saved) != text):
      write_atomically(saved, text)
  except failures(workdir) as error:
    raise _not_writable(workdir, error) from error


def _not_writable(workdir: pathlib.Path, error: BaseException) -> UserError | RunError:
  if isinstance(error, NotADirectoryError) and workdir.exists():
    return UserError(f'the workdir {workdir} is not a folder; {_OTHER}')
  reason = f'the workdir {workdir} cannot be written: {said(error)}'
  if is_url(workdir):  # a bucket may be out of reach
    return RunError(reason)
  return UserError(f'{reason}; {_OTHER}')


def _check_config(saved: pathlib.Path, config: Any, kind: str) -> None:
  """Raises UserError unless the config in a file may be replaced by this one."""
  try:
    content = read_json(saved, dict)
  except UnreadableFile as error:
    raise UserError(
      f'{saved} is damaged: no config can be read from it; {_OTHER}'
    ) from error
  differing = differences(content, config)
  if differing and not (kind == 'run' and _is_untrained(saved.parent)):
    only_steps = [field.split()[0] for field in differing] == ['train.num_steps']
    hint = ' (a run may be given more steps, not fewer)' if only_steps else ''
    raise UserError(
      f'{saved.parent} belongs to another config; it differs in {shown(differing)}'
      f'{hint}; {_OTHER}'
    )


def _is_untrained(workdir: pathlib.Path) -> bool:
  """Whether a run has saved nothing but its log; its first save may have failed."""
  empty = {_CONFIG, 'checkpoints', 'metrics.jsonl', 'tensorboard', 'diverged.json'}
  empty |= {LOCK, f'{LOCK}{_HOLDER}', 'wandb', 'wandb.json'}
  saved = [name for name in names_in(workdir / 'checkpoints') if name.isdecimal()]
  return names_in(workdir) <= empty and not saved


@contextlib.contextmanager
def occupied(
  workdir: pathlib.Path, config: Any, kind: str = 'run', part: Part | None = None
) -> Iterator[None]:
  """Opens and locks a workdir for the block; a config that it has stays.

  Raises UserError as `open_workdir` and `locked` do; RunError for what cannot be
  written there, and for a workdir that is deleted meanwhile.
  """
  processes.run_on_main(lambda: make_folder(workdir, config, kind))
  try:
    with locked(workdir, part):
      processes.run_on_main(lambda: open_workdir(workdir, config, kind))
      yield
  except failures(workdir) as error:
    if not is_url(workdir) and not workdir.exists():
      raise RunError(
        f'{workdir} has gone: it was deleted while this program was working in it'
      ) from error
    if not _is_about(workdir, error):
      raise
    raise RunError(f'{workdir} could not be written: {in_one_line(error)}') from error


def _is_about(workdir: pathlib.Path, error: BaseException) -> bool:
  """Whether an error is one of writing into a workdir, not of code of the user's own.

  What fails while a file is open names no file, but has the number of a disk's error.
  """
  of_disk = getattr(error, 'errno', None) in _OF_DISKS
  if is_url(workdir):  # whose records are in a temporary folder
    return of_disk or getattr(error, 'filename', None) is None
  if isinstance(name := getattr(error, 'filename', None), str):
    path, folder = pathlib.Path(name), workdir.resolve()
    # A link in the workdir is about it, wherever it leads.
    return path.parent.resolve().is_relative_to(folder) or path.resolve() == folder
  return of_disk


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
    lock = functools.partial(_lock, stack, workdir.resolve(), part)
    holder = processes.run_on_main(lock)
    with processes.propagate_errors():
      note = workdir / f'{LOCK}{_HOLDER}'
      if jax.process_index() and not (note.exists() and note.read_text() == holder):
        raise UserError(
          f'{workdir} is not the folder of process 0; give a --workdir that all '
          'processes share'
        )
    yield


def _lock(stack: contextlib.ExitStack, workdir: pathlib.Path, part: Part | None) -> str:
  """Locks a folder or a part until the stack ends; returns what names this process."""
  whole, parts = workdir / LOCK, workdir / _PARTS
  if part is None:
    own = whole
    others = [parts / name for name in names_in(parts) if not name.endswith(_HOLDER)]
  else:
    own, others = parts / f'{part.index}-of-{part.number}', [whole]
  own.parent.mkdir(exist_ok=True)
  for path in own, *others:
    lock = filelock.FileLock(path, timeout=_MOMENT, fallback_to_soft=False)
    try:
      lock.acquire()
    except filelock.Timeout as error:
      note = path.with_name(path.name + _HOLDER)
      holder = f' ({note.read_text():.100})' if note.exists() else ''
      raise InUseError(
        f'{workdir} is in use: another process is training in it{holder}; wait for it, '
        'or give another folder'
      ) from error
    if path == own:
      stack.callback(lock.release)
    else:
      lock.release()  # nobody holds it
  me = f'process {os.getpid()} on {socket.gethostname()}'
  own.with_name(own.name + _HOLDER).write_text(me)
  return me


def check_number_of_parts(workdir: pathlib.Path, part: Part) -> None:
  """Notes in a workdir how many parts it is divided into.

  Parts of another number would train the same points again, at the same time. Raises
  UserError if it is divided into another number.
  """
  note = workdir / _NUMBER
  if not note.exists():
    create(note, str(part.number))
  if not read_text(note):  # another part is writing it, unless it was killed meanwhile
    time.sleep(_MOMENT)
    if not read_text(note):
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
