"""Plots of runs: the loss by step, by operations, and by number of examples."""

import itertools
import math
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from zoo.core.errors import UserError
from zoo.host.files import read_json, workdir_path
from zoo.measure.comparison import MODEL, Comparison, without_errors
from zoo.measure.intervals import estimate, half_of
from zoo.measure.table import name_of_half
from zoo.reports.comparison_plots import LEAST, few_baselines, plot_by_examples
from zoo.reports.plots import Panel, Series, plot_panel, series
from zoo.reports.style import PALETTE, Ax, colours_of
from zoo.storage.workdir import POINTS
from zoo.training.records import read_lines
from zoo.training.run_labels import (
  ON_OBSERVED,
  TABLE,
  Config,
  check_losses,
  config_of,
  excess_in_training,
  labels_of,
  named,
  trained_at,
  trains_loss_of_task,
)
from zoo.training.summary import is_lost, kind_of_risk, read_summary, with_one_loss

_WIDE = 10  # Numbers whose ratio is at least this are shown on a log axis.
_BESIDE = 0.1  # Points over one name have this distance.
_NEAR = 0.008  # Points at one number have this distance, as a share of the axis.
_FEWEST_NUMBERS = 3  # An axis is chosen for its numbers if it has at least these.
_MOST_TICKS = 10  # If there are no more values than this, each has a tick.


def plot_risk(
  workdirs: str | pathlib.Path | Sequence[str | pathlib.Path],
  *,
  training: bool = False,
  operations: bool = False,
  ax: Axes | None = None,
) -> Axes:
  """Draws the risk of each run by step.

  The risk is exact if it is known for all runs, and otherwise that on held-out prompts.
  Then it has a band of ± the standard error times Student's t, and the legend has this
  number at the end. It is half of a 95 % interval from 1024 prompts on. The label of
  the axis says which of the two risks it is.

  Dashed lines are the baselines of the first finished run's task, unless their losses
  are more than twice the largest of the runs. The title names those that are too small
  for the axis. For a training loss on observed labels they include the variance of
  these labels, as the loss itself does.

  Args:
    workdirs: Folders of runs, or one of them. They may be in a bucket:
      gs://bucket/runs/a.
    training: Whether the training loss is drawn instead of the risk. A run whose risk
      was measured only once shows its training loss, too, unless it trains another
      loss than the task has.
    operations: Whether the axis has operations in products of matrices, not steps.
    ax: The axes to draw in. By default the function makes a figure.

  Returns:
    The axes.

  Raises:
    UserError: If there is no folder, if a folder holds no run, if a run has not logged
      what is shown, or if the runs have losses of two kinds.
  """
  folders = _folders(workdirs)
  configs = {folder: config_of(folder) for folder in folders}
  loss = check_losses(configs, training)
  logs = {folder: read_lines(folder) for folder in folders}
  kind = '' if training else _kind_of_risk(logs)
  labels, shown = labels_of(configs), []
  for colour, folder in zip(itertools.cycle(PALETTE), folders, strict=False):
    scale = _operations_per_step(folder) if operations else 1.0
    config = configs[folder]
    log = logs[folder]
    shown += _curves_of(folder, config, log, labels[folder], colour, scale, kind)
  titles = ['numbers are those at the end'] if len(folders) > 1 else []
  if not (training and any(map(trained_at, configs.values()))):
    references, below = _references(configs, labels, shown, training)
    shown += references
    titles += [f'below the axis: {", ".join(below)}'] if below else []
  title = '\n'.join(titles)
  x_axis = 'operations in products of matrices' if operations else 'training step'
  what = {
    '': 'training loss',
    'exact_risk': 'in-context risk, exact',
    'eval_risk': 'in-context risk, held-out prompts',
  }[kind]
  y_axis = f'{what}\n{loss.removeprefix("the ")}'.strip() + ' (log scale)'
  panel = Panel(title, x_axis, y_axis, tuple(shown), y_scale='log')
  return plot_panel(panel, ax)


def plot_metric(
  workdirs: str | pathlib.Path | Sequence[str | pathlib.Path],
  name: str,
  *,
  operations: bool = False,
  ax: Axes | None = None,
) -> Axes:
  """Draws a number of the log of each run by step, such as one of your own metric.

  The folder of a sweep stands for its points. Points that differ only in the seed are
  drawn as their mean, with a band that is its 95 % interval by Student's t. They are
  drawn at the steps that all of them have logged.

  Args:
    workdirs: Folders of runs, or one of them, or the folder of one sweep. They may be
      in a bucket.
    name: The name of the number in `metrics.jsonl`, such as `norm/weights`.
    operations: Whether the axis has operations in products of matrices, not steps.
    ax: The axes to draw in. By default the function makes a figure.

  Returns:
    The axes.

  Raises:
    UserError: If there is no folder, if a folder holds no run, or if a run has not
      logged the number.
  """
  folders, shown, said = _folders(workdirs), [], []
  if len(folders) == 1 and (folders[0] / TABLE).is_file():
    arms, num_lost = _arms_of(folders[0])
    numbers = sorted({len(points) for points in arms.values()})
    if numbers[-1] > 1:
      counts = '–'.join(map(str, dict.fromkeys((numbers[0], numbers[-1]))))
      said.append(f'mean of {counts} seeds, band: 95 % interval over seeds')
    said.append(_not_shown(num_lost))
  else:
    labels = labels_of({folder: config_of(folder) for folder in folders})
    arms = {labels[folder]: [folder] for folder in folders}
  for colour, (label, points) in zip(
    itertools.cycle(PALETTE), arms.items(), strict=False
  ):
    scale = _operations_per_step(points[0]) if operations else 1.0
    steps, estimates = _over_seeds(points, name)
    mean, low, high = zip(*estimates, strict=True)
    text = f'{label}: {mean[-1]:.3f}'
    if len(points) > 1:
      text += f' ± {(high[-1] - low[-1]) / 2:.2g}'
    at = tuple(np.multiply(scale, steps).tolist())
    shown.append(Series(text, 'curve', colour, at, mean, low, high))
  title = ['numbers are those at the end'] if len(arms) > 1 else []
  x_axis = 'operations in products of matrices' if operations else 'training step'
  title = '\n'.join(filter(None, [*said, *title]))
  return plot_panel(Panel(title, x_axis, name, tuple(shown)), ax)


def _arms_of(sweep: pathlib.Path) -> tuple[dict[str, list[pathlib.Path]], int]:
  """Returns the folders of a sweep's points by all fields but the seed.

  The second result is the number of points that have diverged, which are left out.
  """
  rows, num_lost = _rows_of(sweep)
  swept, arms = _swept(rows), {}
  for row in rows:
    label = _label(row, swept) or named('model.name', row['model'])
    arms.setdefault(label, []).append(sweep / row['workdir'])
  return arms, num_lost


def _over_seeds(
  points: Sequence[pathlib.Path], name: str
) -> tuple[list[int], list[tuple[float, float, float]]]:
  """Returns the steps at which all runs have logged a number, and its means there.

  Each mean has the ends of its 95 % interval, which are the number itself for one run.

  Raises:
    UserError: If a run has not logged the number, or if there is no such step.
  """
  by_step: dict[int, list[float]] = {}
  for folder in points:
    log = read_lines(folder)
    known = {
      entry
      for line in log
      for entry, value in line.items()
      if isinstance(value, int | float)
    }
    if name not in known:
      raise UserError(
        f'{folder} has logged no number {name!r}; it has {", ".join(sorted(known))}'
      )
    steps, values, _ = logged(log, name)
    for step, value in zip(steps, values, strict=True):
      by_step.setdefault(step, []).append(value)
  steps = sorted(step for step in by_step if len(by_step[step]) == len(points))
  if not steps:
    raise UserError(
      f'the points with {points[0]} have logged {name!r} at no step alike'
    )
  if len(points) == 1:
    return steps, [(value, value, value) for step in steps for value in by_step[step]]
  intervals = [estimate(by_step[step]) for step in steps]
  return steps, [(found.mean, found.low, found.high) for found in intervals]


def _folders(
  workdirs: str | pathlib.Path | Sequence[str | pathlib.Path],
) -> list[pathlib.Path]:
  """Returns the folders of runs; raises UserError if there are none."""
  if isinstance(workdirs, str | os.PathLike):
    workdirs = [workdirs]
  if not workdirs:
    raise UserError('workdirs is empty; it must be a list of the folders of runs')
  return [workdir_path(workdir) for workdir in workdirs]


# The lines of the log of a run.
_Log = list[dict[str, Any]]


def _kind_of_risk(logs: Mapping[pathlib.Path, _Log]) -> str:
  """Returns the risk that all runs have logged: `exact_risk`, else `eval_risk`.

  Raises:
    UserError: If a run has logged no risk, or if they have none in common.
  """
  having = {
    kind: {folder for folder, log in logs.items() if logged(log, kind)[0]}
    for kind in ('exact_risk', 'eval_risk')
  }
  for kind, folders in having.items():
    if folders == {*logs}:
      return kind
  for folder, log in logs.items():
    if folder not in having['exact_risk'] | having['eval_risk']:
      raise UserError(f'{folder} has logged no risk yet{_why_no_risk(log)}')
  (first, *_) = having['exact_risk'] - having['eval_risk']
  (other, *_) = having['eval_risk'] - having['exact_risk']
  raise UserError(
    f'{first} has no risk on held-out prompts, and {other} has no exact one, so that '
    'they cannot be compared; train the first with eval.num_batches > 0'
  )


def _why_no_risk(log: _Log) -> str:
  """Returns what is known of a run without a risk, and what helps, in words."""
  if any(line['loss'] is None for line in log):
    return ': its loss was not finite; try a smaller learning rate'
  return '; train it further first'


def _curves_of(
  folder: pathlib.Path,
  config: Config,
  log: _Log,
  label: str,
  colour: str,
  scale: float,
  kind: str,
) -> Iterator[Series]:
  """Yields the risk of a run, its training loss, or both if there is a single risk.

  A training loss in other units than the risk is not drawn beside it.

  Args:
    folder: The folder of the run.
    config: Its config.
    log: The lines of its log.
    label: Its name in the legend.
    colour: Its colour.
    scale: What a step counts on the axis.
    kind: The field of the risk in the log; empty for the training loss.

  Raises:
    UserError: If the training loss is asked for, and the run has logged none.
  """
  if kind:
    steps, risks, halves = logged(log, kind)
    end = f' ± {halves[-1]:.2g}' if halves[-1] else ''
    yield Series(
      f'{label}: {risks[-1]:.3f}{end}',
      'curve',
      colour,
      tuple(np.multiply(scale, steps).tolist()),
      tuple(risks),
      tuple(y - half for y, half in zip(risks, halves, strict=True)),
      tuple(y + half for y, half in zip(risks, halves, strict=True)),
    )
    if len(steps) > 1 or not trains_loss_of_task(config):
      return
  steps, losses, _ = logged(log, 'loss')
  if not steps:
    raise UserError(f'{folder} has logged no training loss yet; train it further first')
  name = f'{label}: {losses[-1]:.3f}'
  if kind:  # The risk beside it is measured against the targets.
    is_clean = excess_in_training(folder, config) == 0
    name = f'{label}, training loss{trained_at(config)}'
    name += '' if is_clean else ON_OBSERVED
  yield series(name, 'line', colour, np.multiply(scale, steps), losses)


def _operations_per_step(folder: pathlib.Path) -> float:
  """Returns the operations of a step of a finished run, forward and backward."""
  if folder.parent.name == POINTS:
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
  training: bool,
) -> tuple[list[Series], list[str]]:
  """Returns the losses of baselines as lines, and those that are below the axis.

  They are measured against the targets. With `training` the variance of the labels that
  the runs are trained on is added; there are no lines if it is unknown. Baselines with
  more than twice the largest loss of the runs are left out.
  """
  summaries = {folder: read_summary(folder) for folder in configs}
  finished = [folder for folder, summary in summaries.items() if summary is not None]
  summary = summaries[finished[0]] if finished else None
  if summary is None:
    return [], []
  excess = excess_in_training(finished[0], configs[finished[0]]) if training else 0.0
  if excess is None:
    return [], []
  losses = {
    name: measured['mean'][-1] if measured['exact'] is None else measured['exact']
    for name, measured in (summary['comparison'] or {}).items()
    if name != MODEL
  }
  if summary['gd_risk'] is not None:
    losses['gd'] = summary['gd_risk']
  losses = {
    name: None if loss is None else loss + excess for name, loss in losses.items()
  }
  high = max(y for curve in curves for y in curve.y)
  names: dict[str, list[str]] = {}  # The keys are the numbers that are shown.
  below = []
  for name, loss in losses.items():
    if loss is not None and loss <= LEAST * high:
      below.append(f'{name} {loss:.2g}')
    elif loss is not None and loss < 2 * high:
      names.setdefault(f'{loss:.3f}', []).append(name)
  ends = [end(x for curve in curves for x in curve.x) for end in (min, max)]
  of = f' on the task of {labels[finished[0]]}' if _on_several_tasks(configs) else ''
  colours, lines = colours_of(losses), []
  for number, alike in names.items():
    colour = colours['bayes' if 'bayes' in alike else alike[0]]
    loss = losses[alike[0]]
    name = f'{", ".join(alike)}{of}: {number}'
    lines.append(series(name, 'dashed', colour, ends, [loss, loss]))
  return lines, below


def _on_several_tasks(configs: Mapping[pathlib.Path, Config]) -> bool:
  return len({str(config['task']) for config in configs.values()}) > 1


def plot_sweep(
  workdir: str | pathlib.Path, x: str | None = None, *, ax: Axes | None = None
) -> Axes:
  """Draws the risk at the end of the points of a sweep, against one of its fields.

  Other fields have a line for each of their values, except for the seed. Several seeds
  are drawn as a mean with its 95 % interval by Student's t. The bar of one seed is over
  held-out prompts; the title says whether it is a 95 % interval. The risk is exact if
  it is for all points, else it is that on held-out prompts.

  Args:
    workdir: The folder of the sweep, which may be in a bucket.
    x: The field of the horizontal axis. By default it is the field with the most
      different numbers, if there are at least three, or else the field with the most
      different values. Fields whose values go together count as one.
    ax: The axes to draw in. By default the function makes a figure.

  Returns:
    The axes.

  Raises:
    UserError: If the sweep has no risk, or if `x` is not one of its fields.

  Example:
    >>> from zoo.training.run_plots import plot_sweep
    >>> config = zoo.default_config('yq_lsa')
    >>> config.train.num_steps = config.eval.every = 10
    >>> points = zoo.training.grid({'optimizer.learning_rate': [1e-3, 3e-3, 1e-2]})
    >>> rows = zoo.training.sweep(config, points, 'sweeps/rates')
    >>> plot_sweep('sweeps/rates').get_xlabel()
    'optimizer.learning_rate (log scale)'
  """
  rows, num_lost = _rows_of(workdir)
  rows = with_one_loss(rows)
  kind = kind_of_risk(rows)
  note = _not_shown(num_lost, sum(row[kind] is None for row in rows))
  rows = [row for row in rows if row[kind] is not None]
  if not rows:
    raise UserError(f'{workdir} has no risk; its points need config.eval.num_batches')
  swept = _swept(rows)
  first, *rest = _axis_of(rows, swept, x)
  others = [name for name in swept if name not in (first, *rest)]
  numeric = _is_numeric(rows, first)
  lines: dict[str, dict[Any, list[Row]]] = {}
  for row in rows:
    label = _label(row, others) or 'all points'
    at = row[first] if numeric else _label(row, [first, *rest], short=not rest)
    lines.setdefault(label, {}).setdefault(at, []).append(row)
  across = ', '.join([first, *rest])
  return _draw_sweep(lines, across, kind, numeric, note, ax)


Row = Mapping[str, Any]  # The rows of the table of a sweep have this type.


def _rows_of(workdir: str | pathlib.Path) -> tuple[list[Row], int]:
  """Returns the rows of a sweep's finite points, and the number of the other points."""
  rows = read_json(workdir_path(workdir) / TABLE, list)
  finished = [row for row in rows if not is_lost(row)]
  if not finished:
    raise UserError(f'{workdir} has no point that stayed finite')
  return finished, len(rows) - len(finished)


def _fields_of(rows: Sequence[Row]) -> list[str]:
  """Returns the fields of the points of a sweep, except for the seed."""
  fields = itertools.takewhile(lambda name: name != 'workdir', rows[0])
  return [name for name in fields if name != 'seed']


def _swept(rows: Sequence[Row]) -> list[str]:
  """Returns the fields in which the points of a sweep differ, except for the seed."""
  return [
    name for name in _fields_of(rows) if len({str(row.get(name)) for row in rows}) > 1
  ]


def _label(row: Row, fields: Sequence[str], short: bool = False) -> str:
  """Returns the values of some fields of a row, without their names if `short`."""
  if short:
    return ', '.join(str(row.get(name)) for name in fields)
  return ', '.join(named(name, row.get(name)) for name in fields)


def _is_numeric(rows: Sequence[Row], field: str) -> bool:
  return all(type(row.get(field)) in (int, float) for row in rows)


def _axis_of(rows: Sequence[Row], swept: Sequence[str], x: str | None) -> list[str]:
  """Returns the field of the horizontal axis, and other fields that follow from it."""
  candidates = swept or _fields_of(rows) or ['model']
  values = {name: [str(row.get(name)) for row in rows] for name in candidates}
  numeric = {name: _is_numeric(rows, name) for name in candidates}

  def follows(other: str, name: str) -> bool:
    pairs = {*zip(values[name], values[other], strict=True)}
    return other != name and len(pairs) == len({*values[name]})

  def rank(name: str) -> tuple[bool, int, bool]:
    number = len({*values[name]})
    # Numbers that follow from words, such as the width of each mixer, are not an axis.
    of_words = any(follows(name, word) for word in candidates if not numeric[word])
    several = number >= _FEWEST_NUMBERS
    return several and numeric[name] and not of_words, number, not numeric[name]

  if x is None:
    x = max(candidates, key=rank)
  elif x not in candidates:
    seeds = '; seeds are averaged' * (x == 'seed')
    raise UserError(
      f'--x is {x!r}; it must be a field of the sweep: {", ".join(candidates)}{seeds}'
    )
  rest = [field for field in candidates if follows(field, x)]
  return [x, *(field for field in rest if numeric[field] or not numeric[x])]


def _draw_sweep(
  lines: Mapping[str, Mapping[Any, list[Row]]],
  across: str,
  kind: str,
  numeric: bool,
  note: str,
  ax: Axes | None,
) -> Axes:
  """Draws a line for each label, or points above words, with a bar at each point."""
  every = dict.fromkeys(x for of in lines.values() for x in of)
  places = sorted(map(float, every)) if numeric else []
  words = [] if numeric else [*every]
  x_scale, shown = _scale(places), []
  for i, (label, rows_at) in enumerate(lines.items()):
    order = sorted(rows_at) if numeric else [word for word in words if word in rows_at]
    at = np.array([float(x) if numeric else words.index(x) for x in order])
    beside = i - (len(lines) - 1) / 2  # Bars side by side do not hide one another.
    if not numeric:
      at = at + _BESIDE * beside
    elif x_scale == 'log':
      at = at * (places[-1] / places[0]) ** (_NEAR * beside)
    else:
      at = at + _NEAR * (places[-1] - places[0]) * beside
    bars = [_mean_and_bar(rows_at[x], kind) for x in order]
    mean, low, high = zip(*bars, strict=True)
    look, colour = 'bars' if numeric else 'dots', PALETTE[i % len(PALETTE)]
    shown.append(Series(label, look, colour, tuple(at.tolist()), mean, low, high))
  points = [rows for of in lines.values() for rows in of.values()]
  title = _caption(points, kind, note)
  y_scale = _scale([mean for line in shown for mean in line.y])
  what = f'{"exact" if kind == "exact_risk" else "sampled"} risk at the end'
  what += ' (log scale)' * (y_scale == 'log')
  across += ' (log scale)' * (x_scale == 'log')
  panel = Panel(title, across, what, tuple(shown), x_scale, y_scale, tuple(words))
  axes = plot_panel(panel, ax)
  if words:
    axes.set_xlim(-0.5, len(words) - 0.5)
  elif len(places) <= _MOST_TICKS:
    axes.set_xticks(places, [f'{x:g}' for x in places])
  return axes


def _scale(numbers: Sequence[float]) -> str:
  is_wide = bool(numbers) and max(numbers) >= _WIDE * min(numbers) > 0
  return 'log' if is_wide else 'linear'


def _mean_and_bar(rows: Sequence[Row], kind: str) -> tuple[float, float, float]:
  """Returns the mean over seeds and the ends of its interval.

  With one seed, the interval is over the held-out prompts.
  """
  if len(rows) > 1:
    mean = estimate([row[kind] for row in rows])
    return mean.mean, mean.low, mean.high
  (row,) = rows
  half = _half_over_prompts(row) if kind == 'eval_risk' else 0.0
  return row[kind], row[kind] - half, row[kind] + half


def _half_over_prompts(row: Row) -> float:
  """Returns half of the interval of a sampled risk; 0 if its error is unknown."""
  num = row.get('eval_num_prompts') or math.inf
  return half_of(row['eval_risk_stderr'] or 0.0, num)


def _caption(points: Sequence[Sequence[Row]], kind: str, note: str) -> str:
  """Returns what the bars of a sweep's plot are, and how many points it lacks."""
  sampled, said = kind == 'eval_risk', []
  numbers = sorted({len(rows) for rows in points})
  several = [number for number in numbers if number > 1]
  if several:
    counts = '–'.join(map(str, dict.fromkeys((several[0], several[-1]))))
    said.append(f'mean of {counts} seeds, bars: 95 % interval over seeds')
  shown = [row for rows in points for row in rows]
  largest = max(map(_half_over_prompts, shown))
  if several and sampled and largest:
    said.append(f'without the error of held-out prompts, up to ± {largest:.2g}')
  if numbers[0] == 1:
    half = name_of_half(min(row.get('eval_num_prompts') or math.inf for row in shown))
    bars = (
      f'bars: {half}, held-out prompts' if sampled else 'no bar: computed by a formula'
    )
    said.append(f'one seed, {bars}')
  return '\n'.join(filter(None, [*said, note]))


def _not_shown(num_lost: int, num_without: int = 0) -> str:
  """Returns how many points of a sweep have diverged, or have no risk, in words."""
  lost = 'has diverged and is' if num_lost == 1 else 'diverged and are'
  without = 'has no risk and is' if num_without == 1 else 'have no risk and are'
  counts = (num_lost, lost), (num_without, without)
  return ', '.join(
    f'{n} {"point" if n == 1 else "points"} {said} not shown' for n, said in counts if n
  )


def logged(log: _Log, field: str) -> tuple[list[int], list[float], list[float]]:
  """Returns the steps that have a field in the log of a run, and its values there.

  The third list has the number after ± of each value, the standard error times
  Student's t. It is 0 where the log has no standard error, as for exact numbers.
  """
  lines = [line for line in log if line.get(field) is not None]
  return (
    [line['step'] for line in lines],
    [line[field] for line in lines],
    [
      half_of(
        line.get(f'{field}_stderr') or 0.0, line.get('eval_num_prompts') or math.inf
      )
      for line in lines
    ],
  )


def plot_examples(
  workdirs: str | pathlib.Path | Sequence[str | pathlib.Path],
  baselines: Sequence[str] | None = None,
  *,
  ax: Ax = None,
) -> list[Axes]:
  """Draws the loss of each run's model by the number of examples before the query.

  An unfinished run has the curve of its last evaluation, if its model predicts all
  examples in one pass.

  Args:
    workdirs: Folders of runs, or one of them. They may be in a bucket.
    baselines: The names of the baselines to draw, of the first run's task; None draws
      all of them.
    ax: Axes to draw in, as many as are returned. By default the function makes a
      figure.

  Returns:
    The axes of the loss and, for classes, those of the accuracy.

  Raises:
    UserError: If a run has no curve, if a baseline is unknown, if the runs have losses
      of two kinds, or if `ax` has another number of axes.

  Example:
    >>> from zoo.training.run_plots import plot_examples
    >>> config = zoo.default_config('yq_lsa')
    >>> config.task.num_features, config.task.context_length = 2, 4
    >>> config.train.num_steps, config.eval.num_compared = 10, 64
    >>> summary = zoo.train(config, 'runs/a', compare=True)  # measures what is drawn
    >>> axes = plot_examples(['runs/a'], baselines=['bayes', 'gd'])
    >>> axes[0].get_xlabel()
    'number of examples before the query'
  """
  folders = _folders(workdirs)
  configs = {folder: config_of(folder) for folder in folders}
  loss, labels = check_losses(configs, training=False), labels_of(configs)
  of = f' on the task of {labels[folders[0]]}' if _on_several_tasks(configs) else ''
  comparisons = {labels[folder]: [_read_comparison(folder)] for folder in folders}
  return plot_by_examples(comparisons, loss, of, baselines, ax=ax)


def plot_sweep_examples(
  workdir: str | pathlib.Path,
  baselines: Sequence[str] | None = None,
  *,
  ax: Ax = None,
) -> list[Axes]:
  """Draws the loss of the points of a sweep by the number of examples.

  Points that differ in the seed alone are a mean with its 95 % interval by Student's t.

  Args:
    workdir: The folder of the sweep, which may be in a bucket.
    baselines: The names of the baselines to draw, of the first point's task; None draws
      `bayes` and the two best others.
    ax: Axes to draw in, as many as are returned. By default the function makes a
      figure.

  Returns:
    The axes of the loss and, for classes, those of the accuracy.

  Raises:
    UserError: If a point has no curve, if a baseline is unknown, if the points have
      losses of two kinds, or if `ax` has another number of axes.
  """
  rows, num_lost = _rows_of(workdir)
  swept, folder = _swept(rows), workdir_path(workdir)
  comparisons: dict[str, list[Comparison]] = {}
  configs: dict[pathlib.Path, Config] = {}  # Only the first points of arms are here.
  for row in rows:
    label = _label(row, swept) or named('model.name', row['model'])
    point = folder / row['workdir']
    if label not in comparisons:
      configs[point] = config_of(point)
    comparison = row['comparison'] or _read_comparison(point)
    comparisons.setdefault(label, []).append(comparison)
  first, *_ = comparisons
  of = f' on the task of {first}' if _on_several_tasks(configs) else ''
  if baselines is None:
    baselines = few_baselines(comparisons[first][0])
  loss = check_losses(configs, training=False)
  note = _not_shown(num_lost)
  return plot_by_examples(comparisons, loss, of, baselines, note, ax=ax)


def _read_comparison(workdir: pathlib.Path) -> Comparison:
  """Returns the comparison of a finished run, or the newest curve of its model."""
  summary = read_summary(workdir)
  if summary is not None and (comparison := summary['comparison']):
    return comparison
  lines = read_lines(workdir)
  curves = [line['curve'] for line in lines if line['curve'] is not None]
  if not curves:
    raise UserError(
      f'{workdir} has no loss by number of examples yet: it is measured at the end of '
      'a run, unless config.eval.num_compared is 0, and not of points of a sweep whose '
      'exact risk is known; train such a point with launch.main instead'
    )
  return {MODEL: without_errors(curves[-1])}
