"""The table of a sweep: a row for each point, and means over seeds."""

import collections
import itertools
import json
import math
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_type_hints

from zoo.config.run import Run
from zoo.core import tables
from zoo.core.errors import RunError
from zoo.host.files import write_atomically
from zoo.measure.comparison import MODEL
from zoo.measure.intervals import estimate, half_of
from zoo.measure.table import name_of_half
from zoo.training.summary import (
  SUMMARY,
  Divergence,
  Summary,
  finished_summary,
  is_lost,
  kind_of_risk,
  read_divergence,
  with_one_loss,
)
from zoo.training.sweeps.points import Point

# A row has the fields of a point, the folder of its run, and its summary.
Row = dict[str, Any]
# Only some models have these entries of a summary.
_SOMETIMES = 'metrics', 'eval_nll', 'eval_nll_stderr'
# The points of an arm share the values, as text, of all fields but the seed.
_Arm = tuple[str, ...]


def rows_of(
  points: Sequence[Point],
  configs: Sequence[Run],
  folders: Sequence[pathlib.Path],
) -> tuple[list[Row], dict[str, Divergence]]:
  """Returns the rows of the points, and the records of lost points by name.

  The row of a lost point has None for each number.

  Raises:
    RunError: If a point has neither a summary nor a record of a divergence.
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
    always = [name for name in get_type_hints(Summary) if name not in _SOMETIMES]
    numbers = summary or dict.fromkeys(always)
    rows.append({**point, 'workdir': folder, **numbers})
  return rows, lost


def write_table(rows: Sequence[Row], workdir: pathlib.Path) -> None:
  """Writes `table.json` and `table.csv`, with folders relative to the workdir."""
  plain = [{**row, 'workdir': str(row['workdir'].relative_to(workdir))} for row in rows]
  write_atomically(workdir / 'table.json', json.dumps(plain, indent=2) + '\n')
  flat = [_flat(row) for row in plain]
  names = dict.fromkeys(name for row in flat for name in row)
  write_atomically(workdir / 'table.csv', tables.to_csv(names, flat))


def _flat(row: Row) -> Row:
  """Returns a row of numbers: of the comparison, each baseline's at the query.

  The history, which `table.json` has, is left out.
  """
  row = {name: value for name, value in row.items() if name != 'history'}
  row |= row.pop('metrics', {})
  for name, measured in (row.pop('comparison') or {}).items():
    row[f'{name}_loss'] = measured['mean'][-1]
    if name == MODEL:
      row[f'{name}_loss_stderr'] = measured['stderr'][-1]
    else:
      row[f'{name}_difference'] = measured['difference']
      row[f'{name}_difference_stderr'] = measured['difference_stderr']
      if 'nll' in measured:
        row[f'{name}_nll'] = measured['nll']
  return row


def format_table(rows: Sequence[Row], fields: Sequence[str]) -> str:
  """Returns the rows as a table for a terminal: the fields and the risks of each point.

  The sampled risk is the loss of the comparison with baselines, if all points have one.
  Each number of a registered metric has a column, too. Points that have become
  non-finite are marked. With several seeds a second table has
  the mean over them and its 95 % interval, by Student's t. If points share a task, the
  second table also has the difference to the best of them, paired by seed.

  Args:
    rows: The rows that `sweep` returns, or the `table` of a `LostPointsError`.
    fields: The fields to show, such as 'task.prior_mean'.

  Returns:
    The tables, separated by an empty line.
  """
  rows = with_one_loss(rows)
  metrics = [*dict.fromkeys(name for row in rows for name in row.get('metrics', {}))]
  cells = []
  for row in rows:
    stderr, num = row['eval_risk_stderr'], _num_prompts(row)
    own = row.get('metrics', {})
    cells.append(
      [
        *(str(row.get(field)) for field in fields),
        'diverged' if is_lost(row) else _number(row['eval_risk'], '.4f'),
        _number(None if stderr is None else half_of(stderr, num), '.4f'),
        _number(row['exact_risk'], '.6f'),
        _number(row['excess_risk'], '.2e'),
        *(_number(own.get(name), '.4g') for name in metrics),
      ]
    )
  half = name_of_half(min(map(_num_prompts, rows), default=math.inf))
  header = [*fields, 'sampled risk', half, 'exact risk', 'excess', *metrics]
  return '\n\n'.join([tables.format_table(cells, header), *_means(rows, fields)])


def _num_prompts(row: Row) -> int | float:
  """Returns the number of prompts of the sampled risk; infinity if it is unknown."""
  return row.get('eval_num_prompts') or math.inf


def _means(rows: Sequence[Row], fields: Sequence[str]) -> Iterator[str]:
  """Yields a table of the mean risks over seeds, and a note, if an arm has several."""
  kind = kind_of_risk(rows)
  others = [name for name in fields if name != 'seed']
  arms: dict[_Arm, dict[object, float]] = {}  # Each arm has its risks by seed.
  missing: dict[_Arm, collections.Counter[str]] = {}  # What points have for a risk.
  for row in rows:
    arm = tuple(str(row.get(name)) for name in others)
    risks = arms.setdefault(arm, {})
    of_arm = missing.setdefault(arm, collections.Counter())
    if row[kind] is not None:
      risks[row.get('seed')] = row[kind]
    else:
      of_arm['diverged' if is_lost(row) else 'without a risk'] += 1
  if 'seed' not in fields or all(len(risks) <= 1 for risks in arms.values()):
    return
  best = _best_arms(arms, [_sets_prompts(name, kind) for name in others])
  form = '.6f' if kind == 'exact_risk' else '.4f'
  cells = []
  for arm, risks in arms.items():
    others_of_arm = ', '.join(f'{n} {what}' for what, n in missing[arm].items())
    number = f'{len(risks)} ({others_of_arm})' if others_of_arm else str(len(risks))
    cells.append([*arm, number, *_mean_and_half(risks, form)])
    if best and best[arm] == arm:
      cells[-1] += ['best', '']
    elif best:
      risks_of_best = arms[best[arm]]
      shared = [seed for seed in risks if seed in risks_of_best]
      gaps = {seed: risks[seed] - risks_of_best[seed] for seed in shared}
      cells[-1] += _mean_and_half(gaps, f'+{form}')
  what = 'mean exact risk' if kind == 'exact_risk' else 'mean sampled risk'
  half = '± 95 % interval'
  header = [*others, 'seeds', what, half]
  if best:
    header += ['minus the best, paired', half]
  yield tables.format_table(cells, header)
  if kind == 'eval_risk':
    half = name_of_half(min(map(_num_prompts, rows)))
    yield (
      'Intervals are over seeds. All seeds share the held-out prompts. The intervals '
      f'do not include the error from these prompts (column {half}).'
    )


def _sets_prompts(field: str, kind: str) -> bool:
  """Returns whether points that differ in a field have other prompts or tasks."""
  sampled = field.startswith('eval.') or field == 'train.batch_size'
  return field.startswith('task.') or (sampled and kind == 'eval_risk')


def _best_arms(
  arms: Mapping[_Arm, Mapping[object, float]], sets_prompts: Sequence[bool]
) -> dict[_Arm, _Arm]:
  """Returns, for each arm, the best of the arms that are measured on the same prompts.

  Only arms with the most seeds can be the best.

  Args:
    arms: The risks of each arm by seed.
    sets_prompts: For each field of an arm, whether it changes the prompts.

  Returns:
    The best arm by arm. It is empty if no two arms are measured on the same prompts.
  """
  alike: dict[_Arm, list[_Arm]] = {}  # These arms have the same prompts.
  for arm in arms:
    prompts = tuple(itertools.compress(arm, sets_prompts))
    alike.setdefault(prompts, []).append(arm)
  if all(len(members) == 1 for members in alike.values()):
    return {}

  def rank(arm: _Arm) -> tuple[int, float]:
    risks = [*arms[arm].values()]
    return -len(risks), estimate(risks).mean if risks else math.inf

  best = {}
  for members in alike.values():
    best |= dict.fromkeys(members, min(members, key=rank))
  return best


def _mean_and_half(risks: Mapping[object, float], form: str) -> list[str]:
  """Returns the mean over seeds and half its 95 % interval, as text."""
  if not risks:
    return ['-', '-']
  mean = estimate([*risks.values()])
  return [_number(mean.mean, form), _number(mean.half, form.lstrip('+'))]


def _number(value: float | None, form: str) -> str:
  """Returns a number in a format; a dash if it is unknown or infinite."""
  if value is None or not math.isfinite(value):
    return '-'
  return format(value, form)
