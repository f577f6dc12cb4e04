"""Trains the models of the figures, with as few compiled programs as possible."""

from __future__ import annotations

import copy
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from tqdm import tqdm

from zoo import training
from zoo.config.validation import Config
from zoo.host.parts import Part
from zoo.training.records import read_lines
from zoo.training.sweeps import at_point, sweep

GetConfig = Callable[[str, str], Config]  # from the name of a config and its variant
Field = int | float | tuple  # the value of a config's field in a point
Row = dict[str, Any]  # one run of a sweep: its fields, summary and workdir


class Study(NamedTuple):
  """Runs that differ only in the fields of their points: one sweep."""

  config: str
  variant: str  # of the config; '' trains to convergence
  evaluations: int = 1  # how often the risk is sampled during training
  eval_batches: int = 4
  checkpoints: int = 1  # number of checkpoints, spread evenly to the end of training


class Point(NamedTuple):
  """A model that is trained once for every seed."""

  study: Study
  fields: tuple[tuple[str, Field], ...]


class Runs:
  """Finished runs by point, and the objective they were trained on."""

  def __init__(self, rows: dict[Point, list[Row]], objective: str = 'sampled'):
    self._rows = rows
    self.objective = objective

  def __getitem__(self, point: Point) -> list[Row]:
    """The runs of a point, one for each seed."""
    return self._rows[point]

  def final(self, point: Point, field: str = 'exact_risk') -> list[float]:
    """A field of the summary, for each seed."""
    return [row[field] for row in self[point]]

  def history(
    self, point: Point, field: str = 'exact_risk'
  ) -> tuple[list[int], list[list[float]]]:
    """The logged steps that have a field, and its values there for each seed."""
    seeds = [
      {
        line['step']: line[field]
        for line in read_lines(row['workdir'] / 'metrics.jsonl')
        if line[field] is not None
      }
      for row in self[point]
    ]
    return list(seeds[0]), [list(seed.values()) for seed in seeds]


def point(study: Study, **fields: Field) -> Point:
  """A point with fields given as `section__name=value`."""
  named = {field.replace('__', '.'): value for field, value in fields.items()}
  return Point(study, tuple(sorted(named.items())))


def train_all(
  points: Iterable[Point],
  num_seeds: int,
  objective: str,
  get_config: GetConfig,
  workdir: pathlib.Path,
  bar: tqdm,
  part: Part | None = None,
) -> Runs | None:
  """Trains every point once for each seed, unless it is finished in `workdir`.

  With a part, it trains only that part of the runs, and returns no runs.

  `bar` shows what is running, and advances by one for each run. After SIGTERM
  everything is saved and the result is None. Raises the errors of `zoo.training.sweep`.
  """
  studies: dict[Study, list[Point]] = {}
  for one in dict.fromkeys(points):
    studies.setdefault(one.study, []).append(one)
  configs = {s: configure(s, objective, get_config) for s in studies}
  seeds = range(num_seeds)
  rows: dict[Point, list[Row]] = {}
  for study, members in studies.items():
    bar.set_description(f'{study.config}:{study.variant}'.rstrip(':'))
    changes = [{**dict(one.fields), 'seed': seed} for one in members for seed in seeds]
    train = sweep if study.checkpoints == 1 else _one_by_one
    found = train(configs[study], changes, workdir / _folder(study), part)
    if found is None:
      return None
    bar.update(len(found))
    if part is None:
      for start, one in enumerate(members):
        rows[one] = found[start * num_seeds : (start + 1) * num_seeds]
  return Runs(rows, objective)


def configure(study: Study, objective: str, get_config: GetConfig) -> Config:
  """The config that all runs of a study share."""
  config = copy.deepcopy(get_config(study.config, study.variant))
  num_steps = config.train.num_steps
  with config.unlocked():
    config.objective.name = objective
    config.eval.every = -(-num_steps // study.evaluations)
    # With the exact objective, only studies that plot sampled risks sample them.
    sampled = objective == 'sampled' or study.evaluations > 1
    config.eval.num_batches = study.eval_batches if sampled else 0
    if study.checkpoints > 1 or objective == 'exact':  # exact steps take no time
      config.checkpoint.every = -(-num_steps // study.checkpoints)
    config.checkpoint.keep = study.checkpoints
  return config


def _one_by_one(
  config: Config,
  changes: Sequence[Mapping[str, Field]],
  workdir: pathlib.Path,
  part: Part | None,
) -> list[Row] | None:
  """Trains as a sweep does, but in separate runs, which save checkpoints on the way."""
  rows: list[Row] = []
  for fields in changes if part is None else part.of(changes):
    name = ','.join(f'{field}={value}' for field, value in fields.items())
    summary = training.train(at_point(config, fields), workdir / name)
    if summary is None:
      return None
    rows.append({**fields, **summary, 'workdir': workdir / name})
  return rows


def _folder(study: Study) -> str:
  """A separate folder name for each study."""
  counts = study.evaluations, study.eval_batches, study.checkpoints
  variant = study.variant or 'default'
  return '-'.join([study.config, variant, *map(str, counts)])
