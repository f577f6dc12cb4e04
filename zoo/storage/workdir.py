"""Workdirs, each of which belongs to one config, and to one program at a time."""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
import socket
import time
from collections.abc import Iterator
from typing import Any, TextIO

from absl import logging

from zoo.config.validation import differences, to_json
from zoo.core.errors import InUseError, RunError, UserError, shown
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
from zoo.storage.lease import leased

try:
  import fcntl
except ModuleNotFoundError:  # on Windows
  fcntl = None

POINTS = 'points'  # the folder of a sweep that holds the workdirs of its points

_OTHER = 'give another folder'
_PATIENCE, _PAUSE = 120.0, 1.0  # seconds to wait for a lock, and between two attempts
_CONFIG = 'config.json'
_LOCK = '.lock'  # its content identifies the process that holds it
# Files that exist only in the workdirs of each kind of program.
_MARKS = {
  'run': ('checkpoints', 'metrics.jsonl'),
  'sweep': (POINTS, 'table.json'),
  'language-model experiment': ('prompts.jsonl',),
}


def open_workdir(workdir: pathlib.Path, config: Any, kind: str = 'run') -> None:
  """On process 0, creates a workdir, or checks that it belongs to the config.

  Raises UserError, and writes nothing, if the workdir belongs to another config or
  another kind of program, holds something else, or cannot be written.
  """
  processes.run_on_main(functools.partial(_open, workdir, config, kind))


def _open(workdir: pathlib.Path, config: Any, kind: str) -> None:
  saved = workdir / _CONFIG
  try:
    names = _names_in(workdir)
    _check_kind(workdir, names, kind)
    if _CONFIG in names:
      _compare(saved, config, kind)
      if not (is_url(workdir) or os.access(workdir, os.W_OK)):
        raise PermissionError(None, 'it is not writable')
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


def prolong(workdir: pathlib.Path, config: Any) -> None:
  """On process 0, notes that a run or a sweep goes on for more steps than it had.

  The workdir must belong to the config and be locked.
  """

  def note() -> None:
    saved = read_json(workdir / _CONFIG)
    if saved['train']['num_steps'] != config['train'].num_steps:
      write_atomically(workdir / _CONFIG, to_json(config) + '\n')

  processes.run_on_main(note)


def _names_in(folder: pathlib.Path) -> set[str]:
  return {path.name for path in entries(folder)}


def _check_kind(workdir: pathlib.Path, names: set[str], kind: str) -> None:
  for other, marks in _MARKS.items():
    if other != kind and names.intersection(marks):
      raise UserError(
        f'{workdir} is the workdir of a {other}, not of a {kind}; {_OTHER}'
      )


def _compare(saved: pathlib.Path, config: Any, kind: str) -> None:
  try:
    content = read_json(saved)
  except UnreadableFile:
    content = None
  if not isinstance(content, dict):
    raise UserError(f'{saved} is damaged: no config can be read from it; {_OTHER}')
  differing = differences(content, config)
  if differing and not (kind == 'run' and _reclaim(saved, config)):
    raise UserError(
      f'{saved.parent} belongs to another config; it differs in {shown(differing)}; '
      f'{_OTHER}'
    )


def _reclaim(saved: pathlib.Path, config: Any) -> bool:
  """Gives a run's folder to another config if nothing was saved and nobody uses it.

  A run that ends before its first checkpoint, out of memory or with a loss that is not
  finite, does not spend its folder.
  """
  workdir = saved.parent
  if fcntl is None or is_url(workdir) or not _is_untrained(workdir):
    return False
  with _open_lock(workdir / _LOCK) as file:
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      return False
    if not _is_untrained(workdir):
      return False
    write_atomically(saved, to_json(config) + '\n')
  return True


def _is_untrained(workdir: pathlib.Path) -> bool:
  """Whether a run has saved nothing but its log."""
  empty = {_CONFIG, 'checkpoints', 'metrics.jsonl', 'tensorboard', _LOCK}
  return _names_in(workdir) <= empty and not _names_in(workdir / 'checkpoints')


@contextlib.contextmanager
def locked(
  workdir: pathlib.Path, patience: float = 600.0, part: Part | None = None
) -> Iterator[None]:
  """Locks the workdir, or one part of the work in it, for this program.

  Other programs may have other parts, but none may have the whole folder. In a bucket
  it is leased, and all calls to a bucket out of reach are tried again for `patience`
  seconds. Locally, a sweep also locks the workdirs of its points while it trains. The
  system releases the lock when process 0 ends, however it ends. If the file system has
  no locks, a warning is logged. Raises InUseError if another program holds the lock, in
  a folder even after two minutes; UserError if the processes of the run do not share
  the folder.
  """
  name = None if part is None else f'{part.index}-of-{part.number}'
  with contextlib.ExitStack() as stack:
    if is_url(workdir):
      stack.enter_context(gcs().patient(patience))
      lease = leased(workdir, patience, name)
      processes.run_on_main(lambda: stack.enter_context(lease))
    elif name is not None:
      _flock(workdir, stack, shared=True)
      _flock(workdir, stack, name=f'{_LOCK}-{name}')
    else:
      holder = processes.run_on_main(functools.partial(_lock, workdir, stack))
      with processes.propagate_errors():
        lock = workdir / _LOCK
        if processes.index() and not (lock.exists() and lock.read_text() == holder):
          raise UserError(
            f'{workdir} is not the folder of process 0; give a --workdir that all '
            'processes share'
          )
    yield


def _lock(workdir: pathlib.Path, stack: contextlib.ExitStack) -> str:
  """Locks until the stack is closed; returns the content of the lock file."""
  sweep = workdir.resolve().parent.parent
  if workdir.resolve().parent.name == POINTS and (sweep / _LOCK).exists():
    _flock(sweep, stack, shared=True)
  file = _flock(workdir, stack)
  holder = f'{socket.gethostname()} {os.getpid()} {time.time_ns()}\n'
  file.truncate(0)
  file.write(holder)
  file.flush()
  os.fsync(file.fileno())  # NFS shows other hosts nothing before
  return holder


def _flock(
  workdir: pathlib.Path,
  stack: contextlib.ExitStack,
  shared: bool = False,
  name: str = _LOCK,
) -> TextIO:
  """Locks a file in the workdir until the stack is closed."""
  file = stack.enter_context(_open_lock(workdir / name))
  try:
    _wait_for(file, shared, workdir)
  except OSError as error:
    logging.warning(
      '%s cannot be locked (%s): make sure that no other process trains in it',
      workdir,
      error.strerror or error,
    )
  return file


def _open_lock(path: pathlib.Path) -> TextIO:
  """Opens a lock file, to read, too: NFS needs that for a shared lock."""
  no_link = getattr(os, 'O_NOFOLLOW', 0)  # not on Windows
  flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | no_link
  return os.fdopen(os.open(path, flags, 0o666), 'a+')


def _wait_for(file: TextIO, shared: bool, workdir: pathlib.Path) -> None:
  """Locks a file; raises InUseError if another process holds it for two minutes.

  A process that was just told to stop may still be saving, and the lock of a machine
  that was lost may outlive it for a minute or two on a network file system.
  """
  if fcntl is None:
    raise OSError(None, 'this system has no file locks')
  mode = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
  end, told = time.monotonic() + _PATIENCE, False
  while True:
    try:
      return fcntl.flock(file, mode | fcntl.LOCK_NB)
    except BlockingIOError:
      if time.monotonic() >= end:
        raise InUseError(
          f'{workdir} is in use: another process is training in it; wait for it, or '
          f'{_OTHER}'
        ) from None
    if not told:
      logging.info(
        '%s is in use by another process; waiting for up to %d s', workdir, _PATIENCE
      )
    told = True
    time.sleep(_PAUSE)
