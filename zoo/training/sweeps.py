"""Sweeps: training a config at many points, with one table of the results."""

from __future__ import annotations

import copy
import csv
import functools
import hashlib
import io
import itertools
import json
import pathlib
import re
import shutil
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
from absl import logging
from flax.traverse_util import flatten_dict

from zoo.config.validation import (
  Config,
  minutes_of_patience,
  validate,
  validate_fields,
)
from zoo.core import tables
from zoo.core.errors import RunError, UserError, check_count, check_name
from zoo.host.files import write_atomically
from zoo.host.interruption import Interruption
from zoo.measure.comparison import MODEL
from zoo.storage.buckets import is_url
from zoo.storage.checkpointer import Checkpoints
from zoo.storage.metadata import run_metadata
from zoo.storage.workdir import POINTS, lock_of_part, locked, open_workdir, shared
from zoo.training.division import (
  Workers,
  divide,
  in_turn,
  lost_in,
  note_lost,
  one_at_a_time,
  programs_of,
  read_lost,
  shared_folder,
)
from zoo.training.layout import State
from zoo.training.loop import NotFiniteError, run, train_locked
from zoo.training.populations import make_population
from zoo.training.stacking import can_be_stacked, make_stacked_program, unstack
from zoo.training.summary import SUMMARY, Summary, finished_summary, write_summary
from zoo.training.unfinished import POINTS_FIELD, delete_finished, folder_of_program

# Fields of a config, such as 'task.prior_mean', and their values.
Point = Mapping[str, object]
# A point, the folder of its run, and its summary.
Row = dict[str, Any]


_PLAIN = {'seed', 'optimizer.learning_rate'}  # numbers that fit any model and task


class LostPointsError(NotFiniteError):
  """Points of a sweep have become non-finite; `rows` has all other points."""

  def __init__(self, message: str, rows: Sequence[Row] = ()):
    super().__init__(message)
    self.rows = rows


def sweep(
  config: Config,
  points: Sequence[Point],
  workdir: str | pathlib.Path,
  num_processes: int = 1,
) -> list[Row] | None:
  """Trains the config at each point, or resumes from the workdir.

  Points that differ only in certain fields are trained side by side in one program: for
  linear attention the fields `stacking.STACKED`, or `STACKED_IF_EXACT` with the exact
  objective, for other models `populations.POPULATION`, unless they change more of a
  model than its arrays. Other points are trained one after the other. Each point has
  its own folder, like an ordinary run.

  If `num_processes` processes, which share only the workdir, make the same call, they
  divide the points: each program is cut into as many parts, and each process trains
  parts that no other process holds until all are done. If a process is lost, the others
  train its parts. The parts stay as they are when another number of processes resumes.

  Returns a row for each point: its fields, `workdir`, and its summary; the rows are
  also in `table.csv` and `table.json`. After SIGTERM it returns None, and after Ctrl-C
  it raises KeyboardInterrupt; the same call resumes. Raises UserError, before anything
  is written, if the config, a point or the workdir is invalid; LostPointsError, after
  all other points are done, if a point has become non-finite; RunError if the disk is
  full. The workdir may be in a bucket, gs://bucket/sweeps/a.
  """
  check_count('num_processes', num_processes)
  if jax.process_count() > 1:
    raise UserError(
      f'the processes of a sweep must not be connected, and this is one of '
      f'{jax.process_count()} that are; give num_processes to each instead'
    )
  configs = _check_points(config, points)
  patience = 60 * minutes_of_patience(config)
  with shared_folder(workdir, num_processes, patience) as (local, workers):
    if not is_url(workdir):
      return _sweep(local, config, points, configs, workers)

    def in_bucket(rows: Sequence[Row]) -> list[Row]:
      url = str(workdir).rstrip('/')
      return [
        {**row, 'workdir': f'{url}/{row["workdir"].relative_to(local)}'} for row in rows
      ]

    try:
      rows = _sweep(local, config, points, configs, workers)
    except LostPointsError as error:
      error.rows = in_bucket(error.rows)
      raise
    return None if rows is None else in_bucket(rows)


def sweep_in(
  workdir: pathlib.Path, config: Config, points: Sequence[Point], workers: Workers
) -> list[Row] | None:
  """As `sweep`, in a local folder that these workers share."""
  configs = _check_points(config, points)
  return _sweep(workdir, config, points, configs, workers)


def _sweep(
  workdir: pathlib.Path,
  config: Config,
  points: Sequence[Point],
  configs: Sequence[Config],
  workers: Workers,
) -> list[Row] | None:
  folders = [workdir / POINTS / _name(point) for point in points]
  many = workers.number > 1
  open_workdir(workdir, config, 'sweep')
  try:
    with shared(workdir) if many else locked(workdir), Interruption() as interruption:
      with one_at_a_time(workdir, workers):
        # Again, since in a bucket another worker may have made it meanwhile.
        open_workdir(workdir, config, 'sweep')
        for one, folder in zip(configs, folders, strict=True):
          open_workdir(folder, one)
        parts = divide(configs, folders, workdir, workers.number)
      lost = _train_missing(configs, folders, workdir, parts, workers, interruption)
      if lost is None:
        return None
      with one_at_a_time(workdir, workers):
        rows = _write_table(points, configs, folders, workdir, lost)
        done = {row['workdir'].name for row in rows}
        delete_finished(workdir, done, alone=not many)
  except OSError as error:
    raise RunError(f'{workdir} could not be written: {error}') from error
  if lost:
    raise LostPointsError(
      f'{len(lost)} of {len(folders)} points stopped being finite, all others are '
      f'done: {", ".join(sorted(folder.name for folder in lost))}',
      rows,
    )
  return rows


def grid(axes: Mapping[str, Sequence[object]]) -> list[Point]:
  """All combinations of the values of some fields; the last field varies fastest."""
  return [
    dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())
  ]


def at_point(config: Config, point: Point) -> Config:
  """The validated config with the fields of a point; raises UserError."""
  config = _with_fields(config, point)
  validate(config)
  return config


def _with_fields(config: Config, point: Point) -> Config:
  config = copy.deepcopy(config)
  known = flatten_dict(config.to_dict(), sep='.')
  for field, value in point.items():
    check_name('field of the config', field, known)
    section, _, leaf = field.rpartition('.')
    try:
      (config[section] if section else config)[leaf] = value
    except TypeError as error:
      raise UserError(f'config.{field} cannot be {value!r}: {error}') from None
  return config


def format_table(rows: Sequence[Row], fields: Sequence[str]) -> str:
  """The rows as a table for a terminal: the fields of the points, and their risks."""
  shown = ('eval_risk', '.4f'), ('eval_risk_stderr', '.4f')
  shown += ('exact_risk', '.6f'), ('excess_risk', '.2e')
  cells = [
    [str(row.get(field)) for field in fields]
    + ['-' if row[name] is None else format(row[name], form) for name, form in shown]
    for row in rows
  ]
  header = [*fields, 'sampled risk', '± s.e.', 'exact risk', 'excess']
  return tables.format_table(cells, header)


def _check_points(config: Config, points: Sequence[Point]) -> list[Config]:
  """The validated config of each point; UserError if there is none, or one twice."""
  configs = [_with_fields(config, point) for point in points]
  validated: set[str] = set()
  for one, point in zip(configs, points, strict=True):
    # A whole validation builds the model, for which these two fields do not matter.
    others = {name: value for name, value in point.items() if name not in _PLAIN}
    text = json.dumps(others, default=repr)
    (validate_fields if text in validated else validate)(one)
    validated.add(text)
  if not points:
    raise UserError('there is no point to train; at least one is needed')
  names = [_name(point) for point in points]
  if len(set(names)) < len(names):
    twice = next(i for i, name in enumerate(names) if name in names[:i])
    raise UserError(f'the point {points[twice]} is given twice')
  return configs


def _train_missing(
  configs: Sequence[Config],
  folders: Sequence[pathlib.Path],
  workdir: pathlib.Path,
  parts: Mapping[int, Sequence[int]],
  workers: Workers,
  interruption: Interruption,
) -> set[pathlib.Path] | None:
  """Trains the points that have no summary yet; returns None if interrupted.

  It trains the parts that no other worker holds, and waits for the rest. Returns the
  folders of points that have become non-finite.
  """
  lost: set[pathlib.Path] = set()

  def missing(part: Sequence[int]) -> list[int]:
    return [
      i
      for i in part
      if folders[i] not in lost
      and finished_summary(folders[i] / SUMMARY, configs[i]) is None
    ]

  waiting = [number for number, part in parts.items() if missing(part)]
  notes = {number: read_lost(workdir, number) for number in waiting}
  num_seen = num_trained = 0
  for number in in_turn(
    waiting, functools.partial(lock_of_part, workdir), workers, interruption
  ):
    num_seen += 1
    if (note := read_lost(workdir, number)) != notes[number]:
      lost |= {workdir / POINTS / name for name in lost_in(note)}
    part = parts[number]
    if not (points := missing(part)):  # another process has trained them
      continue
    num_trained += 1
    label = f'{num_trained}/{len(waiting)}'
    failed = []
    for program in programs_of(part, points, configs, folders, workdir):
      group = [(configs[i], folders[i]) for i in program]
      unfinished = _train_group(group, workdir, label, interruption)
      if unfinished is None:
        return None
      failed += unfinished
    lost |= {*failed}
    if workers.number > 1:
      note_lost(workdir, number, failed)
  return lost if num_seen == len(waiting) else None


def _train_group(
  group: Sequence[tuple[Config, pathlib.Path]],
  workdir: pathlib.Path,
  label: str,
  interruption: Interruption,
) -> Sequence[pathlib.Path] | None:
  """Trains points of one program; returns those that failed, None if interrupted."""
  if len(group) > 1:
    return _train_stacked(group, workdir, label, interruption)
  logging.info('program %s: %s', label, group[0][1].name)
  return _train_alone(*group[0], interruption)


def _train_alone(
  config: Config, folder: pathlib.Path, interruption: Interruption
) -> list[pathlib.Path] | None:
  """Trains one point; returns it in a list if it failed, None if interrupted."""
  try:
    return None if train_locked(config, folder, interruption) is None else []
  except NotFiniteError:
    return [folder]


def _train_stacked(
  group: Sequence[tuple[Config, pathlib.Path]],
  workdir: pathlib.Path,
  label: str,
  interruption: Interruption,
) -> list[pathlib.Path] | None:
  """Trains points side by side; returns those that failed, None if interrupted."""
  configs, folders = zip(*group, strict=True)
  linear = can_be_stacked(configs[0])
  program = make_stacked_program(configs) if linear else make_population(configs)
  program.compile()  # so that nothing is written if it does not fit
  names = [folder.name for folder in folders]
  unfinished = folder_of_program(workdir, names)
  unfinished.mkdir(parents=True, exist_ok=True)
  note = {**run_metadata(configs[0]), POINTS_FIELD: names}
  label = f'{label}: {len(configs)} × {configs[0].model.name}'
  with Checkpoints(unfinished, 1, note) as checkpoints:
    # Writing all lines of all points for TensorBoard would take longer than training.
    try:
      result = run(
        program, folders, checkpoints, interruption, label, tensorboard=False
      )
    except NotFiniteError:
      return [*folders]
  if result is None:
    return None
  lost = []
  finals = unstack(configs, jax.device_get(result.state))
  for config, folder, summary, state in zip(
    configs, folders, result.summaries, finals, strict=True
  ):
    if interruption.requested is not None:  # the next launch writes the others
      interruption.raise_if_ctrl_c()
      return None
    if summary is None:
      lost.append(folder)
    elif finished_summary(folder / SUMMARY, config) is None:
      _write_point(config, folder, summary, state)
  shutil.rmtree(unfinished)
  interruption.raise_if_ctrl_c()
  return None if interruption.requested else lost


def _write_point(
  config: Config, folder: pathlib.Path, summary: Summary, state: State
) -> None:
  """Writes the checkpoint of a trained point, unless it is there, and its summary."""
  num_steps, note = config.train.num_steps, run_metadata(config)
  with Checkpoints(folder, config.checkpoint.keep, note) as checkpoints:
    if checkpoints.latest != num_steps:
      checkpoints.save(num_steps, state)
  write_summary(folder, summary)


def _write_table(
  points: Sequence[Point],
  configs: Sequence[Config],
  folders: Sequence[pathlib.Path],
  workdir: pathlib.Path,
  lost: Collection[pathlib.Path],
) -> list[Row]:
  """Writes the rows of the points that are not lost, and returns them.

  Raises RunError if one of them has no summary.
  """
  rows: list[Row] = []
  for point, config, folder in zip(points, configs, folders, strict=True):
    summary = finished_summary(folder / SUMMARY, config)
    if summary is not None:
      rows.append({**point, 'workdir': folder, **summary})
    elif folder not in lost:
      raise RunError(
        f'{folder} was trained, but its {SUMMARY} cannot be read, so that no table is '
        'written; rerun the same command'
      )
  plain = [{**row, 'workdir': str(row['workdir'].relative_to(workdir))} for row in rows]
  write_atomically(workdir / 'table.json', json.dumps(plain, indent=2) + '\n')
  flat = [_flat(row) for row in plain]
  text = io.StringIO()
  names = dict.fromkeys(name for row in flat for name in row)
  writer = csv.DictWriter(text, names, lineterminator='\n')
  writer.writeheader()
  writer.writerows(flat)
  write_atomically(workdir / 'table.csv', text.getvalue())
  return rows


def _flat(row: Row) -> Row:
  """A row of numbers, with the loss of each baseline at the query for a comparison."""
  row = dict(row)
  for name, one in (row.pop('comparison', None) or {}).items():
    if name != MODEL:
      row[f'{name}_loss'] = one['mean'][-1]
      row[f'{name}_difference'] = one['difference']
      row[f'{name}_difference_stderr'] = one['difference_stderr']
  return row


def _name(point: Point) -> str:
  """A folder name: the fields and values, or their digest if they are unwieldy."""
  name = ','.join(f'{field}={json.dumps(value)}' for field, value in point.items())
  name = name.replace('"', '')
  if re.fullmatch(r'[\w.,=+-]{1,100}', name):
    return name
  return hashlib.sha256(name.encode()).hexdigest()[:16]
