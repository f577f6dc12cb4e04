"""Folders of saved steps: their manifests of checksums, and checks against these."""

from __future__ import annotations

import concurrent.futures
import hashlib
import os
import pathlib
import re
import stat
from collections.abc import Mapping
from typing import TypeVar

from zoo.core.errors import RunError, UserError
from zoo.host.files import UnreadableFile, read_text, sync_folder

_Step = TypeVar('_Step')

MANIFEST = 'SHA256SUMS'
FORMAT = 1  # of a step's contents; increased when older code could not read them


def write_manifest(step_folder: pathlib.Path) -> None:
  """Writes the checksums of all files of a step into it, in sha256sum's format.

  All of the step is on the disk when this returns, so that it outlives a power cut.
  Raises RunError unless the manifest can be read back, OSError if it cannot be written.
  """
  names = [name for name in _file_names(step_folder) if name != MANIFEST]
  sums = _sha256_sums([step_folder / name for name in names])
  lines = [f'{sha256}  {name}\n' for sha256, name in zip(sums, names, strict=True)]
  manifest = step_folder / MANIFEST
  manifest.write_text(''.join(lines), encoding='utf-8')
  if not names or manifest.read_text(encoding='utf-8') != ''.join(lines):
    raise RunError(f'{manifest} does not hold the checksums that were written to it')
  _sync([step_folder / name for name in [*names, MANIFEST]])
  for path in [*step_folder.rglob('*'), step_folder]:
    if path.is_dir():
      sync_folder(path)


def find_corruption(step_folder: pathlib.Path) -> str | None:
  """What is wrong with the files of a saved step, or None if all are as written.

  Extra files outside the subfolders of a step are ignored, since loading reads none.
  """
  try:
    names = _file_names(step_folder)
    if MANIFEST not in names:
      return f'it has no {MANIFEST}'
    for name in names:
      if not stat.S_ISREG((step_folder / name).stat().st_mode):
        return f'{name} is not a regular file'
    return _compare_with_manifest(step_folder, set(names))
  except UnreadableFile as error:
    return str(error)
  except OSError as error:
    name = pathlib.Path(error.filename or step_folder).name
    return f'{name} cannot be read: {error.strerror or error}'


def _compare_with_manifest(step_folder: pathlib.Path, names: set[str]) -> str | None:
  listed = sums_in(read_text(step_folder / MANIFEST))
  if not listed:
    return f'{MANIFEST} is empty'
  if missing := sorted(listed.keys() - names):
    return f'{missing[0] or MANIFEST} is missing or unreadable'
  sums = _sha256_sums([step_folder / name for name in listed])
  for (name, written), found in zip(listed.items(), sums, strict=True):
    if found != written:
      return f'{name} is not as it was written (its checksum differs)'
  if extra := sorted(name for name in names - listed.keys() if '/' in name):
    return f'{extra[0]} is not in {MANIFEST}'
  return None


def step_folders(folder: pathlib.Path) -> list[pathlib.Path]:
  """The folders of saved steps, the newest first; raises OSError."""
  steps = [path for path in folder.iterdir() if re.fullmatch('[0-9]{1,18}', path.name)]
  steps = [path for path in steps if path.is_dir()]
  return sorted(steps, key=lambda path: int(path.name), reverse=True)


def chosen_step(path: object, steps: Mapping[int, _Step], step: int | None) -> _Step:
  """The entry of a step, by default the newest; raises UserError if there is none."""
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


def sums_in(manifest: str) -> dict[str, str]:
  """The checksum of each file that a manifest lists."""
  lines = manifest.splitlines()
  return {name: one for one, _, name in (line.partition('  ') for line in lines)}


def _file_names(folder: pathlib.Path) -> list[str]:
  """All files below a folder, relative to it and sorted; raises OSError."""

  def fail(error: OSError) -> None:
    raise error

  return sorted(
    pathlib.Path(parent, name).relative_to(folder).as_posix()
    for parent, _, names in os.walk(folder, onerror=fail)
    for name in names
  )


def _sha256_sums(paths: list[pathlib.Path]) -> list[str]:
  """The checksum of each file; in threads, since hashing releases Python's lock."""
  with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as threads:
    return list(threads.map(_sha256, paths))


def _sync(paths: list[pathlib.Path]) -> None:
  """Waits until files are on the disk; raises OSError."""

  def sync(path: pathlib.Path) -> None:
    with path.open('rb') as file:
      os.fsync(file.fileno())

  if os.name == 'posix':  # Windows refuses it for a file that is opened to read
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as threads:
      list(threads.map(sync, paths))


def _sha256(path: pathlib.Path) -> str:
  with path.open('rb') as file:
    return hashlib.file_digest(file, 'sha256').hexdigest()
