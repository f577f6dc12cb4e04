"""Saved steps: folders named by their number, each with its origin and checksums.

The origin says which config and which versions made the step. Orbax would restore a
flipped bit without notice. A step therefore has `SHA256SUMS`, in the format of
sha256sum, and is read only if all its checksums match.
"""

import concurrent.futures
import functools
import hashlib
import os
import pathlib
import platform
from collections.abc import Mapping
from importlib import metadata
from typing import Any, NotRequired, TypedDict, cast

from zoo.core.errors import RunError, UserError, in_one_line
from zoo.host.files import (
  UnreadableFile,
  failures,
  is_url,
  names_below,
  names_in,
  read_text,
  said,
  write_atomically,
)

FORMAT = 1  # The number changes with what a step contains, and is the only one read.
ORIGIN = 'origin/data.json'
SUMS = 'SHA256SUMS'
# Orbax writes these files when it commits a step, after the checksums: the time, and in
# a bucket, where nothing can be renamed, the mark of a committed step.
_OF_COMMIT = '_CHECKPOINT_METADATA', 'commit_success.txt'


class Launch(TypedDict):
  """What one launch has trained, as an entry of the history of a step.

  Attributes:
    from_step: The step from which the launch went on; 0 for a new run.
    to_step: The last step that it saved.
    changed: The fields in which its config differs from that of the launch before, with
      the old and the new value.
    versions: The versions of Python, of this library and of the packages that it uses.
  """

  from_step: int
  to_step: int
  changed: dict[str, list[Any]]
  versions: dict[str, str | None]


class Origin(TypedDict):
  """The content of `origin/data.json`: what has made a saved step.

  Attributes:
    format: The format of the step.
    step: The number of steps that the model was trained for.
    config: The config, as JSON holds it.
    versions: The versions of Python, of this library and of the packages that it uses.
    history: Each launch that has led to the step, the first one first. A model of
      `zoo.save` has none.
    points: The names of the points of a sweep that are saved together.
  """

  format: int
  step: int
  config: dict[str, Any]
  versions: dict[str, str | None]
  history: NotRequired[list[Launch]]
  points: NotRequired[list[str]]


def new_origin(content: Mapping[str, Any], step: int) -> Origin:
  """Returns the origin of a step that these versions make from a config."""
  return Origin(format=FORMAT, step=step, config=dict(content), versions=versions())


def checked_origin(folder: pathlib.Path, content: Any) -> Origin:
  """Returns the content of an origin after a check.

  Args:
    folder: The folder of the step, for messages.
    content: The content, as JSON holds it.

  Raises:
    UserError: If the step has another format than this version writes.
    RunError: If the content is damaged.
  """
  try:
    if (number := content['format']) != FORMAT:
      raise UserError(
        f'{folder} has the format {number!r}; this version of ICL Zoo reads the format '
        f'{FORMAT} alone'
      )
    config, step = content['config'], int(content['step'])
    _ = config['model']['name'], config['task']['name']
  except UserError:  # It is a ValueError, too.
    raise
  except (KeyError, TypeError, AttributeError, ValueError) as error:
    raise RunError(
      f'the checkpoint {folder} is damaged: its metadata must have the format '
      f'{FORMAT}, a step, and a config that names a model and a task: '
      f'{in_one_line(error)}'
    ) from error
  return cast(Origin, {**content, 'step': step})


def versions() -> dict[str, str | None]:
  """Returns the versions on which the numbers of a run depend, by package.

  A package that runs from its source tree has none.
  """
  packages = 'icl-zoo', 'jax', 'flax', 'optax', 'orbax-checkpoint', 'numpy', 'scipy'
  known: dict[str, str | None] = {'python': platform.python_version()}
  for name in (*packages, 'matplotlib'):
    try:
      known[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
      known[name] = None
  return known


def write_sums(folder: pathlib.Path) -> None:
  """Writes the checksums of all files of a step into it; raises OSError."""
  names = [name for name in names_below(folder) if name not in (SUMS, *_OF_COMMIT)]
  digest = functools.partial(_checksum, sync=not is_url(folder))
  with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as threads:
    sums = [*threads.map(digest, [folder / name for name in names])]
  lines = [f'{checksum}  {name}\n' for checksum, name in zip(sums, names, strict=True)]
  write_atomically(folder / SUMS, ''.join(lines))


def damage_of(folder: pathlib.Path, left_out: tuple[str, ...] = ()) -> str | None:
  """Returns what is wrong with the files of a step; None if all are as written.

  Files whose names begin with one of `left_out` are not read.

  Raises:
    RunError: If the step is in a bucket that cannot be read.
  """
  try:
    names = {name for name in names_below(folder) if not name.startswith(left_out)}
    if SUMS not in names:
      return f'it has no {SUMS}'
    lines = [line.partition('  ') for line in read_text(folder / SUMS).splitlines()]
    listed = {name: sha for sha, _, name in lines if not name.startswith(left_out)}
    if not listed:
      return f'{SUMS} is empty'
    if missing := sorted(listed.keys() - names):
      return f'{missing[0] or SUMS} is missing or unreadable'
    if unlisted := sorted(name for name in names - listed.keys() if '/' in name):
      return f'{unlisted[0]} is not in {SUMS}'
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as threads:
      sums = [*threads.map(_checksum, [folder / name for name in listed])]
    for name, checksum in zip(listed, sums, strict=True):
      if checksum != listed[name]:
        return f'{name} is not as it was written (its checksum differs)'
    return None
  except UnreadableFile as error:
    return str(error)
  except failures(folder) as error:
    if is_url(folder) and not isinstance(error, FileNotFoundError):
      raise RunError(f'{folder} cannot be read: {said(error)}') from error
    name = pathlib.Path(getattr(error, 'filename', None) or folder).name
    return f'{name} cannot be read: {said(error)}'


def _checksum(file: pathlib.Path, sync: bool = False) -> str:
  """Returns the checksum of a file; with `sync` it survives a power cut from now on."""
  with file.open('rb') as content:
    if sync and os.name == 'posix':  # Windows refuses to sync a file opened to read.
      os.fsync(content.fileno())
    return hashlib.file_digest(cast(Any, content), 'sha256').hexdigest()


def steps_in(folder: pathlib.Path) -> list[int]:
  """Returns the numbers of the complete steps in a folder, in order; raises OSError.

  A step without checksums is still being written, or its program was killed.
  """
  names = [name for name in names_in(folder) if name.isdecimal()]
  return sorted(int(name) for name in names if (folder / name / SUMS).exists())


def chosen_step(folder: pathlib.Path, step: int | None) -> pathlib.Path:
  """Returns the folder of a step, by default of the newest.

  Raises:
    UserError: If the folder has no checkpoint, or not this step.
  """
  steps = steps_in(folder)
  run = folder.parent if folder.name == 'checkpoints' else folder
  if not steps and (run / 'config.json').exists():
    raise UserError(f'the run in {run} has saved no step yet; train it further')
  if not steps:
    raise UserError(
      f'{folder} holds no checkpoint; it must be the workdir of a run, its folder '
      'checkpoints, or a folder that zoo.save wrote'
    )
  if step is None:
    step = steps[-1]
  if step not in steps:
    raise UserError(f'{folder} has no step {step!r}; it has {steps}')
  return folder / str(step)
