"""The folders of points in the workdir of a sweep, and what is in them."""

import functools
import pathlib
from collections.abc import Callable, Iterator, Sequence

from flax import nnx

from zoo.config.building import abstract_parts, build_task
from zoo.config.read import Readable, read
from zoo.config.run import Run
from zoo.core.protocols import Model
from zoo.host.files import workdir_path
from zoo.storage.loading import load
from zoo.storage.steps import steps_in
from zoo.storage.together import load_together, steps_together
from zoo.storage.workdir import POINTS
from zoo.training.summary import finished_summary, read_divergence
from zoo.training.sweeps.points import Point, config_at, name_of


def is_finished(
  config: Readable, points: Sequence[Point], workdir: pathlib.Path
) -> bool:
  """Returns whether a sweep has trained all of the points in the workdir.

  A point that has become non-finite counts as trained.
  """
  shared = read(config)
  return all(
    is_done(workdir / POINTS / name_of(point), config_at(shared, point))
    for point in points
  )


def is_done(folder: pathlib.Path, config: Run) -> bool:
  """Returns whether a point has its summary, or a record of why it has none.

  A summary does not count if a later step is there: a launch that was to train the
  point for more steps was killed after its first save.
  """
  if finished_summary(folder, config) is not None:
    steps = steps_in(folder / 'checkpoints')
    return not steps or steps[-1] <= config.train.num_steps
  return read_divergence(folder, config) is not None


def kept_models(
  config: Readable, points: Sequence[Point], workdir: str | pathlib.Path
) -> Iterator[tuple[list[int], int, Callable[[], list[Model]]]]:
  """Finds the steps that a sweep has kept, to load the models of a group at once.

  `zoo.load(folder of a point, step)` opens one model alone.

  Args:
    config: The config of the sweep.
    points: The wanted points, as they were given to `sweep`.
    workdir: The folder of the sweep.

  Yields:
    For each kept step of each group that was trained side by side: the indices in
    `points` of its members, the step, and a function that loads their models. The steps
    in the folder of each point follow in the same form, so that a step that is kept in
    both places comes twice.
  """
  workdir = workdir_path(workdir)
  numbers = {name_of(point): i for i, point in enumerate(points)}
  for names, steps in steps_together(workdir).items():
    places = [place for place, name in enumerate(names) if name in numbers]
    if not places:
      continue
    members = [numbers[names[place]] for place in places]
    member_config = config_at(read(config), points[members[0]])
    for step in steps:
      yield (
        members,
        int(step.name),
        functools.partial(_load_group, member_config, step, len(names), places),
      )
  for name, i in numbers.items():
    folder = workdir / POINTS / name
    for step in steps_in(folder / 'checkpoints'):
      yield [i], step, functools.partial(_load_alone, folder, step)


def _load_group(
  config: Run, step: pathlib.Path, size: int, places: Sequence[int]
) -> list[Model]:
  """Loads the models at these places of a group of `size` points, at a saved step."""
  graph, alone = abstract_parts(config, build_task(config))
  states = load_together(step, alone, size, places)
  return [nnx.merge(graph, state) for state in states]


def _load_alone(folder: pathlib.Path, step: int) -> list[Model]:
  """Loads the model of a point from its own folder."""
  return [load(folder, step).model]
