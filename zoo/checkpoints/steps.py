"""Saved steps as folders of files: their manifest of checksums, and what it finds."""

from __future__ import annotations

import hashlib
import pathlib

from orbax.checkpoint import v1 as ocp

MANIFEST = 'SHA256SUMS'
# Orbax adds the time of the commit to it behind the manifest's back. It holds nothing
# that a load needs: with one bit of it flipped, 40 times, the right state was loaded.
_UNCOVERED = '_CHECKPOINT_METADATA'
FORMAT = 1  # of a step's contents; raised when older code could not read them


def orbax_context() -> ocp.Context:
  """How Orbax is to write the items: `origin` as JSON, all else as arrays."""
  context = ocp.Context()
  handlers = ocp.handlers.local_registry()
  handlers.add(ocp.handlers.JsonHandler, checkpointable_name='origin')
  context.checkpointables.registry = handlers
  return context


def write_manifest(step_folder: pathlib.Path) -> None:
  """Writes the checksums of all files of a step into it."""
  paths = sorted(path for path in step_folder.rglob('*') if path.is_file())
  files = [path for path in paths if path.name not in (_UNCOVERED, MANIFEST)]
  lines = [f'{_sha256(path)}  {path.relative_to(step_folder)}\n' for path in files]
  (step_folder / MANIFEST).write_text(''.join(lines))


def fault(step_folder: pathlib.Path) -> str | None:
  """What is wrong with the files of a saved step, or None if all are as written."""
  manifest = step_folder / MANIFEST
  if not manifest.is_file():
    return f'it has no {MANIFEST}'
  lines = manifest.read_text(errors='replace').splitlines()
  listed = {
    name: sha256 for sha256, _, name in (line.partition('  ') for line in lines)
  }
  for name, sha256 in listed.items():
    path = step_folder / name
    if not path.is_file():
      return f'{name or MANIFEST} is missing or unreadable'
    if _sha256(path) != sha256:
      return f'{name} is not as it was written (its checksum differs)'
  items = [path for path in step_folder.iterdir() if path.is_dir()]
  for path in (path for item in items for path in item.rglob('*') if path.is_file()):
    if str(path.relative_to(step_folder)) not in listed:
      return f'{path.relative_to(step_folder)} is not in {MANIFEST}'
  return None


def step_folders(folder: pathlib.Path) -> list[pathlib.Path]:
  """The folders of saved steps, the newest first."""
  steps = [path for path in folder.iterdir() if path.name.isdecimal() and path.is_dir()]
  return sorted(steps, key=lambda path: int(path.name), reverse=True)


def _sha256(path: pathlib.Path) -> str:
  with path.open('rb') as file:
    return hashlib.file_digest(file, 'sha256').hexdigest()
