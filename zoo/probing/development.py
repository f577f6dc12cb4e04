"""Instruments over training: what they read at the kept steps of several seeds."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from zoo.core.errors import RunError, UserError, check_count
from zoo.host.files import workdir_path, write_atomically
from zoo.host.progress import progress_bar
from zoo.measure.intervals import Estimate, Interval, estimate
from zoo.measure.table import Rows, WithRows
from zoo.probing.validate import Instrument, Reading, read
from zoo.storage.loading import identity_of, load, steps_of


class StepReading(NamedTuple):
  """What an instrument reads at one step of one run.

  It is a row of `OverTraining.readings`.

  Attributes:
    run: The folder of the run.
    step: The step.
    name: The name of the reading; empty if the instrument returns a single one.
    value: The reading, with its standard error over prompts. That of a number, or of a
      share with an `Interval`, is NaN. None if there is no reading.
    reason: Why there is none: the message of a UserError.
  """

  run: str
  step: int
  name: str
  value: Estimate | None
  reason: str


class StepMean(NamedTuple):
  """The mean of a reading over runs, at one step. It is a row of `OverTraining`.

  Attributes:
    step: The step.
    name: The name of the reading.
    value: The mean over runs, with its interval over runs by Student's t. With a single
      run its interval is unknown. None if some run has no reading.
    num_runs: The number of runs with a reading.
  """

  step: int
  name: str
  value: Estimate | None
  num_runs: int


@dataclasses.dataclass(frozen=True)
class OverTraining(WithRows):
  """What an instrument reads over training. `over_training` returns it.

  It prints as a table of means over runs. `zoo.reports.probe.over_training` draws it.

  Attributes:
    rows: The mean over runs by step.
    readings: Each reading.
  """

  rows: Rows[StepMean]
  readings: Rows[StepReading]


def over_training(
  runs: Sequence[str | os.PathLike[str]],
  instrument: Instrument,
  steps: Sequence[int] | None = None,
  file: str | os.PathLike[str] | None = None,
) -> OverTraining:
  """Reads an instrument at the kept steps of several runs, such as seeds.

  A run keeps steps for this with `checkpoint.steps='log'`. The interval of a mean is
  over the runs alone: prompts, which all runs share, are inside of each reading. The
  null is that of the instrument.

  Args:
    runs: The folders of runs or of points of a sweep, which differ by their seed.
    instrument: A function of a model, a task and a seed, as for `check_instrument`. The
      seed is 0 at every step, so that all models see the same prompts.
    steps: The steps to read. None means all that every run has kept.
    file: A file in which readings are kept as they are made. If it exists, what it has
      for the same weights is not read again, so that an interrupted call goes on. It
      belongs to one instrument, by the name of its function. None keeps nothing.

  Returns:
    The readings, and their means over runs.

  Raises:
    UserError: If the runs have no steps in common, or lack a step that is asked for, or
      if the file has readings of another instrument.
    RunError: If the file is damaged.

  Example:
    >>> config = zoo.default_config('yq_lsa')
    >>> config.train.num_steps, config.checkpoint.steps = 4, 'log'
    >>> for config.seed in 0, 1:
    ...   _ = zoo.train(config, f'runs/{config.seed}')
    >>> def loss(model, task, seed):
    ...   return zoo.curve(model, task, 64, lengths=[5], seed=seed).mean[0]
    >>> print(zoo.probing.over_training(['runs/0', 'runs/1'], loss))
    step           value  num_runs
    1     11.509 ± 1.093         2
    2     11.495 ± 1.011         2
    3     11.487 ± 1.039         2
    4     11.485 ± 1.030         2
  """
  if isinstance(runs, str | os.PathLike) or not runs:
    raise UserError(f'runs is {runs!r}; it must be a list of one or more folders')
  folders = [os.fspath(run) for run in runs]
  wanted = _common_steps(folders, steps)
  path = None if file is None else workdir_path(file)
  of = getattr(instrument, '__qualname__', type(instrument).__qualname__)
  known = {} if path is None else _kept(path, of)
  readings = Rows[StepReading]()
  bar = progress_bar('over training', len(folders) * len(wanted), 'model', delay=5.0)
  with bar:
    for step in wanted:
      for folder in folders:
        _, digest = identity_of(folder, step)
        key = f'{digest} {step}'
        if key not in known:
          known[key] = _read(folder, step, instrument)
          if path is not None:
            _keep(path, of, known)
        readings += [
          StepReading(folder, step, name, value, reason)
          for name, (value, reason) in known[key].items()
        ]
        bar.update()
  return OverTraining(_means(readings), readings)


# What an instrument reads of a model, by the name of the reading: a value, or None and
# the reason for that.
_Readings = dict[str, tuple[Estimate | None, str]]


def _common_steps(folders: Sequence[str], steps: Sequence[int] | None) -> list[int]:
  """Returns the steps to read, which every run has kept."""
  kept = {folder: steps_of(folder) for folder in folders}
  common = sorted(set.intersection(*map(set, kept.values())))
  if steps is None:
    if not common:
      raise UserError(
        f'the runs {", ".join(folders)} have kept no step in common; train them with '
        "checkpoint.steps='log', which keeps steps 1, 2, 4, …"
      )
    return common
  wanted = [check_count('steps', step, minimum=0) for step in steps]
  for folder in folders:
    if missing := [step for step in wanted if step not in kept[folder]]:
      raise UserError(
        f'{folder} has not kept step {missing[0]}; it has {kept[folder] or "no step"}'
      )
  return wanted


def _read(folder: str, step: int, instrument: Instrument) -> _Readings:
  saved = load(folder, step)
  values, reason = read(instrument, saved.model, saved.task, 0)
  if reason:
    return {'': (None, reason)}
  return {name: (_as_estimate(value), '') for name, value in values.items()}


def _as_estimate(value: Reading) -> Estimate | None:
  if value is None or isinstance(value, Estimate):
    return value
  # The error of a number, or of an interval that is not that of a mean, is not known.
  return Estimate(value.mean if isinstance(value, Interval) else value, math.nan)


def _means(readings: Sequence[StepReading]) -> Rows[StepMean]:
  """Returns the means over runs, by step and name.

  A run that an instrument refuses has one reading without a name. It lacks all names.
  """
  num_runs = len({row.run for row in readings})
  # Without any reading the instrument has no names, and one row says so at each step.
  names = dict.fromkeys(row.name for row in readings if row.value is not None) or ['']
  rows = Rows[StepMean]()
  for step in dict.fromkeys(row.step for row in readings):
    for name in names:
      means = [
        row.value.mean
        for row in readings
        if (row.step, row.name) == (step, name) and row.value is not None
      ]
      value = estimate(means) if len(means) == num_runs else None
      rows.append(StepMean(step, name, value, len(means)))
  return rows


def _kept(path: pathlib.Path, instrument: str) -> dict[str, _Readings]:
  """Returns the readings of a file, by weights and step; none if there is no file."""
  if not path.exists():
    return {}
  try:
    content = json.loads(path.read_text())
    of, content = content['instrument'], content['readings']
    kept = {
      key: {
        name: (None if value is None else Estimate(*value), reason)
        for name, (value, reason) in readings.items()
      }
      for key, readings in content.items()
    }
  except (ValueError, TypeError, KeyError, AttributeError) as error:
    raise RunError(
      f'{path} does not have readings of over_training; give another file'
    ) from error
  if of != instrument:
    raise UserError(
      f'{path} has readings of {of}, not of {instrument}; give another file'
    )
  return kept


def _keep(path: pathlib.Path, instrument: str, known: Mapping[str, _Readings]) -> None:
  readings_of = {
    key: {
      name: (value and [value.mean, value.stderr, value.num], reason)
      for name, (value, reason) in readings.items()
    }
    for key, readings in known.items()
  }
  path.parent.mkdir(parents=True, exist_ok=True)
  content = {'instrument': instrument, 'readings': readings_of}
  write_atomically(path, json.dumps(content, indent=1))
