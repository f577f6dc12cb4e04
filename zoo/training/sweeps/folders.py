"""The folders of points in the workdir of a sweep, and what is in them."""

import functools
import pathlib
from collections.abc import Callable, Iterator, Sequence

from flax import nnx

from zoo.config.validation import Config, abstract_parts
from zoo.core.protocols import Model
from zoo.host.files import names_in, workdir_path
from zoo.storage.loading import load
from zoo.storage.programs import load_together, steps_together
from zoo.storage.steps import steps_in
from zoo.storage.workdir import POINTS
from zoo.training.summary import finished_summary, read_divergence
from zoo.training.sweeps.points import Point, name_as_written, name_of, with_fields


def is_finished(config: Config, points: Sequence[Point], workdir: pathlib.Path) -> bool:
  """Whether a sweep has trained all of the points in the workdir.

  That includes points that have become non-finite.
  """
  return all(
    is_done(workdir / POINTS / name, with_fields(config, point))
    for name, point in zip(names_of_folders(workdir, points), points, strict=True)
  )


def is_done(folder: pathlib.Path, config: Config) -> bool:
  """Whether a point has its summary, or a record of why it has none."""
  ends = finished_summary(folder, config), read_divergence(folder, config)
  return ends != (None, None)


def kept_models(
  config: Config, points: Sequence[Point], workdir: str | pathlib.Path
) -> Iterator[tuple[list[int], int, Callable[[], list[Model]]]]:
  """Finds the steps that a sweep has kept, to load the models of a program at once.

  `zoo.load(folder of a point, step)` opens one of them alone.

  Args:
    config: The config of the sweep.
    points: The points that are wanted, as they were given to `sweep`.
    workdir: The folder of the sweep.

  Yields:
    For each kept step of each program: the indices in `points` of those that it
    trained, the step, and a function that loads their models. The newest step of each
    point follows in the same form, from the folder of the point, so that a step that
    is kept in both places comes twice.
  """
  folder = workdir_path(workdir)
  numbers = {name: i for i, name in enumerate(names_of_folders(folder, points))}
  programs = steps_together(folder)
  for names in programs:
    wanted = [place for place, name in enumerate(names) if name in numbers]
    if not wanted:
      continue
    members = [numbers[names[place]] for place in wanted]
    own = with_fields(config, points[members[0]])

    def load_wanted(
      step: pathlib.Path, own: Config = own, size: int = len(names), wanted=wanted
    ) -> list[Model]:
      graph, alone = abstract_parts(own)
      states = load_together(step, alone, size, wanted)
      return [nnx.merge(graph, state) for state in states]

    for step in programs[names]:
      yield members, int(step.name), functools.partial(load_wanted, step)
  for name, i in numbers.items():
    at = folder / POINTS / name
    for step in steps_in(at / 'checkpoints'):
      yield [i], step, lambda at=at, step=step: [load(at, step).model]


def names_of_folders(workdir: pathlib.Path, points: Sequence[Point]) -> list[str]:
  """The names of the folders of points in a workdir.

  A folder of an earlier version of the library, in whose name each number is as it was
  written, such as `seed=0.0`, is found by this spelling.
  """
  there = names_in(workdir / POINTS)
  names = [name_of(point) for point in points]
  return [
    as_written
    if name not in there and (as_written := name_as_written(point)) in there
    else name
    for name, point in zip(names, points, strict=True)
  ]
