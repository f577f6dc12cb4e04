"""Folders of saved steps, local or in a bucket, with manifests of checksums.

A local step is a folder named by its number, which it gets when it is complete. Nothing
can be renamed in a bucket, so there a random number follows, `8-0123456789abcdef`, and
the manifest, which is written last, makes the folder a step. What a killed or suspended
program still writes therefore never mixes with the step of another program.
"""

from __future__ import annotations

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

# The manifests and their hashes; the first steps in buckets had MD5.
_HASHES = {MANIFEST: 'sha256', 'MD5SUMS': 'md5'}
_STEP = re.compile('([0-9]{1,18})(-[0-9a-f]{16})?')


def write_manifest(step_folder: pathlib.Path) -> None:
  """Writes the checksums of all files of a step into it, in sha256sum's format.

  All of the step is on the disk when this returns, so that it outlives a power cut.
  Raises RunError unless the manifest can be read back, OSError if it cannot be written.
  """
  names = files_of(step_folder)
  add_manifest(step_folder, names, written_sums(step_folder, names))


def add_manifest(
  step_folder: pathlib.Path, names: Sequence[str], sums: Sequence[str]
) -> None:
  """As `write_manifest`, with known checksums."""
  lines = [f'{one}  {name}\n' for one, name in zip(sums, names, strict=True)]
  manifest = step_folder / MANIFEST
  write_atomically(manifest, ''.join(lines))
  if not names or manifest.read_text(encoding='utf-8') != ''.join(lines):
    raise RunError(f'{manifest} does not hold the checksums that were written to it')
  if not is_url(step_folder):
    for folder in {(step_folder / name).parent for name in names}:
      while folder != step_folder:
        sync_folder(folder)
        folder = folder.parent
    sync_folder(step_folder)


def files_of(step_folder: pathlib.Path) -> list[str]:
  """The names of the files of a step but for its manifest; raises OSError."""
  return [name for name in names_below(step_folder) if name not in _HASHES]


def written_sums(folder: pathlib.Path, names: Sequence[str]) -> list[str]:
  """The checksum of each file, once it is on the disk."""

  def sync(name: str) -> None:
    with (folder / name).open('rb') as file:
      os.fsync(file.fileno())

  # Windows refuses it for a file that is opened to read.
  if os.name == 'posix' and not is_url(folder):
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as threads:
      list(threads.map(sync, names))
  return _sums(folder, names)


def _sums(
  folder: pathlib.Path, names: Sequence[str], kind: str = 'sha256'
) -> list[str]:
  """The checksum of each file; in threads, since hashing releases Python's lock."""

  def checksum(name: str) -> str:
    with (folder / name).open('rb') as file:
      return hashlib.file_digest(cast(Any, file), kind).hexdigest()

  with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as threads:
    return list(threads.map(checksum, names))


def find_corruption(
  step_folder: pathlib.Path, share: int = 0, num_shares: int = 1
) -> str | None:
  """What is wrong with the files of a saved step, or None if all are as written.

  Of several shares only one is read. Extra files outside the subfolders of a step are
  ignored, since loading reads none.
  """
  try:
    names = set(names_below(step_folder))
    manifest = next((name for name in _HASHES if name in names), None)
    if manifest is None:
      return f'it has no {MANIFEST}'
    if not is_url(step_folder):
      for name in sorted(names):
        if not stat.S_ISREG((step_folder / name).stat().st_mode):
          return f'{name} is not a regular file'
    lines = read_text(step_folder / manifest).splitlines()
    parts = [line.partition('  ') for line in lines]
    listed = {name: checksum for checksum, _, name in parts}
    if not listed:
      return f'{manifest} is empty'
    if missing := sorted(listed.keys() - names):
      return f'{missing[0] or manifest} is missing or unreadable'
    if extra := sorted(one for one in names - listed.keys() if '/' in one):
      return f'{extra[0]} is not in {manifest}'
    chosen = sorted(listed)[share::num_shares]
    sums = _sums(step_folder, chosen, _HASHES[manifest])
    for name, found in zip(chosen, sums, strict=True):
      if found != listed[name]:
        return f'{name} is not as it was written (its checksum differs)'
    return None
  except UnreadableFile as error:
    return str(error)
  except OSError as error:
    if is_url(step_folder) and not isinstance(error, FileNotFoundError):
      raise RunError(f'{step_folder} cannot be read: {error}') from error
    name = pathlib.Path(error.filename or step_folder).name
    return f'{name} cannot be read: {error.strerror or error}'


def leave_out(step_folder: pathlib.Path, below: str) -> None:
  """Drops the files whose names begin so from the manifest of a local copy."""
  for manifest in (step_folder / name for name in _HASHES):
    if manifest.exists():
      lines = read_text(manifest).splitlines(keepends=True)
      kept = [line for line in lines if not line.partition('  ')[2].startswith(below)]
      manifest.write_text(''.join(kept), encoding='utf-8')


def step_folders(folder: pathlib.Path) -> list[pathlib.Path]:
  """The folders of saved steps, the newest first; raises OSError."""
  found = [path for path in entries(folder) if _STEP.fullmatch(path.name)]
  if is_url(folder):
    found = [path for path in found if not (is_save(path) and not _is_complete(path))]
  else:
    found = [path for path in found if path.is_dir()]
  return sorted(found, key=lambda path: (step_of(path), path.name), reverse=True)


def incomplete_saves(folder: pathlib.Path) -> list[pathlib.Path]:
  """The folders in a bucket of saves that were killed before they were complete."""
  return [path for path in entries(folder) if is_save(path) and not _is_complete(path)]


def step_of(step_folder: pathlib.Path) -> int:
  """The number of a step."""
  return int(step_folder.name.partition('-')[0])


def is_save(path: pathlib.Path) -> bool:
  """Whether a folder is named as a save into a bucket."""
  parts = _STEP.fullmatch(path.name)
  return parts is not None and parts[2] is not None


def _is_complete(step_folder: pathlib.Path) -> bool:
  return any((step_folder / name).exists() for name in _HASHES)


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
