"""Plots of runs: the loss by step, by operations, and by number of examples."""

import itertools
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from zoo.core.errors import UserError
from zoo.host.files import read_json, workdir_path
from zoo.measure.comparison import MODEL, Comparison, without_errors
from zoo.measure.intervals import interval
from zoo.reports.comparison_plots import LEAST, plot_by_examples
from zoo.reports.plots import Panel, Series, render_grid, series
from zoo.reports.style import PALETTE, Figure, colours_of
from zoo.storage.workdir import POINTS
from zoo.training.records import read_lines
from zoo.training.run_labels import (
  TABLE,
  Config,
  check_losses,
  config_of,
  labels_of,
  named,
  trained_at,
)
from zoo.training.summary import kind_of_risk, read_summary

_WIDE = 10  # numbers whose ratio is at least this are shown on a log axis
_BESIDE = 0.1  # between points over one name
_MOST_TICKS = 10  # one for each value


def plot_risk(
  workdirs: Sequence[str | pathlib.Path],
  *,
  training: bool = False,
  operations: bool = False,
) -> Figure:
  """The risk of each run by step, exact where it is known, else sampled.

  With `training` it is the training loss instead, which a run whose risk was measured
  only once shows as well; with `operations` the axis has operations in products of
  matrices in place of steps. Dashes are Bayes, and the baselines of the first finished
  run's task whose losses are among those of the runs. Raises UserError for a folder
  that holds no run, or one that has not logged what is shown; for losses of two kinds.
  A folder may be in a bucket: gs://bucket/runs/a.
  """
  folders = [workdir_path(workdir) for workdir in workdirs]
  configs = {folder: config_of(folder) for folder in folders}
  loss = check_losses(configs, training)
  labels, shown = labels_of(configs), []
  for colour, folder in zip(itertools.cycle(PALETTE), folders, strict=False):
    scale = _operations_per_step(folder) if operations else 1.0
    shown += _curves_of(folder, labels[folder], colour, scale, training)
  if not (training and any(map(trained_at, configs.values()))):
    shown += _references(configs, labels, shown)
  title = 'numbers are those at the end' if len(folders) > 1 else ''
  x_axis = 'operations in products of matrices' if operations else 'training step'
  what = 'training loss' if training else 'in-context risk'
  y_axis = f'{what} (log scale)\n{loss}'.strip()
  panel = Panel(title, x_axis, y_axis, tuple(shown), y_scale='log')
  return render_grid([panel], 1, 3.3)


def _curves_of(
  folder: pathlib.Path, label: str, colour: str, scale: float, training: bool
) -> Iterator[Series]:
  """The risk of a run, its training loss, or both if there is a single risk."""
  if not training:
    steps, risks = read_curve(folder)
    name = f'{label}: {risks[-1]:.3f}'
    yield series(name, 'curve', colour, np.multiply(scale, steps), risks)
    if len(steps) > 1:
      return
  steps, losses = logged(folder, 'loss')
  if not steps:
    raise UserError(f'{folder} has logged no training loss yet; train it further first')
  name = f'{label}: {losses[-1]:.3f}' if training else f'{label}, training loss'
  yield series(name, 'line', colour, np.multiply(scale, steps), losses)


def _operations_per_step(folder: pathlib.Path) -> float:
  """The operations of a step of a finished run, forward and backward."""
  if folder.absolute().parent.name == POINTS:
    raise UserError(
      f'{folder} is a point of a sweep, which trains points side by side, so that the '
      'operations of one are not known; train it alone'
    )
  summary = read_summary(folder)
  rate, speed = (
    None if summary is None else summary[name]
    for name in ('flops_per_second', 'steps_per_second')
  )
  if not rate or not speed:
    raise UserError(
      f'{folder} has no count of operations, which a run has at its end; plot it '
      'against the step'
    )
  return rate / speed


def _references(
  configs: Mapping[pathlib.Path, Config],
  labels: Mapping[pathlib.Path, str],
  curves: Sequence[Series],
) -> Iterator[Series]:
  """The losses of Bayes, and of baselines that are among those of the runs."""
  summaries = {folder: read_summary(folder) for folder in configs}
  finished = [folder for folder, one in summaries.items() if one is not None]
  summary = summaries[finished[0]] if finished else None
  if summary is None:
    return
  found = {
    name: one['mean'][-1] if one['exact'] is None else one['exact']
    for name, one in (summary['comparison'] or {}).items()
    if name != MODEL
  }
  if summary['gd_risk'] is not None:
    found['gd'] = summary['gd_risk']
  every = [y for one in curves for y in one.y]
  low, high = min(every), max(every)
  names: dict[str, list[str]] = {}  # by the number that is shown
  for name, loss in found.items():
    least = LEAST * high if name == 'bayes' else low / 2
    if loss is not None and least < loss < 2 * high:
      names.setdefault(f'{loss:.3f}', []).append(name)
  ends = [end(x for one in curves for x in one.x) for end in (min, max)]
  of = f' on the task of {labels[finished[0]]}' if _on_several_tasks(configs) else ''
  colours = colours_of(found)
  for number, alike in names.items():
    colour = colours['bayes' if 'bayes' in alike else alike[0]]
    loss = found[alike[0]]
    name = f'{", ".join(alike)}{of}: {number}'
    yield series(name, 'dashed', colour, ends, [loss, loss])


def _on_several_tasks(configs: Mapping[pathlib.Path, Config]) -> bool:
  return len({str(config.get('task')) for config in configs.values()}) > 1


def plot_sweep(workdir: str | pathlib.Path) -> Figure:
  """The risk at the end of the points of a sweep, against one of its fields.

  That is the field with the most different numbers, or else the most different words;
  the other fields have a line for each of their values. Several seeds are a mean with
  its 95 % interval, Student's t; if nothing else differs, they are one point. The risk
  is exact where all are, else on held-out prompts. Raises UserError for a sweep without
  a risk.
  """
  rows = read_json(workdir_path(workdir) / TABLE)
  kind = kind_of_risk(rows)
  rows = [row for row in rows if row[kind] is not None]
  if not rows:
    raise UserError(f'{workdir} has no risk; its points need config.eval.num_batches')
  fields = [*itertools.takewhile(lambda name: name != 'workdir', rows[0])]
  swept = [name for name in fields if len({str(row.get(name)) for row in rows}) > 1]
  others = [name for name in fields if name != 'seed'] or ['model']
  candidates = [name for name in swept if name != 'seed'] or others
  numeric = [
    name
    for name in candidates
    if all(type(row.get(name)) in (int, float) for row in rows)
  ]
  across = max(
    numeric or candidates, key=lambda name: len({str(row.get(name)) for row in rows})
  )
  others = [name for name in swept if name not in (across, 'seed')]
  lines: dict[str, dict[Any, list[float]]] = {}
  for row in rows:
    label = ', '.join(named(name, row.get(name)) for name in others) or 'all points'
    x = row[across] if numeric else str(row.get(across))
    lines.setdefault(label, {}).setdefault(x, []).append(row[kind])
  what = f'{"exact" if kind == "exact_risk" else "sampled"} risk at the end'
  return _draw_sweep(lines, across, what, bool(numeric))


def _draw_sweep(
  lines: Mapping[str, Mapping[Any, list[float]]], across: str, what: str, numeric: bool
) -> Figure:
  """A line for each label, or points above words, with intervals over seeds."""
  every = dict.fromkeys(x for of in lines.values() for x in of)
  places = sorted(map(float, every)) if numeric else []
  words = [] if numeric else [*every]
  shown = []
  for i, (label, found) in enumerate(lines.items()):
    order = sorted(found) if numeric else [word for word in words if word in found]
    shift = 0.0 if numeric else _BESIDE * (i - (len(lines) - 1) / 2)
    x = [float(one) if numeric else words.index(one) + shift for one in order]
    mean, low, high = zip(*(_mean_of_seeds(found[one]) for one in order), strict=True)
    kind, colour = 'curve' if numeric else 'dots', PALETTE[i % len(PALETTE)]
    shown.append(Series(label, kind, colour, tuple(x), mean, low, high))
  numbers = sorted({len(risks) for of in lines.values() for risks in of.values()})
  seeds = str(numbers[-1]) if len(numbers) == 1 else f'{numbers[0]} to {numbers[-1]}'
  title = f'mean of {seeds} seeds, 95 % interval' if numbers[-1] > 1 else ''
  means = [mean for one in shown for mean in one.y]
  y_scale, x_scale = _scale(means), _scale(places)
  what += ' (log scale)' * (y_scale == 'log')
  across += ' (log scale)' * (x_scale == 'log')
  panel = Panel(title, across, what, tuple(shown), x_scale, y_scale, tuple(words))
  figure = render_grid([panel], 1, 3.3)
  if 1 < len(places) <= _MOST_TICKS:
    figure.axes[0].set_xticks(places, [f'{x:g}' for x in places])
  return figure


def _scale(numbers: Sequence[float]) -> str:
  is_wide = bool(numbers) and max(numbers) >= _WIDE * min(numbers) > 0
  return 'log' if is_wide else 'linear'


def _mean_of_seeds(risks: Sequence[float]) -> tuple[float, float, float]:
  """The mean and its 95 % interval, which a single seed does not have."""
  if len(risks) == 1:
    return risks[0], risks[0], risks[0]
  found = interval(risks)
  return found.mean, found.low, found.high


def read_curve(workdir: pathlib.Path) -> tuple[list[int], list[float]]:
  """The steps and the risks that a run has logged, exact if they are known.

  Raises UserError if there are none.
  """
  for field in ('exact_risk', 'eval_risk'):
    steps, risks = logged(workdir, field)
    if steps:
      return steps, risks
  raise UserError(f'{workdir} has logged no risk yet; train it further first')


def logged(workdir: pathlib.Path, field: str) -> tuple[list[int], list[float]]:
  """The steps that have a field in the log of a run, and its values there."""
  lines = read_lines(workdir)
  found = [(line['step'], line[field]) for line in lines if line[field] is not None]
  return [step for step, _ in found], [value for _, value in found]


def plot_examples(workdirs: Sequence[str | pathlib.Path]) -> Figure:
  """The loss of each run's model by the number of examples before the query.

  The baselines are those of the first run's task. An unfinished run has the curve of
  its last evaluation, if its model predicts all examples in one pass. Raises UserError
  for a run that has no curve. A folder may be in a bucket.
  """
  folders = [workdir_path(workdir) for workdir in workdirs]
  configs = {folder: config_of(folder) for folder in folders}
  loss, labels = check_losses(configs, training=False), labels_of(configs)
  of = f' on the task of {labels[folders[0]]}' if _on_several_tasks(configs) else ''
  found = {labels[one]: [_read_comparison(one)] for one in folders}
  return plot_by_examples(found, loss, of)


def _read_comparison(workdir: pathlib.Path) -> Comparison:
  """The comparison of a finished run, or the newest curve of its model."""
  summary = read_summary(workdir)
  if summary is not None and (comparison := summary['comparison']):
    return comparison
  lines = read_lines(workdir)
  curves = [line['curve'] for line in lines if line['curve'] is not None]
  if not curves:
    raise UserError(
      f'{workdir} has no loss by number of examples yet: it is measured at the end of '
      'a run, unless config.eval.num_compared is 0'
    )
  return {MODEL: without_errors(curves[-1])}
