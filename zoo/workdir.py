"""A workdir belongs to one config, and to one run at a time."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import os
import pathlib
import socket
import time
from collections.abc import Iterator

from zoo import processes
from zoo.config import Config, differences, to_json
from zoo.errors import UserError
from zoo.files import temporary_name, write_atomically

_OTHER = 'give another --workdir'
_LOCK = '.lock'  # says, too, which process holds it


def claim(workdir: pathlib.Path, config: Config) -> None:
  """Makes `workdir` this config's own, or finds that it is already; process 0 does.

  Raises UserError, with nothing written, when it holds a run of another config, holds
  something else, or cannot be written.
  """
  processes.on_first(functools.partial(_claim, workdir, config))


def _claim(workdir: pathlib.Path, config: Config) -> None:
  saved = workdir / 'config.json'
  try:
    if saved.is_file():
      _compare(saved, config)
      if not os.access(workdir, os.W_OK):
        raise PermissionError(None, 'it is not writable')
    elif (workdir / 'checkpoints').is_dir():
      raise UserError(
        f'{workdir} holds checkpoints, but no config.json to tell of which config '
        f'(each step has it in origin/data.json); {_OTHER}'
      )
    elif workdir.is_dir() and {p.name for p in workdir.iterdir()} - {
      temporary_name(saved)
    }:
      raise UserError(f'{workdir} is not empty and holds no run; {_OTHER}')
    elif workdir.exists() and not workdir.is_dir():
      raise UserError(f'the workdir {workdir} is not a folder; {_OTHER}')
    else:
      workdir.mkdir(parents=True, exist_ok=True)
      write_atomically(saved, to_json(config) + '\n')
  except OSError as error:
    reason = error.strerror or error
    raise UserError(
      f'the workdir {workdir} cannot be written: {reason}; {_OTHER}'
    ) from error


def _compare(saved: pathlib.Path, config: Config) -> None:
  try:
    differing = differences(json.loads(saved.read_text()), config)
  except (ValueError, AttributeError) as error:
    raise UserError(
      f'{saved} is damaged, no config can be read from it; {_OTHER}'
    ) from (error)
  if differing:
    raise UserError(
      f'{saved.parent} holds a run of another config; it differs in '
      f'{", ".join(differing)}; {_OTHER}'
    )


@contextlib.contextmanager
def locked(workdir: pathlib.Path) -> Iterator[None]:
  """Holds the workdir for this run; UserError if another one trains in it.

  The system frees the lock when process 0 ends, however it ends. Where the file system
  knows no locks, none is held. Raises UserError, too, when the processes of the run do
  not share the folder.
  """
  with contextlib.ExitStack() as stack:
    holder = processes.on_first(functools.partial(_lock, workdir, stack))
    with processes.agreed():
      if processes.index() and _read(workdir / _LOCK) != holder:
        raise UserError(
          f'{workdir} is not the folder of process 0; give a --workdir that all '
          'processes share'
        )
    yield


def _lock(workdir: pathlib.Path, stack: contextlib.ExitStack) -> str:
  """Holds the lock until the stack is closed; returns what now stands in its file."""
  file = stack.enter_context((workdir / _LOCK).open('a'))
  try:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    raise UserError(
      f'{workdir} is in use: another process is training in it; wait for it, or '
      f'{_OTHER}'
    ) from None
  except OSError:  # not supported there
    pass
  holder = f'{socket.gethostname()} {os.getpid()} {time.time_ns()}\n'
  file.truncate(0)
  file.write(holder)
  file.flush()
  return holder


def _read(path: pathlib.Path) -> str | None:
  try:
    return path.read_text()
  except OSError:
    return None
