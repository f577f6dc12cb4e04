"""Plots of runs: the in-context risk by training step, and by number of examples."""

import functools
import itertools
import operator
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

from zoo.core import registry
from zoo.core.errors import UserError
from zoo.host.files import read_json, workdir_path
from zoo.measure.comparison import MODEL, Comparison, without_errors
from zoo.measure.intervals import interval
from zoo.reports.comparison_plots import plot_by_examples
from zoo.reports.plots import Panel, Series, render_grid, series
from zoo.reports.style import BLACK, PALETTE, Figure
from zoo.storage.workdir import POINTS
from zoo.tasks.base import is_squared
from zoo.training.records import read_lines
from zoo.training.summary import SUMMARY, read_summary

_TABLE = 'table.json'  # of a sweep
_METRICS = 'metrics.jsonl'
_IN_LABELS = 'model.name', 'model.num_heads'
_MOST_FIELDS = 4  # in a label


class RiskCurve(NamedTuple):
  """The risk of a run at the steps where it was measured, at least one."""

  is_exact: bool  # False: sampled
  steps: list[int]
  risks: list[float]


def plot_risk(workdirs: Sequence[str | pathlib.Path]) -> Figure:
  """The risk of each run by step, exact where it is known, else sampled.

  A run whose risk was measured only once shows its training loss as well. Dashes show
  one-step gradient descent on the first run's task. Raises UserError for a folder that
  holds no run, or one that has logged nothing yet. A folder may be in a bucket:
  gs://bucket/runs/a.
  """
  folders = [workdir_path(workdir) for workdir in workdirs]
  labels, shown = _labels(folders), []
  for colour, folder in zip(itertools.cycle(PALETTE), folders, strict=False):
    curve = read_curve(folder)
    name = f'{labels[folder]}: {curve.risks[-1]:.3f}'
    shown.append(series(name, 'curve', colour, curve.steps, curve.risks))
    if len(curve.steps) == 1:
      name = f'{labels[folder]}, training loss'
      shown.append(series(name, 'line', colour, *logged(folder, 'loss')))
  summary = read_summary(folders[0] / SUMMARY)
  if summary is not None and (risk := summary['gd_risk']) is not None:
    ends = [f(step for one in shown for step in one.x) for f in (min, max)]
    name = f'one step of gradient descent: {risk:.3f}'
    shown.append(series(name, 'dashed', BLACK, ends, [risk, risk]))
  title = 'numbers are risks at the end' if len(folders) > 1 else ''
  axes = 'training step', 'in-context risk (log scale)'
  return render_grid([Panel(title, *axes, tuple(shown), y_scale='log')], 1, 3.3)


def plot_sweep(workdir: str | pathlib.Path) -> Figure:
  """The risk at the end of the points of a sweep, against one of its fields.

  That is the field with the most different numbers; the other fields have a line for
  each of their values. Several seeds are a mean with its 95 % interval, Student's t.
  The risk is exact where all are, else on held-out prompts. Raises UserError if no
  field but the seed has numbers.
  """
  rows = read_json(workdir_path(workdir) / _TABLE)
  fields = [*itertools.takewhile(lambda name: name != 'workdir', rows[0])]
  numbers = {
    name: {row[name] for row in rows}
    for name in fields
    if name != 'seed' and all(type(row.get(name)) in (int, float) for row in rows)
  }
  if not numbers:
    raise UserError(f'{workdir} is a sweep over no field of numbers but the seed')
  across = max(numbers, key=lambda name: len(numbers[name]))
  others = [name for name in fields if name not in (across, 'seed')]
  kind = 'exact_risk' if all(row['exact_risk'] is not None for row in rows) else None
  lines: dict[str, dict[float, list[float]]] = {}
  for row in rows:
    label = ', '.join(f'{name.rpartition(".")[2]}={row.get(name)}' for name in others)
    risks = lines.setdefault(label or 'all points', {}).setdefault(row[across], [])
    risks.append(row[kind or 'eval_risk'])
  shown = []
  for colour, (label, found) in zip(
    itertools.cycle(PALETTE), lines.items(), strict=False
  ):
    x = sorted(found)
    mean, low, high = zip(*map(_mean_of_seeds, map(found.get, x)), strict=True)
    shown.append(Series(label, 'curve', colour, tuple(map(float, x)), mean, low, high))
  axes = across, f'{"exact" if kind else "sampled"} risk at the end'
  return render_grid([Panel('', *axes, tuple(shown))], 1, 3.3)


def _mean_of_seeds(risks: Any) -> tuple[float, float, float]:
  """The mean and its 95 % interval, which a single seed does not have."""
  if len(risks) == 1:
    return risks[0], risks[0], risks[0]
  found = interval(risks)
  return found.mean, found.low, found.high


def read_curve(workdir: pathlib.Path) -> RiskCurve:
  """The risk by step that a run has logged; raises UserError if there is none."""
  _config(workdir)  # raises UserError for a folder that holds no run
  for field in ('exact_risk', 'eval_risk'):
    steps, risks = logged(workdir, field)
    if steps:
      return RiskCurve(field == 'exact_risk', steps, risks)
  raise UserError(f'{workdir} has logged no risk yet; train it further first')


def logged(workdir: pathlib.Path, field: str) -> tuple[list[int], list[float]]:
  """The steps that have a field in the log of a run, and its values there."""
  lines = read_lines(workdir / _METRICS)
  found = [(line['step'], line[field]) for line in lines if line[field] is not None]
  return [step for step, _ in found], [value for _, value in found]


def plot_examples(workdirs: Sequence[str | pathlib.Path]) -> Figure:
  """The loss of each run's model by the number of examples before the query.

  The baselines are those of the first run's task. An unfinished run has the curve of
  its last evaluation, if its model predicts all examples in one pass. Raises UserError
  for a run that has no curve. A folder may be in a bucket.
  """
  folders = [workdir_path(workdir) for workdir in workdirs]
  labels = _labels(folders)
  return plot_by_examples({labels[one]: _read_comparison(one) for one in folders})


def _read_comparison(workdir: pathlib.Path) -> Comparison:
  """The comparison of a finished run, or the newest curve of its model."""
  _config(workdir)  # raises UserError for a folder that holds no run
  summary = read_summary(workdir / SUMMARY)
  if summary is not None and (comparison := summary.get('comparison')):
    return comparison
  lines = read_lines(workdir / _METRICS)
  curves = [line['curve'] for line in lines if line['curve'] is not None]
  if not curves:
    raise UserError(
      f'{workdir} has no loss by number of examples yet: it is measured at the end of '
      'a run, unless config.eval.num_compared is 0'
    )
  return {MODEL: without_errors(curves[-1])}


def _config(workdir: pathlib.Path) -> dict[str, Any]:
  """The config of a run, with the name of its model; raises UserError."""
  path = workdir / 'config.json'
  points = workdir / POINTS
  if points.is_dir() or (workdir / _TABLE).is_file():
    names = sorted(one.name for one in points.iterdir()) if points.is_dir() else []
    raise UserError(
      f'{workdir} is a sweep; plot some of its points instead, which are folders such '
      f'as {points / (names[0] if names else "NAME")}'
    )
  if not path.is_file():
    raise UserError(f'{workdir} holds no run: there is no config.json in it')
  config = read_json(path)
  model = config.get('model') if isinstance(config, dict) else None
  if not isinstance(model, dict) or not isinstance(model.get('name'), str):
    raise UserError(f'{path} is damaged: it names no model')
  return config


def _label(config: Mapping[str, Any]) -> str:
  """The model of a run and its number of heads, for a legend."""
  model = config['model']
  heads = model.get('num_heads', 1)
  return f'{model["name"]:.80}, {heads} head{"" if heads == 1 else "s"}'


def _labels(folders: Sequence[pathlib.Path]) -> dict[pathlib.Path, str]:
  """A label for each run, all different: by model, then by fields, then by folder.

  Raises UserError for runs whose losses cannot share an axis.
  """
  configs = {folder: _config(folder) for folder in folders}
  _check_losses(configs)
  labels = {folder: _label(config) for folder, config in configs.items()}
  if _are_different(labels):
    return labels
  fields = {folder: _fields(config) for folder, config in configs.items()}
  shared = functools.reduce(operator.and_, (one.keys() for one in fields.values()))
  differing = sorted(
    name for name in shared if len({one[name] for one in fields.values()}) > 1
  )
  differing = [name for name in differing if name not in _IN_LABELS]
  if 0 < len(differing) <= _MOST_FIELDS:
    for folder, one in fields.items():
      values = [f'{name.rpartition(".")[2]}={one[name]:.40}' for name in differing]
      labels[folder] = ', '.join([labels[folder], *values])
  named = labels
  for parts in 1, 2, 99:  # of the path
    if _are_different(named):
      break
    named = {
      folder: f'{label} ({pathlib.PurePath(*folder.parts[-parts:])})'
      for folder, label in labels.items()
    }
  return named


def _are_different(labels: Mapping[pathlib.Path, str]) -> bool:
  return len({*labels.values()}) == len(labels)


def _fields(config: Mapping[str, Any], prefix: str = '') -> dict[str, str]:
  """The values of a config in words, by dotted name."""
  found = {}
  for name, value in config.items():
    if isinstance(value, dict):
      found |= _fields(value, f'{prefix}{name}.')
    else:
      found[f'{prefix}{name}'] = str(value)
  return found


def _check_losses(configs: Mapping[pathlib.Path, Mapping[str, Any]]) -> None:
  """Raises UserError for runs of which only some have the squared error."""
  squared: dict[bool, pathlib.Path] = {}
  for folder, config in configs.items():
    task = config.get('task')
    name = task.get('name') if isinstance(task, dict) else None
    if isinstance(name, str) and name in registry.tasks.names():
      squared.setdefault(is_squared(registry.tasks.create(**cast(Any, task))), folder)
  if len(squared) > 1:
    raise UserError(
      f'{squared[True]} has the squared error as its loss and {squared[False]} another '
      'one; plot them apart, since the two cannot share an axis'
    )
