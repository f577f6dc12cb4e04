"""Programs of a sweep that train many points at once, and are not finished yet.

Each has a folder `unfinished/…` with the checkpoints of all its points together, whose
metadata names the points. It is deleted when each point has its own checkpoint and
summary, so that a sweep that is killed meanwhile does not train them again.
"""

import hashlib
import pathlib
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from zoo.host.files import UnreadableFile, delete_folder, read_json
from zoo.storage.checkpoints import METADATA_FILE
from zoo.storage.steps import steps_in

POINTS_FIELD = 'points'  # of the metadata: the names of the points, in their order
_FOLDER = 'unfinished'


def unfinished_programs(workdir: pathlib.Path) -> list[list[str]]:
  """The points of each program that has saved a step, the most advanced first."""
  newest = [saved[0] for folder in _folders(workdir) if (saved := saved_steps(folder))]
  newest.sort(key=lambda step: int(step.name), reverse=True)
  return [_names_in(step) for step in newest]


def folder_of_program(workdir: pathlib.Path, names: Sequence[str]) -> pathlib.Path:
  """The folder of the program of these points, which may not exist yet."""
  digest = hashlib.sha256('\n'.join(names).encode()).hexdigest()[:16]
  return workdir / _FOLDER / digest


def delete_finished(workdir: pathlib.Path, finished: AbstractSet[str]) -> None:
  """Deletes the programs whose points are all `finished`, as after a kill.

  Those that have saved no step go, too.
  """
  for folder in _folders(workdir):
    saved = saved_steps(folder)
    if not saved or finished >= {*_names_in(saved[0])}:
      delete_folder(folder)
  if not _folders(workdir):
    delete_folder(workdir / _FOLDER)


def saved_steps(folder: pathlib.Path) -> list[pathlib.Path]:
  """The steps saved in the workdir of a run, the newest first."""
  checkpoints = folder / 'checkpoints'
  return [checkpoints / str(step) for step in reversed(steps_in(checkpoints))]


def _folders(workdir: pathlib.Path) -> list[pathlib.Path]:
  return sorted((workdir / _FOLDER).glob('*'))


def _names_in(step: pathlib.Path) -> list[str]:
  """The points in the metadata of a step; [] if they cannot be read."""
  try:
    return read_json(step / METADATA_FILE, dict)[POINTS_FIELD]
  except (UnreadableFile, KeyError):
    return []
