"""Folders of saved steps, local or in a bucket, with manifests of checksums.

A local step is a folder named by its number, which it gets when it is complete. Nothing
can be renamed in a bucket, so there a random number follows, `8-0123456789abcdef`, and
the manifest, which is written last, makes the folder a step. What a killed or suspended
program still writes therefore never mixes with the step of another program.
"""

import concurrent.futures
import hashlib
import os
import pathlib
import re
import stat
from collections.abc import Sequence
from typing import Any, cast

from zoo.core.errors import RunError, UserError
from zoo.host.files import (
  UnreadableFile,
  entries,
  is_url,
  names_below,
  read_text,
  sync_folder,
  write_atomically,
)

MANIFEST = 'SHA256SUMS'
FORMAT = 1  # of a step's contents; increased when older code could not read them

_STEP = re.compile('([0-9]{1,18})(-[0-9a-f]{16})?')


def write_manifest(step_folder: pathlib.Path) -> None:
  """Writes the checksums of all files of a step into it, in sha256sum's format.

  All of the step is on the disk when this returns, so that it outlives a power cut.
  Raises OSError.
  """
  names = [name for name in names_below(step_folder) if name != MANIFEST]
  sums = _checksums(step_folder, names, sync=not is_url(step_folder))
  lines = [f'{one}  {name}\n' for one, name in zip(sums, names, strict=True)]
  write_atomically(step_folder / MANIFEST, ''.join(lines))
  if not is_url(step_folder):
    for folder in step_folder.rglob('*/'):
      sync_folder(folder)
    sync_folder(step_folder)


def _checksums(
  folder: pathlib.Path, names: Sequence[str], sync: bool = False
) -> list[str]:
  """The checksum of each file, with `sync` once it is on the disk.

  In threads, since hashing releases Python's lock.
  """

  def checksum(name: str) -> str:
    with (folder / name).open('rb') as file:
      if sync and os.name == 'posix':  # Windows refuses it for a file that is read
        os.fsync(file.fileno())
      return hashlib.file_digest(cast(Any, file), 'sha256').hexdigest()

  with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as threads:
    return list(threads.map(checksum, names))


def find_corruption(
  step_folder: pathlib.Path, left_out: str | tuple[str, ...] = ()
) -> str | None:
  """What is wrong with the files of a saved step, or None if all are as written.

  Extra files outside the subfolders of a step are ignored, since loading reads none,
  and so are files whose names begin with `left_out`.
  """
  try:
    names = {one for one in names_below(step_folder) if not one.startswith(left_out)}
    if MANIFEST not in names:
      return f'it has no {MANIFEST}'
    if not is_url(step_folder):
      for name in sorted(names):
        if not stat.S_ISREG((step_folder / name).stat().st_mode):
          return f'{name} is not a regular file'
    lines = read_text(step_folder / MANIFEST).splitlines()
    parts = [line.partition('  ') for line in lines]
    listed = {name: one for one, _, name in parts if not name.startswith(left_out)}
    if not listed:
      return f'{MANIFEST} is empty'
    if missing := sorted(listed.keys() - names):
      return f'{missing[0] or MANIFEST} is missing or unreadable'
    if extra := sorted(one for one in names - listed.keys() if '/' in one):
      return f'{extra[0]} is not in {MANIFEST}'
    found = _checksums(step_folder, [*listed])
    for name, checksum in zip(listed, found, strict=True):
      if checksum != listed[name]:
        return f'{name} is not as it was written (its checksum differs)'
    return None
  except UnreadableFile as error:
    return str(error)
  except OSError as error:
    if is_url(step_folder) and not isinstance(error, FileNotFoundError):
      raise RunError(f'{step_folder} cannot be read: {error}') from error
    name = pathlib.Path(error.filename or step_folder).name
    return f'{name} cannot be read: {error.strerror or error}'


def step_folders(folder: pathlib.Path) -> list[pathlib.Path]:
  """The folders of saved steps, the newest first; raises OSError."""
  found = [
    path
    for path in entries(folder)
    if _STEP.fullmatch(path.name) and not _was_killed(path)
  ]
  if not is_url(folder):
    found = [path for path in found if path.is_dir()]
  return sorted(found, key=lambda path: (step_of(path), path.name), reverse=True)


def killed_saves(folder: pathlib.Path) -> list[pathlib.Path]:
  """The folders in a bucket of saves that were killed before they were complete."""
  steps = [path for path in entries(folder) if _STEP.fullmatch(path.name)]
  return [path for path in steps if _was_killed(path)]


def _was_killed(step_folder: pathlib.Path) -> bool:
  return '-' in step_folder.name and not (step_folder / MANIFEST).exists()


def step_of(step_folder: pathlib.Path) -> int:
  """The number of a step."""
  return int(step_folder.name.partition('-')[0])


def chosen_step(
  path: object, folders: Sequence[pathlib.Path], step: int | None
) -> pathlib.Path:
  """The folder of a step, by default the newest; raises UserError if there is none."""
  steps = {step_of(folder): folder for folder in reversed(folders)}
  if not steps:
    raise UserError(
      f'{path} holds no checkpoint; it must be the workdir of a run, its folder '
      'checkpoints, or a folder that zoo.save wrote'
    )
  if step is None:
    step = max(steps)
  if step not in steps:
    raise UserError(f'{path} has no step {step}; it has {sorted(steps)}')
  return steps[step]
