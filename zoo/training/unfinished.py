"""Programs of a sweep that train many points at once, and are not finished yet.

Each has a folder `unfinished/…` with the checkpoints of all its points together, whose
metadata names the points. It is deleted when each point has its own checkpoint and
summary, so that a sweep that is killed meanwhile does not train them again.
"""

from __future__ import annotations

import hashlib
import pathlib
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

from zoo.host.files import UnreadableFile, delete_folder, read_json
from zoo.storage.orbax_folders import METADATA_FILE
from zoo.storage.steps import step_folders, step_of

POINTS_FIELD = 'points'  # of the metadata: the names of the points, in their order
_FOLDER = 'unfinished'


class Unfinished(NamedTuple):
  """A program that has saved a step."""

  folder: pathlib.Path
  step: int
  names: list[str]  # of its points


def unfinished_programs(workdir: pathlib.Path) -> list[Unfinished]:
  """The programs of a sweep that have saved a step, the most advanced first."""
  found = [
    Unfinished(folder, step_of(saved[0]), names)
    for folder in _folders(workdir)
    if (saved := saved_steps(folder)) and (names := _names_in(saved[0]))
  ]
  return sorted(found, key=lambda one: (-one.step, one.folder.name))


def folder_of_program(workdir: pathlib.Path, names: Sequence[str]) -> pathlib.Path:
  """The folder of the program of these points, which may not exist yet."""
  for program in unfinished_programs(workdir):
    if program.names == [*names]:
      return program.folder
  digest = hashlib.sha256('\n'.join(names).encode()).hexdigest()[:16]
  return workdir / _FOLDER / digest


def delete_finished(workdir: pathlib.Path, finished: AbstractSet[str]) -> None:
  """Deletes the programs whose points are all `finished`, as after a kill.

  Those that have saved no step go, too.
  """
  for folder in _folders(workdir):
    saved = saved_steps(folder)
    names = _names_in(saved[0]) if saved else None
    if finished >= {*(names or ())}:
      delete_folder(folder)
  if not _folders(workdir) and (workdir / _FOLDER).is_dir():
    delete_folder(workdir / _FOLDER)


def saved_steps(folder: pathlib.Path) -> list[pathlib.Path]:
  """The steps saved in the workdir of a run, the newest first; [] if there are none."""
  try:
    return step_folders(folder / 'checkpoints')
  except (FileNotFoundError, NotADirectoryError):
    return []


def _folders(workdir: pathlib.Path) -> list[pathlib.Path]:
  return sorted((workdir / _FOLDER).glob('*'))


def _names_in(step: pathlib.Path) -> list[str] | None:
  """The points in the metadata of a step; None if they cannot be read."""
  try:
    metadata: Any = read_json(step / METADATA_FILE)
    names = metadata[POINTS_FIELD]
  except (UnreadableFile, KeyError, TypeError):
    return None
  if isinstance(names, list) and all(isinstance(name, str) for name in names):
    return names
  return None
