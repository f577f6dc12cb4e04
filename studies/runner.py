"""What all studies share: a folder in which models are trained, measured and kept."""

import contextlib
import json
import os
import pathlib
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import jax
from absl import logging

import zoo
from zoo import reports
from zoo.config.building import Config
from zoo.config.saved import to_json
from zoo.core.errors import RunError, UserError
from zoo.core.tables import format_seconds
from zoo.host.files import workdir_path, write_atomically
from zoo.host.interruption import Interruption, Stopped
from zoo.host.parts import Part
from zoo.storage.rows import version_digest, versions
from zoo.training import sweeps
from zoo.training.run_plots import logged

# The config of a file name in configs/ and a variant.
GetConfig = Callable[[str, str], Config]

_Item = TypeVar('_Item')


@contextlib.contextmanager
def run_in(
  out: str | os.PathLike[str],
) -> Iterator[tuple[pathlib.Path, Interruption]]:
  """The folder `out`, and what asks the block that writes into it to stop.

  The folder is made if needed. It may be in a bucket, such as gs://bucket/paper. A
  block that SIGTERM stops ends without an error, so that what comes after it is
  reached. Raises KeyboardInterrupt after Ctrl-C; UserError, before anything is written,
  for an `out` that cannot be a folder.
  """
  folder = workdir_path(out)
  try:
    folder.mkdir(parents=True, exist_ok=True)
  except OSError as error:
    raise UserError(f'{out} cannot be the output folder: {error.strerror}') from error
  interruption = Interruption()
  try:
    with interruption:
      yield folder, interruption
  except Stopped:
    interruption.raise_if_ctrl_c()


@contextlib.contextmanager
def writing(out: str | os.PathLike[str]) -> Iterator[None]:
  """Raises RunError in place of an OSError of the block, which writes into `out`."""
  try:
    yield
  except OSError as error:
    raise RunError(
      f'{error.filename or out} cannot be written: {error.strerror or error}'
    ) from error


def with_progress(
  kind: str, items: Mapping[str, _Item], interruption: Interruption
) -> Iterator[tuple[str, _Item]]:
  """The items with their names, which are logged; raises Stopped after a signal.

  The log also says how long the rest takes, if its items take as long as those before.
  """
  start = time.monotonic()
  for number, (name, item) in enumerate(items.items()):
    if interruption.due():
      raise Stopped
    left = ''
    if number:
      seconds = (time.monotonic() - start) / number * (len(items) - number)
      left = f', about {format_seconds(seconds)} left'
    logging.info('%s %d of %d: %s%s', kind, number + 1, len(items), name, left)
    yield name, item


def write_report(out: pathlib.Path, file: str, data: object, page: str) -> None:
  """Writes the results as JSON, and `report.html`, into a folder; raises OSError."""
  write_atomically(out / file, json.dumps(data, indent=2) + '\n')
  write_atomically(out / 'report.html', page)


class UntrainedError(Exception):
  """A study asks for runs that are not there, and that are not to be trained."""


class Trainer:
  """Trains sweeps in one folder; runs that are finished there are not trained again.

  A run belongs to its config and to the version of the library: after a change of
  either it is trained anew, in another folder. With `trains` False nothing is trained,
  and UntrainedError is raised where something would have to be.
  """

  def __init__(
    self, folder: pathlib.Path, get_config: GetConfig, *, trains: bool = True
  ):
    self._folder, self._get_config, self._trains = folder, get_config, trains
    self.asked: list[str] = []  # the folders of the sweeps that were asked for

  def __call__(
    self,
    name: str,
    config: str,
    fields: Mapping[str, object],
    points: Sequence[sweeps.Point] = ({'seed': 0},),
    part: Part | None = None,
  ) -> list[sweeps.Row]:
    """The rows of a sweep: each has the fields of its point, a summary and a `workdir`.

    `config` is the name of a file in configs/, or of a registered model, with a variant
    after a colon; `fields`, such as `task.noise_std`, are set for all points. The name
    of the folder of this sweep alone is `name` and a digest of its config. Several
    seeds, learning rates or initial scales are trained in one program; a single point
    saves checkpoints during training. Raises Stopped after SIGTERM, and otherwise the
    errors of `zoo.training.sweep`.
    """
    whole = self.config(config, fields)
    self.asked.append(f'{name}-{version_digest(to_json(whole))}')
    folder = self._folder / self.asked[-1]
    if not (self._trains or sweeps.is_finished(whole, points, folder)):
      raise UntrainedError
    try:
      rows = sweeps.sweep(whole, points, folder, part)
    except sweeps.LostPointsError as error:
      if self._trains:
        raise
      raise UntrainedError from error  # a report without its numbers
    if rows is None:
      raise Stopped
    return rows

  def config(self, config: str, fields: Mapping[str, object] | None = None) -> Config:
    """The config of a name, with fields set, both as for a call; raises UserError."""
    file, _, variant = config.partition(':')
    return sweeps.at_point(self._get_config(file, variant), fields or {})


def best(rows: Sequence[sweeps.Row]) -> sweeps.Row:
  """The row with the least loss on held-out prompts."""
  known = [row for row in rows if row['eval_risk'] is not None]
  return min(known or rows, key=lambda row: row['eval_risk'] or 0.0)


def history(row: sweeps.Row, field: str = 'eval_risk') -> tuple[list[int], list[float]]:
  """The logged steps of a run that have a field, and its values there."""
  return logged(row['workdir'], field)


def histories(
  rows: Sequence[sweeps.Row], field: str = 'eval_risk'
) -> tuple[list[int], list[list[float]]]:
  """The logged steps that the first of some runs has, and the values of each run."""
  curves = [history(row, field) for row in rows]
  return curves[0][0], [values for _, values in curves]


def load(row: sweeps.Row, step: int | None = None) -> Any:
  """The trained model of a run; `step` None is the last one."""
  return zoo.load(row['workdir'], step).model


def facts() -> dict[str, dict[str, str]]:
  """The versions and the machine that the numbers of a report depend on."""
  device = jax.devices()[0]
  machine = {
    'system': f'{platform.system()} {platform.machine()}',
    'CPU cores': str(os.cpu_count()),
    'devices': f'{jax.device_count()} × {device.device_kind}',
  }
  return {
    'Versions': versions(),
    'Machine': machine,
  }


def sections_of(tables: Mapping[str, Mapping[str, str]]) -> list[reports.Section]:
  """A section of a report for each table of facts, by its heading."""
  return [
    reports.Section(heading, tables=[reports.Table([*table.items()])])
    for heading, table in tables.items()
  ]
