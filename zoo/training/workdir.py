"""A workdir belongs to one config, and to one run at a time."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pathlib
from collections.abc import Iterator

import jax

from zoo.errors import UserError
from zoo.training.config import Config, differences, to_json

_OTHER = 'give another --workdir'


def claim(workdir: pathlib.Path, config: Config) -> None:
  """Makes `workdir` this config's own, or finds that it is already.

  Raises UserError, with nothing written, when it holds a run of another config, holds
  something else, or cannot be written.
  """
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
    elif workdir.is_dir() and {p.name for p in workdir.iterdir()} - {_temporary(saved)}:
      raise UserError(f'{workdir} is not empty and holds no run; {_OTHER}')
    elif workdir.exists() and not workdir.is_dir():
      raise UserError(f'the workdir {workdir} is not a folder; {_OTHER}')
    elif jax.process_index() == 0:
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
  """Holds the workdir for this process; UserError if another one trains in it.

  The system frees the lock when the process ends, however it ends. Where the file
  system knows no locks, none is held.
  """
  if jax.process_index() != 0:
    yield
    return
  with (workdir / '.lock').open('w') as file:
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      raise UserError(
        f'{workdir} is in use: another process is training in it; wait for it, or '
        f'{_OTHER}'
      ) from None
    except OSError:  # not supported there
      pass
    yield


def write_atomically(path: pathlib.Path, text: str) -> None:
  """Writes a whole file, or leaves the old one as it was."""
  temporary = path.with_name(_temporary(path))
  try:
    temporary.write_text(text)
    temporary.replace(path)
  except OSError:
    temporary.unlink(missing_ok=True)
    raise


def _temporary(path: pathlib.Path) -> str:
  return f'.{path.name}.tmp'
