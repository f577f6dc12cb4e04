"""The folder of a study, in which models are trained, measured and kept."""

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
from zoo.config.read import Readable, to_json
from zoo.config.run import Run
from zoo.core.errors import RunError, UserError
from zoo.core.tables import format_seconds
from zoo.host.files import workdir_path, write_atomically
from zoo.host.interruption import Interruption, Stopped
from zoo.host.parts import Part
from zoo.storage.rows import version_digest
from zoo.storage.steps import versions
from zoo.training import sweeps
from zoo.training.records import read_lines
from zoo.training.run_plots import logged

# The function returns the config of a file name in configs/ and a variant.
GetConfig = Callable[[str, str], Readable]

_Item = TypeVar('_Item')


@contextlib.contextmanager
def run_in(
  out: str | os.PathLike[str],
) -> Iterator[tuple[pathlib.Path, Interruption]]:
  """Makes the folder `out`, and catches the signals that ask its block to stop.

  The folder may be in a bucket, such as gs://bucket/paper. After SIGTERM the block ends
  without an error, so that the code after it is reached.

  Args:
    out: The folder, which is made if it is missing.

  Yields:
    The folder as a path, and what asks the block to stop.

  Raises:
    UserError: If `out` cannot be a folder, before anything is written.
    KeyboardInterrupt: After Ctrl-C.
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
  """Raises a RunError in place of an OSError of the block, which writes into `out`."""
  try:
    yield
  except OSError as error:
    raise RunError(
      f'{error.filename or out} cannot be written: {error.strerror or error}'
    ) from error


def with_progress(
  kind: str, items: Mapping[str, _Item], interruption: Interruption
) -> Iterator[tuple[str, _Item]]:
  """Yields the items with their names, and logs each.

  The log also says how long the other items will take, if they take as long as those
  before.

  Raises:
    Stopped: After a signal.
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
  """The error of a study that needs runs which are missing and must not be trained."""


class Trainer:
  """Trains sweeps in one folder, and trains nothing twice.

  A run belongs to its config and to the version of the library. After a change of
  either it is trained anew, in another folder.

  Attributes:
    asked: The names of the folders of the sweeps that were asked for, in order.

  Example:
    >>> import pathlib
    >>> get_config = lambda name, variant: zoo.default_config(name)
    >>> train = studies.Trainer(pathlib.Path('runs'), get_config)
    >>> train.config('yq_lsa', {'train.num_steps': 200}).train.num_steps
    200
  """

  def __init__(
    self, folder: pathlib.Path, get_config: GetConfig, *, trains: bool = True
  ):
    """Opens the folder; nothing is trained yet.

    Args:
      folder: The folder in which each sweep has a folder.
      get_config: A function from the name of a file in configs/ and a variant to a
        config.
      trains: Whether missing runs are trained. If not, a call that would have to train
        raises UntrainedError.
    """
    self._folder = workdir_path(folder)
    self._get_config, self._trains = get_config, trains
    self.asked: list[str] = []

  def __call__(
    self,
    name: str,
    config: str,
    fields: Mapping[str, object],
    points: Sequence[sweeps.Point] = ({'seed': 0},),
    part: Part | None = None,
  ) -> list[sweeps.Row]:
    """Trains a sweep, unless it is finished, and returns its rows.

    Several seeds, learning rates or initial scales are trained in one program. A single
    point saves checkpoints during training.

    Args:
      name: The beginning of the name of the sweep's folder. A digest of the config
        follows.
      config: The name of a file in configs/ or of a registered model. A variant may
        follow after a colon.
      fields: Fields to set for all points, such as `task.noise_std`.
      points: The points of the sweep, by default a single one with the seed 0.
      part: The part of the points to train; None trains all.

    Returns:
      A row for each point, with its fields, its summary and its `workdir`.

    Raises:
      Stopped: After SIGTERM.
      UntrainedError: If runs are missing, and the trainer must not train.
      UserError: If the config, a field or a point is invalid.
      RunError: If a point is not finite, or if the folder cannot be written.
      KeyboardInterrupt: After Ctrl-C.
    """  # noqa: DOC501
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
      raise UntrainedError from error  # The report then has no numbers of it.
    if rows is None:
      raise Stopped
    return rows

  def config(self, config: str, fields: Mapping[str, object] | None = None) -> Run:
    """Returns the config of a name with fields set, as a call would train it.

    Args:
      config: The name of a file in configs/ or of a registered model. A variant may
        follow after a colon.
      fields: Fields to set, such as `task.noise_std`.

    Raises:
      UserError: If the name or a field is unknown, or if a value is invalid.
    """
    file, _, variant = config.partition(':')
    return sweeps.at_point(self._get_config(file, variant), fields or {})


def best(rows: Sequence[sweeps.Row]) -> sweeps.Row:
  """Returns the row with the lowest loss on held-out prompts.

  Args:
    rows: Rows of a sweep, as a `Trainer` returns them. Rows without this loss are left
      out, unless no row has it.

  Returns:
    The row with the lowest `eval_risk`.

  Example:
    >>> studies.best([{'seed': 0, 'eval_risk': 2.0}, {'seed': 1, 'eval_risk': 1.5}])
    {'seed': 1, 'eval_risk': 1.5}
  """
  known = [row for row in rows if row['eval_risk'] is not None]
  return min(known or rows, key=lambda row: row['eval_risk'] or 0.0)


def history(row: sweeps.Row, field: str = 'eval_risk') -> tuple[list[int], list[float]]:
  r"""Returns the logged steps of a run that have a field, and its values there.

  Args:
    row: The row of the run, as a `Trainer` returns it.
    field: A number in the lines of `metrics.jsonl`, such as `loss` or `exact_risk`.

  Returns:
    The steps, and the value at each of them.

  Raises:
    UserError: If the log cannot be read.

  Example:
    >>> import pathlib
    >>> line = '{"step": 10, "wall_time": 1.5, "eval_risk": 0.5}\n'
    >>> _ = pathlib.Path('metrics.jsonl').write_text(line)
    >>> studies.history({'workdir': pathlib.Path()})
    ([10], [0.5])
  """
  steps, values, _ = logged(read_lines(row['workdir']), field)
  return steps, values


def histories(
  rows: Sequence[sweeps.Row], field: str = 'eval_risk'
) -> tuple[list[int], list[list[float]]]:
  r"""Returns the logged values of several runs, which log at the same steps.

  Args:
    rows: The rows of the runs, as a `Trainer` returns them. There must be at least one.
    field: A number in the lines of `metrics.jsonl`, such as `loss` or `exact_risk`.

  Returns:
    The steps of the first run, and a list of values for each run.

  Raises:
    UserError: If a log cannot be read.

  Example:
    >>> import pathlib
    >>> line = '{"step": 10, "wall_time": 1.5, "eval_risk": 0.5}\n'
    >>> _ = pathlib.Path('metrics.jsonl').write_text(line)
    >>> studies.histories([{'workdir': pathlib.Path()}] * 2)
    ([10], [[0.5], [0.5]])
  """
  curves = [history(row, field) for row in rows]
  return curves[0][0], [values for _, values in curves]


def load(row: sweeps.Row, step: int | None = None) -> Any:
  """Returns the trained model of a run.

  Args:
    row: The row of the run, as a `Trainer` returns it.
    step: The step to open; None opens the newest one.

  Returns:
    The model, with the weights of the step.

  Raises:
    UserError: If the run has no checkpoint or not this step.
    RunError: If the checkpoint is damaged.

  Example:
    >>> config = {
    ...   'model': {'name': 'yq_lsa'},
    ...   'task': {'name': 'linear_regression', 'num_features': 2, 'context_length': 4},
    ... }
    >>> model = zoo.create_model('yq_lsa', num_features=2, rngs=nnx.Rngs(0))
    >>> zoo.save(model, 'models/a', config)
    >>> type(studies.load({'workdir': 'models/a'})).__name__
    'YqLSA'
  """
  return zoo.load(row['workdir'], step).model


def facts() -> dict[str, dict[str, str]]:
  """Returns the versions and the machine that the numbers of a report depend on."""
  device = jax.devices()[0]
  machine = {
    'system': f'{platform.system()} {platform.machine()}',
    'CPU cores': str(os.cpu_count()),
    'devices': f'{jax.device_count()} × {device.device_kind}',
  }
  return {
    'Versions': {name: number or 'source tree' for name, number in versions().items()},
    'Machine': machine,
  }


def sections_of(tables: Mapping[str, Mapping[str, str]]) -> list[reports.Section]:
  """Returns a section of a report for each table of facts, by its heading."""
  return [
    reports.Section(heading, tables=[reports.Table([*table.items()])])
    for heading, table in tables.items()
  ]
