"""Workdirs, each of which belongs to one config, and to one program at a time."""

import contextlib
import errno
import os
import pathlib
import socket
from collections.abc import Iterator
from typing import Any

import filelock
import jax

from zoo.config.read import Readable, to_content, to_json
from zoo.config.saved import differences
from zoo.core.errors import InUseError, RunError, UserError, in_one_line, shown
from zoo.host import processes
from zoo.host.files import (
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
# A program locks this file while it works in a folder, and a part of the work locks
# `.lock.1-of-2`. The file says which process had the lock last.
LOCK = '.lock'
# Programs wait this long for a lock, since another program may hold it for a moment to
# test it.
_SECONDS_OF_TEST = 0.5
# Only one kind of program has these files in its workdirs.
_MARKS = {
  'run': ('checkpoints', 'metrics.jsonl'),
  'sweep': (POINTS, 'table.json'),
}


@contextlib.contextmanager
def open_workdir(
  workdir: pathlib.Path, config: Readable, kind: str = 'run', part: Part | None = None
) -> Iterator[None]:
  """Makes and locks a workdir for the block.

  Args:
    workdir: The workdir. A config that is in it stays there.
    config: The config of the program.
    kind: The kind of the program.
    part: The part of its work, as for `locked`.

  Raises:
    UserError: If the workdir belongs to another config or another kind of program,
      holds something else, cannot be written, or is in use by another process.
    RunError: If something cannot be written there.
  """
  processes.run_on_main(lambda: make_workdir(workdir, config, kind))
  try:
    with locked(workdir, part):
      yield
  except failures(workdir) as error:
    if not _is_about(workdir, error):
      raise
    raise RunError(f'{workdir} could not be written: {in_one_line(error)}') from error


def make_workdir(workdir: pathlib.Path, config: Readable, kind: str = 'run') -> None:
  """Makes a workdir with its config, unless it belongs to another; for process 0.

  The folder of a run that ended before its first checkpoint may be used with any
  config: such a run ended because memory was not enough or a loss was not finite. The
  folder of any other run may be used with a config that has more steps. A config that
  is in the folder stays there.

  Raises:
    UserError: If the workdir belongs to another config or another kind of program,
      holds something else, or cannot be written. Nothing is written then.
  """
  try:
    names = names_in(workdir)
    for other, marks in _MARKS.items():
      if other != kind and names.intersection(marks):
        raise UserError(
          f'{workdir} is the workdir of a {other}, not of a {kind}; {_OTHER}'
        )
    if CONFIG in names:
      _check_config(workdir, config, kind)
      return
    # A program that was killed while it wrote the config leaves a temporary file.
    if others := {name for name in names if not name.startswith(f'.{CONFIG}.')}:
      raise UserError(
        f'{workdir} is not empty and holds no run (it has {min(others)}); {_OTHER}'
      )
    workdir.mkdir(parents=True, exist_ok=True)
    write_config(workdir, config)
  except failures(workdir) as error:
    raise UserError(
      f'the workdir {workdir} cannot be written: {said(error)}; {_OTHER}'
    ) from error


def _check_config(workdir: pathlib.Path, config: Readable, kind: str) -> None:
  """Raises UserError unless the config of a workdir may be replaced by this one."""
  differing = differences(read_json(workdir / CONFIG, dict), to_content(config))
  results = {*names_in(workdir), *names_in(workdir / 'checkpoints')}
  is_trained = any(name.isdecimal() for name in results) or 'summary.json' in results
  if differing and (is_trained or kind != 'run'):
    only_steps = [field.split()[0] for field in differing] == ['train.num_steps']
    hint = ' (a run may be given more steps, not fewer)' if only_steps else ''
    raise UserError(
      f'{workdir} belongs to another config; it differs in {shown(differing)}{hint}; '
      f'{_OTHER}'
    )


def has_config(workdir: pathlib.Path, config: Readable) -> bool:
  """Returns whether the config in a workdir is this one, in all of its fields."""
  saved = workdir / CONFIG
  return saved.exists() and read_text(saved) == to_json(config) + '\n'


def write_config(workdir: pathlib.Path, config: Readable) -> None:
  """Writes the config of a workdir, in place of another one; raises OSError."""
  write_atomically(workdir / CONFIG, to_json(config) + '\n')


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
    write_config(workdir, content)


def _is_about(workdir: pathlib.Path, error: BaseException) -> bool:
  """Returns whether an error is about a workdir, and not from the user's own code.

  Without this question, a missing file of a hook would be reported as a fault of the
  workdir, without the traceback that its author needs.
  """
  if isinstance(name := getattr(error, 'filename', None), str):
    return pathlib.Path(name).parent.resolve().is_relative_to(workdir.resolve())
  # An error in writing to an open file names none.
  of_disk = errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG, errno.ESTALE
  return is_url(workdir) or getattr(error, 'errno', None) in of_disk


@contextlib.contextmanager
def locked(workdir: pathlib.Path, part: Part | None = None) -> Iterator[None]:
  """Locks a local workdir, or one part of the work in it, for this program.

  Other programs may have other parts of the same number of parts, but none may have the
  whole folder. The system releases the lock when the program ends, however it ends. A
  bucket has no locks: two programs must not write into one folder of it.

  Raises:
    InUseError: If another program holds a lock that excludes this one.
    UserError: If the processes of the run do not share the folder.
  """
  if is_url(workdir):
    yield
    return
  same_division = '' if part is None else f'-of-{part.number}'
  own = workdir / (LOCK if part is None else f'{LOCK}.{part.index}{same_division}')
  with contextlib.ExitStack() as stack:

    def lock() -> str:
      stack.enter_context(_lock(own))
      me = f'process {os.getpid()} on {socket.gethostname()}'
      own.write_text(me)
      for name in names_in(workdir):
        is_beside = part is not None and name.endswith(same_division)
        if name.startswith(LOCK) and name != own.name and not is_beside:
          with _lock(workdir / name):
            pass  # Nobody else holds it.
      return me

    holder = processes.run_on_main(lock)
    with processes.propagate_errors():
      if jax.process_index() and not (own.exists() and own.read_text() == holder):
        raise UserError(
          f'{workdir} is not the folder of process 0; give a --workdir that all '
          'processes share'
        )
    yield


def _lock(path: pathlib.Path) -> contextlib.AbstractContextManager[object]:
  """Locks a file until the block ends that enters the result; raises InUseError."""
  lock = filelock.FileLock(path, timeout=_SECONDS_OF_TEST, fallback_to_soft=False)
  try:
    return lock.acquire()
  except filelock.Timeout as error:
    raise InUseError(
      f'{path.parent} is in use: another process is training in it '
      f'({path.read_text():.100}); wait for it, or give another folder'
    ) from error
