"""Programs of a sweep that train many points at once.

Each program has a folder `programs/…` with the checkpoints of all its points together,
whose origin names the points. The folder is deleted when each point has its own
checkpoint and summary; a sweep that is killed before that does not train them again. It
stays if `config.checkpoint.steps` keeps some of its steps. `load_together` reads the
models of such a step.
"""

import hashlib
import pathlib
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

import jax
from jaxtyping import PyTree

from zoo.host.files import UnreadableFile, delete_folder, read_json
from zoo.storage.checkpoints import cannot_be_read, damaged
from zoo.storage.steps import ORIGIN, damage_of, steps_in
from zoo.storage.workdir import POINTS

_FOLDER = 'programs'


def saved_programs(workdir: pathlib.Path) -> list[list[str]]:
  """Returns the points of each program that has saved a step, most advanced first."""
  programs = steps_together(workdir)
  newest_first = sorted(programs, key=lambda p: int(programs[p][-1].name), reverse=True)
  return [[*names] for names in newest_first]


def folder_of_program(workdir: pathlib.Path, names: Sequence[str]) -> pathlib.Path:
  """Returns the folder of the program of these points, which may not exist yet."""
  digest = hashlib.sha256('\n'.join(names).encode()).hexdigest()[:16]
  return workdir / _FOLDER / digest


def delete_finished(workdir: pathlib.Path, finished: AbstractSet[str]) -> None:
  """Deletes the programs whose points are all `finished`, for example after a kill.

  Programs that have saved no step are deleted, too. Those whose config keeps steps
  stay.
  """
  for folder in _folders(workdir):
    if not (saved := saved_steps(folder)):
      delete_folder(folder)
      continue
    origin = read_json(saved[0] / ORIGIN, dict)
    is_finished = finished >= {*origin['points']}
    if is_finished and not origin['config']['checkpoint']['steps']:
      delete_folder(folder)
  if not _folders(workdir):
    delete_folder(workdir / _FOLDER)


def saved_steps(folder: pathlib.Path) -> list[pathlib.Path]:
  """Returns the steps saved in the workdir of a run, the newest first."""
  checkpoints = folder / 'checkpoints'
  return [checkpoints / str(step) for step in reversed(steps_in(checkpoints))]


def steps_together(workdir: pathlib.Path) -> dict[tuple[str, ...], list[pathlib.Path]]:
  """Returns the saved steps of each program in a workdir, in order.

  The keys are the names of its points.
  """
  programs = {}
  for folder in _folders(workdir):
    if saved := saved_steps(folder):
      programs[tuple(_names_in(saved[0]))] = saved[::-1]
  return programs


class StepTogether(NamedTuple):
  """A saved step of several points, and the place of one point in it.

  Attributes:
    folder: The folder of the step.
    point: The folder of the point.
    place: The place of the point among all points of the step.
    number: The number of the points.
  """

  folder: pathlib.Path
  point: pathlib.Path
  place: int
  number: int


def steps_of_point(folder: pathlib.Path) -> dict[int, StepTogether]:
  """Returns the steps at which a point was saved together with other points.

  The folder is that of the point, or its `checkpoints`. Any other has no such steps.
  """
  point = folder.parent if folder.name == 'checkpoints' else folder
  if point.parent.name != POINTS:
    return {}
  steps = {}
  for names, folders in steps_together(point.parent.parent).items():
    if point.name in names:
      place, number = names.index(point.name), len(names)
      for step in folders:
        steps[int(step.name)] = StepTogether(step, point, place, number)
  return steps


def load_together(
  step: pathlib.Path, alone: PyTree, number: int, places: Sequence[int]
) -> list[PyTree]:
  """Returns the states of some points of a program at a saved step.

  Args:
    step: The folder of the step.
    alone: The abstract state of the model of one point. Its shardings are kept.
    number: The number of points of the program.
    places: The places of the wanted points, in their order in the origin.

  Raises:
    RunError: If the step is damaged.
  """  # noqa: DOC501
  from orbax.checkpoint import v1 as ocp  # It is slow to import.

  if reason := damage_of(step, left_out=('optimizer/',)):
    raise damaged(step, reason)
  here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  stacked: Any = jax.tree.map(
    lambda leaf: jax.ShapeDtypeStruct((number, *leaf.shape), leaf.dtype, sharding=here),
    alone,
  )
  try:
    arrays = ocp.load_checkpointables(str(step), {'model': stacked})['model']
  except Exception as error:
    raise cannot_be_read(step, error) from error
  return [
    jax.tree.map(
      lambda leaf, array, i=i: jax.device_put(array[i], leaf.sharding), alone, arrays
    )
    for i in places
  ]


def _folders(workdir: pathlib.Path) -> list[pathlib.Path]:
  return sorted((workdir / _FOLDER).glob('*'))


def _names_in(step: pathlib.Path) -> list[str]:
  """Returns the points of a step; [] if another part of the sweep has deleted it."""
  try:
    return read_json(step / ORIGIN, dict)['points']
  except UnreadableFile:
    return []
