"""Workdirs, each of which belongs to one config, and to one program at a time."""

import contextlib
import errno
import functools
import json
import os
import pathlib
import socket
import time
from collections.abc import Iterator
from typing import Any

import filelock
import jax

from zoo.config.read import Readable, to_content, to_json
from zoo.config.saved import differences
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

POINTS = 'points'  # A sweep has the workdirs of its points in this folder.

_OTHER = 'give another folder'
CONFIG = 'config.json'
LOCK = '.lock'  # A program locks this file while it works in a folder.
_HOLDER = '.holder'  # A file whose name has this ending says who has a lock.
_PARTS = '.locks'  # The locks of parts of the work, and their holders, are here.
# A program that is killed before it writes the config may leave files in the new folder
# whose names begin like this.
_BEFORE_CONFIG = LOCK, f'.{CONFIG}.'
_NUMBER = '.parts'  # A sweep that is divided has the number of its parts in this file.
# Programs wait this long for a lock, since another program may hold it for a moment to
# test it.
_SECONDS_OF_TEST = 0.5
# Errors with these numbers are about a disk or its locks, whatever file is open.
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
# Only one kind of program has these files in its workdirs.
_MARKS = {
  'run': ('checkpoints', 'metrics.jsonl'),
  'sweep': (POINTS, 'table.json'),
}


def make_folder(workdir: pathlib.Path, config: Readable, kind: str = 'run') -> None:
  """Makes the folder of a workdir, unless it belongs to another config; for process 0.

  The folder of a run that ended before its first checkpoint may be used with any
  config: such a run ended because memory was not enough or a loss was not finite. The
  folder of any other run may be used with a config that has more steps.

  Raises:
    UserError: If the workdir belongs to another config or another kind of program,
      holds something else, or cannot be written. Nothing is written then.
    RunError: If it is in a bucket that cannot be written.
  """  # noqa: DOC501
  try:
    names = names_in(workdir)
    for other, marks in _MARKS.items():
      if other != kind and names.intersection(marks):
        raise UserError(
          f'{workdir} is the workdir of a {other}, not of a {kind}; {_OTHER}'
        )
    if CONFIG in names:
      _check_config(workdir / CONFIG, config, kind)
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


def open_workdir(workdir: pathlib.Path, config: Readable, kind: str = 'run') -> None:
  """Creates a workdir, or checks that it belongs to the config; for process 0.

  A config that is in the folder stays there.

  Raises:
    UserError: If the workdir belongs to another config or another kind of program,
      holds something else, or cannot be written.
    RunError: If it is in a bucket that cannot be written.
  """  # noqa: DOC501
  make_folder(workdir, config, kind)
  try:
    if not (workdir / CONFIG).exists():
      write_config(workdir, config)
  except failures(workdir) as error:
    raise _not_writable(workdir, error) from error


def has_config(workdir: pathlib.Path, config: Readable) -> bool:
  """Returns whether the config in a workdir is this one, in all of its fields."""
  saved = workdir / CONFIG
  return saved.exists() and read_text(saved) == _text_of(config)


def write_config(workdir: pathlib.Path, config: Readable) -> None:
  """Replaces the config in a workdir that this program has locked; raises OSError."""
  write_atomically(workdir / CONFIG, _text_of(config))


def change_config(workdir: pathlib.Path, field: str, value: Any) -> None:
  """Changes one field of the config in a workdir that this program has locked.

  It raises OSError.

  Args:
    workdir: The workdir.
    field: A field of a section, such as `eval.num_compared`.
    value: The new value, as JSON holds it.
  """
  content = read_json(workdir / CONFIG, dict)
  section, _, name = field.partition('.')
  if content[section][name] != value:
    content[section][name] = value
    text = json.dumps(content, indent=2, sort_keys=True)
    write_atomically(workdir / CONFIG, text + '\n')


def _text_of(config: Readable) -> str:
  return to_json(config) + '\n'


def _not_writable(workdir: pathlib.Path, error: BaseException) -> UserError | RunError:
  if isinstance(error, NotADirectoryError) and workdir.exists():
    return UserError(f'the workdir {workdir} is not a folder; {_OTHER}')
  reason = f'the workdir {workdir} cannot be written: {said(error)}'
  if is_url(workdir):  # The bucket may be out of reach.
    return RunError(reason)
  return UserError(f'{reason}; {_OTHER}')


def _check_config(saved: pathlib.Path, config: Readable, kind: str) -> None:
  """Raises UserError unless the config in a file may be replaced by this one."""
  try:
    content = read_json(saved, dict)
  except UnreadableFile as error:
    raise UserError(
      f'{saved} is damaged: no config can be read from it; {_OTHER}'
    ) from error
  differing = differences(content, to_content(config))
  if differing and not (kind == 'run' and _is_untrained(saved.parent)):
    only_steps = [field.split()[0] for field in differing] == ['train.num_steps']
    hint = ' (a run may be given more steps, not fewer)' if only_steps else ''
    raise UserError(
      f'{saved.parent} belongs to another config; it differs in {shown(differing)}'
      f'{hint}; {_OTHER}'
    )


def _is_untrained(workdir: pathlib.Path) -> bool:
  """Returns whether a run has saved nothing but its log.

  A run whose first save has failed is an example.
  """
  empty = {CONFIG, 'checkpoints', 'metrics.jsonl', 'tensorboard', 'diverged.json'}
  empty |= {LOCK, f'{LOCK}{_HOLDER}', 'wandb', 'wandb.json'}
  saved = [name for name in names_in(workdir / 'checkpoints') if name.isdecimal()]
  return names_in(workdir) <= empty and not saved


@contextlib.contextmanager
def occupied(
  workdir: pathlib.Path, config: Readable, kind: str = 'run', part: Part | None = None
) -> Iterator[None]:
  """Opens and locks a workdir for the block.

  If the workdir has a config already, that config stays in it.

  Raises:
    UserError: If the workdir belongs to another config or another kind of program,
      holds something else, cannot be written, or is in use by another process.
    RunError: If something cannot be written there, or if the workdir is deleted in the
      meantime.
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
  """Returns whether an error is about a workdir, and not from the user's own code.

  If the error names a file, the file must be in the workdir. An error in writing to an
  open file names none: it is about the workdir if its number is one of `_OF_DISKS`.
  """
  of_disk = getattr(error, 'errno', None) in _OF_DISKS
  if is_url(workdir):  # Its records are in a temporary folder.
    return of_disk or getattr(error, 'filename', None) is None
  if isinstance(name := getattr(error, 'filename', None), str):
    path, folder = pathlib.Path(name), workdir.resolve()
    # A link in the workdir counts as part of it, wherever it leads.
    return path.parent.resolve().is_relative_to(folder) or path.resolve() == folder
  return of_disk


@contextlib.contextmanager
def locked(workdir: pathlib.Path, part: Part | None = None) -> Iterator[None]:
  """Locks a local workdir, or one part of the work in it, for this program.

  Other programs may have other parts, but none may have the whole folder. The system
  releases the lock when the program ends, however it ends. A bucket has no locks: two
  programs must not write into one folder of it.

  Raises:
    InUseError: If another program holds the lock.
    UserError: If the processes of the run do not share the folder.
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
  """Locks a folder or a part until the stack ends; returns a name of this process."""
  whole, parts = workdir / LOCK, workdir / _PARTS
  if part is None:
    own = whole
    others = [parts / name for name in names_in(parts) if not name.endswith(_HOLDER)]
  else:
    own, others = parts / f'{part.index}-of-{part.number}', [whole]
  own.parent.mkdir(exist_ok=True)
  for path in own, *others:
    lock = filelock.FileLock(path, timeout=_SECONDS_OF_TEST, fallback_to_soft=False)
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
      lock.release()  # Nobody else holds it.
  me = f'process {os.getpid()} on {socket.gethostname()}'
  own.with_name(own.name + _HOLDER).write_text(me)
  return me


def check_number_of_parts(workdir: pathlib.Path, part: Part) -> None:
  """Notes in a workdir how many parts it is divided into.

  With another number of parts the same points would be trained twice at the same time.

  Raises:
    UserError: If the workdir is divided into another number of parts.
  """
  note = workdir / _NUMBER
  if not note.exists():
    create(note, str(part.number))
  if not read_text(note):  # Another part is writing the note, or was killed.
    time.sleep(_SECONDS_OF_TEST)
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
