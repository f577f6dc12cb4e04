"""The table of a sweep: a row for each point, and means over seeds."""

import collections
import itertools
import json
import math
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_type_hints

from zoo.config.validation import Config
from zoo.core import tables
from zoo.core.errors import RunError
from zoo.host.files import write_atomically
from zoo.measure.comparison import MODEL
from zoo.measure.intervals import interval
from zoo.training.summary import (
  SUMMARY,
  Divergence,
  Summary,
  finished_summary,
  is_lost,
  kind_of_risk,
  read_divergence,
)
from zoo.training.sweeps.points import Point

# A point, the folder of its run, and its summary.
Row = dict[str, Any]
# What is alike in the points of an arm, by field.
_Arm = tuple[str, ...]


def rows_of(
  points: Sequence[Point],
  configs: Sequence[Config],
  folders: Sequence[pathlib.Path],
) -> tuple[list[Row], dict[str, Divergence]]:
  """The rows of the points, and why some are lost, by the name of the point.

  A row of a lost point has None for each number. Raises RunError if a point has neither
  a summary nor a record of a divergence.
  """
  rows: list[Row] = []
  lost: dict[str, Divergence] = {}
  for point, config, folder in zip(points, configs, folders, strict=True):
    summary = finished_summary(folder, config)
    divergence = read_divergence(folder, config) if summary is None else None
    if divergence is not None:
      lost[folder.name] = divergence
    elif summary is None:
      raise RunError(
        f'{folder} was trained, but its {SUMMARY} cannot be read, so that no table is '
        'written; rerun the same command'
      )
    always = [name for name in get_type_hints(Summary) if name != 'metrics']
    numbers = summary or dict.fromkeys(always)
    rows.append({**point, 'workdir': folder, **numbers})
  return rows, lost


def write_table(rows: Sequence[Row], workdir: pathlib.Path) -> None:
  plain = [{**row, 'workdir': str(row['workdir'].relative_to(workdir))} for row in rows]
  write_atomically(workdir / 'table.json', json.dumps(plain, indent=2) + '\n')
  flat = [_flat(row) for row in plain]
  names = dict.fromkeys(name for row in flat for name in row)
  write_atomically(workdir / 'table.csv', tables.to_csv(names, flat))


def _flat(row: Row) -> Row:
  """A row of numbers, with the loss of each baseline at the query for a comparison."""
  row = dict(row)
  row |= row.pop('metrics', None) or {}
  for name, measured in (row.pop('comparison', None) or {}).items():
    if name != MODEL:
      row[f'{name}_loss'] = measured['mean'][-1]
      row[f'{name}_difference'] = measured['difference']
      row[f'{name}_difference_stderr'] = measured['difference_stderr']
  return row


def format_table(rows: Sequence[Row], fields: Sequence[str]) -> str:
  """The rows as a table for a terminal: the fields of the points, and their risks.

  Points that have become non-finite are marked. With several seeds a second table has
  the mean over them and its 95 % interval, Student's t. Of points on one task it also
  has the difference to the best of them, paired by seed.
  """
  names = ('eval_risk', '.4f'), ('eval_risk_stderr', '.4f')
  names += ('exact_risk', '.6f'), ('excess_risk', '.2e')
  cells = []
  for row in rows:
    numbers = [_number(row[name], form) for name, form in names]
    if is_lost(row):
      numbers[0] = 'diverged'
    cells.append([*(str(row.get(field)) for field in fields), *numbers])
  header = [*fields, 'sampled risk', '± s.e.', 'exact risk', 'excess']
  return '\n\n'.join([tables.format_table(cells, header), *_means(rows, fields)])


def _means(rows: Sequence[Row], fields: Sequence[str]) -> Iterator[str]:
  """A table of the mean risks over seeds, if a point has several."""
  kind, others = kind_of_risk(rows), [name for name in fields if name != 'seed']
  arms: dict[_Arm, dict[object, float]] = {}  # their risks by seed
  lost: collections.Counter[_Arm] = collections.Counter()
  for row in rows:
    arm = tuple(str(row.get(name)) for name in others)
    risks = arms.setdefault(arm, {})
    lost[arm] += is_lost(row)
    if row[kind] is not None:
      risks[row.get('seed')] = row[kind]
  if 'seed' not in fields or all(len(risks) <= 1 for risks in arms.values()):
    return
  best = _best_arms(arms, [_sets_prompts(name, kind) for name in others])
  form = '.6f' if kind == 'exact_risk' else '.4f'
  cells = []
  for arm, risks in arms.items():
    number = f'{len(risks)} ({lost[arm]} diverged)' if lost[arm] else str(len(risks))
    cells.append([*arm, number, *_mean_and_half(risks, form)])
    if best:
      shared = [seed for seed in risks if seed in arms[best[arm]]]
      gaps = {seed: risks[seed] - arms[best[arm]][seed] for seed in shared}
      is_best = best[arm] == arm
      cells[-1] += ['best', ''] if is_best else _mean_and_half(gaps, f'+{form}')
  what = 'mean exact risk' if kind == 'exact_risk' else 'mean sampled risk'
  half = '± 95 % interval'
  header = [*others, 'seeds', what, half]
  if best:
    header += ['minus the best, paired', half]
  yield tables.format_table(cells, header)
  if kind == 'eval_risk':
    yield (
      'Intervals are over seeds. All seeds are measured on the same held-out prompts, '
      'whose error, ± s.e., is not in them.'
    )


def _sets_prompts(field: str, kind: str) -> bool:
  """Whether points that differ in a field are measured on other prompts or tasks."""
  sampled = field.startswith('eval.') or field == 'train.batch_size'
  return field.startswith('task.') or (sampled and kind == 'eval_risk')


def _best_arms(
  arms: Mapping[_Arm, Mapping[object, float]], sets_prompts: Sequence[bool]
) -> dict[_Arm, _Arm]:
  """For each arm the best of those on the same prompts, of those with the most seeds.

  Empty if no two arms are on the same prompts.
  """
  alike: dict[_Arm, list[_Arm]] = {}
  for arm in arms:
    alike.setdefault((*itertools.compress(arm, sets_prompts),), []).append(arm)
  if all(len(members) == 1 for members in alike.values()):
    return {}

  def rank(arm: _Arm) -> tuple[int, float]:
    risks = [*arms[arm].values()]
    return -len(risks), interval(risks).mean if risks else math.inf

  return {
    arm: best
    for members in alike.values()
    for best in [min(members, key=rank)]
    for arm in members
  }


def _mean_and_half(risks: Mapping[object, float], form: str) -> list[str]:
  """The mean over seeds, and half its 95 % interval."""
  if not risks:
    return ['-', '-']
  estimate = interval([*risks.values()])
  return [_number(estimate.mean, form), _number(estimate.half, form.lstrip('+'))]


def _number(value: float | None, form: str) -> str:
  """A number in a format; a dash if it is unknown or infinite."""
  return '-' if value is None or not math.isfinite(value) else format(value, form)
