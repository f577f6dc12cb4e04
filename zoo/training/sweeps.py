"""Sweeps: many points of a config trained at once, and one table of what came out."""

from __future__ import annotations

import copy
import csv
import hashlib
import io
import itertools
import json
import pathlib
import re
import shutil
import signal
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from absl import logging
from flax import nnx

from zoo import theory
from zoo.checkpoints.checkpointer import Checkpoints
from zoo.checkpoints.metadata import run_metadata
from zoo.config import (
  Config,
  build_model,
  build_task,
  num_heads,
  to_json,
  validate,
)
from zoo.config import flat as flat_fields
from zoo.errors import RunError, UserError, unknown_name
from zoo.files import write_atomically
from zoo.interruption import Interruption
from zoo.mesh import make_mesh
from zoo.models import LinearAttention
from zoo.training.loop import run, train
from zoo.training.step import abstract_state
from zoo.training.summary import SUMMARY, read_summary, write_summary
from zoo.workdir import claim, locked

# In these fields the points of one program may differ: they are numbers in its arrays.
# Fewer heads than the most are filled up with zeros, of which none ever moves: the
# gradient of a head whose matrices are all zero is zero.
STACKED = (
  'task.prior_mean',
  'task.noise_std',
  'model.initial_guess',
  'model.initial_bias',
  'model.num_heads',
)
# With the exact objective no prompts are drawn to train on, whose shapes and bits
# depend on these.
STACKED_IF_EXACT = (
  *STACKED,
  'seed',
  'task.context_length',
  'task.prior_covariance',
  'task.feature_covariance',
)

Point = dict[str, Any]


def sweep(
  config: Config, points: Sequence[Point], workdir: str | pathlib.Path
) -> list[dict[str, Any]] | None:
  """Trains the config at each point, or goes on with what the workdir holds.

  A point maps fields of the config, such as 'task.prior_mean', to their values. Points
  that differ in the fields `STACKED` alone, or `STACKED_IF_EXACT` with the exact
  objective, are trained side by side in one program, on the same prompts. Each has its
  own folder, that of an ordinary run.

  Returns a row a point: its fields, `workdir`, and its summary; they are also in
  `table.csv` and `table.json`. After SIGTERM it returns None, after Ctrl-C it raises
  KeyboardInterrupt; the same call goes on. Raises UserError, before anything is
  written, when the config, a point or the workdir is wrong; RunError when the training
  of a point ceased to be finite, with all others done, or when the disk is full.
  """
  if jax.process_count() > 1:
    raise UserError(
      f'a sweep is trained by one process, and this is one of {jax.process_count()}; '
      'train a point by itself, with launch.main'
    )
  configs = [at_point(config, point) for point in points]
  workdir = pathlib.Path(workdir).expanduser()
  folders = [workdir / 'points' / _name(point) for point in points]
  _check_points(points, folders)
  claim(workdir, config)
  try:
    with locked(workdir):
      for config, folder in zip(configs, folders, strict=True):
        claim(folder, config)
      if not _train_missing(configs, folders, workdir):
        return None
      return _table(points, folders, workdir)
  except OSError as error:
    raise RunError(f'{workdir} could not be written: {error}') from error


def grid(axes: Mapping[str, Sequence[Any]]) -> list[Point]:
  """All combinations of the values of some fields; the last field varies fastest."""
  return [
    dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())
  ]


def at_point(config: Config, point: Point) -> Config:
  """The config with the fields of a point set, and checked; raises UserError."""
  config = copy.deepcopy(config)
  known = flat_fields(config.to_dict())
  for field, value in point.items():
    if field not in known:
      raise unknown_name('field of the config', field, known)
    section, _, leaf = field.rpartition('.')
    try:
      (config[section] if section else config)[leaf] = value
    except TypeError as error:
      raise UserError(f'config.{field} cannot be {value!r}: {error}') from None
  validate(config)
  return config


def format_table(rows: Sequence[dict[str, Any]], fields: Sequence[str]) -> str:
  """The rows for a terminal: the points' fields, and their risks."""
  columns = [*fields, 'sampled risk', '± s.e.', 'exact risk', 'excess']
  shown = ('eval_risk', '.4f'), ('eval_risk_stderr', '.4f')
  shown += ('exact_risk', '.6f'), ('excess_risk', '.2e')
  lines = [columns] + [
    [str(row.get(field)) for field in fields]
    + ['-' if row[name] is None else format(row[name], form) for name, form in shown]
    for row in rows
  ]
  widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
  return '\n'.join(
    '  '.join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
    for line in lines
  )


def _check_points(points: Sequence[Point], folders: Sequence[pathlib.Path]) -> None:
  if not points:
    raise UserError('there is no point to train; at least one is needed')
  for i, folder in enumerate(folders):
    if folder in folders[:i]:
      raise UserError(f'the point {points[i]} is there twice')


def _train_missing(
  configs: Sequence[Config], folders: Sequence[pathlib.Path], workdir: pathlib.Path
) -> bool:
  """Trains the points that have no summary yet; False if it was told to stop."""
  groups: dict[str, list[int]] = {}
  for i, folder in enumerate(folders):
    if read_summary(folder / SUMMARY) is None:
      groups.setdefault(_program(configs[i]), []).append(i)
  lost = []
  for count, members in enumerate(groups.values(), start=1):
    label = f'{count}/{len(groups)}'
    group = [configs[i] for i in members], [folders[i] for i in members]
    if len(members) == 1 or not _can_be_stacked(configs[members[0]]):
      logging.info('program %s: %s', label, ', '.join(f.name for f in group[1]))
      if any(train(*pair) is None for pair in zip(*group, strict=True)):
        return False
      continue
    unfinished = _train_group(*group, workdir, label)
    if unfinished is None:
      return False
    lost += unfinished
  if lost:
    raise RunError(
      f'{len(lost)} of {len(folders)} points ceased to be finite, all others are done: '
      f'{", ".join(folder.name for folder in lost)}'
    )
  return True


def _train_group(
  configs: Sequence[Config],
  folders: Sequence[pathlib.Path],
  workdir: pathlib.Path,
  label: str,
) -> list[pathlib.Path] | None:
  """Trains points in one program; returns those that were lost, None to stop."""
  texts = [to_json(config) for config in configs]
  digest = hashlib.sha256('\n'.join(texts).encode()).hexdigest()[:16]
  folder = workdir / 'unfinished' / digest
  folder.mkdir(parents=True, exist_ok=True)
  note = {**run_metadata(configs[0]), 'points': [folder.name for folder in folders]}
  with Interruption() as interruption:
    with Checkpoints(folder, 1, note) as checkpoints:
      ended = run(configs, folders, checkpoints, interruption, label)
    if ended is None:
      return None
    state = jax.device_get(ended.state)
    lost = []
    abstract: dict[int, Any] = {}
    for i, (config, summary) in enumerate(zip(configs, ended.summaries, strict=True)):
      if summary is None:
        lost.append(folders[i])
        continue
      heads = num_heads(config)
      if heads not in abstract:
        abstract[heads] = abstract_state(config, make_mesh(config))[1]
      _save(config, folders[i], abstract[heads], state, i)
      write_summary(folders[i], summary)
  shutil.rmtree(folder)
  if interruption.requested == signal.SIGINT:
    raise KeyboardInterrupt
  return None if interruption.requested else lost


def _save(
  config: Config, folder: pathlib.Path, abstract: Any, stacked: Any, i: int
) -> None:
  """Saves one point as the last checkpoint of its run, without the heads added."""

  def cut(leaf: jax.ShapeDtypeStruct, whole: np.ndarray) -> jax.Array:
    return jax.device_put(whole[(i, *map(slice, leaf.shape))], leaf.sharding)

  with Checkpoints(folder, config.checkpoint.keep, run_metadata(config)) as checkpoints:
    checkpoints.save(config.train.num_steps, jax.tree.map(cut, abstract, stacked))


def _program(config: Config) -> str:
  """What points must have in common to be trained in one program."""
  fields = flat_fields(json.loads(to_json(config)))
  exact = config.objective.name == 'exact'
  free = STACKED_IF_EXACT if exact else STACKED
  common = {name: value for name, value in fields.items() if name not in free}
  if not exact:  # noise is drawn or it is not, whatever its size
    common['noisy'] = fields.get('task.noise_std', 0) > 0
  return json.dumps(common)


def _can_be_stacked(config: Config) -> bool:
  if config.mesh.fsdp:  # one model alone fills the devices
    return False
  model = nnx.eval_shape(lambda: build_model(config, nnx.Rngs(0)))
  return isinstance(model, LinearAttention) and theory.covers(build_task(config))


def _table(
  points: Sequence[Point], folders: Sequence[pathlib.Path], workdir: pathlib.Path
) -> list[dict[str, Any]]:
  rows = [
    {**point, 'workdir': folder, **(read_summary(folder / SUMMARY) or {})}
    for point, folder in zip(points, folders, strict=True)
  ]
  if jax.process_index() == 0:
    plain = [
      {**row, 'workdir': str(row['workdir'].relative_to(workdir))} for row in rows
    ]
    write_atomically(workdir / 'table.json', json.dumps(plain, indent=2) + '\n')
    text = io.StringIO()
    names = dict.fromkeys(name for row in plain for name in row)
    writer = csv.DictWriter(text, names, lineterminator='\n')
    writer.writeheader()
    writer.writerows(plain)
    write_atomically(workdir / 'table.csv', text.getvalue())
  return rows


def _name(point: Point) -> str:
  """A folder name: the fields and values, or their digest where they are unwieldy."""
  name = ','.join(f'{field}={json.dumps(value)}' for field, value in point.items())
  name = name.replace('"', '')
  if re.fullmatch(r'[\w.,=+-]{1,100}', name):
    return name
  return hashlib.sha256(name.encode()).hexdigest()[:16]
