"""The atlas: architectures × tasks × initial guesses, each cell trained the same way.

A cell is a sweep over seeds and learning rates. Its learning rate is that of the least
loss on held-out prompts; the cell's loss is measured on other prompts.
"""

from __future__ import annotations

import csv
import io
import math
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from absl import logging
from matplotlib.figure import Figure

from zoo.comparison import MODEL, Comparison
from zoo.config import Config
from zoo.errors import UserError
from zoo.files import write_atomically
from zoo.tables import format_estimate, format_table
from zoo.training import sweeps

LEARNING_RATES = 0.0003, 0.001, 0.003, 0.01

# From the names of a model, a task and a guess (None: the model has no choice).
GetConfig = Callable[[str, str, str | None], Config]


class Cell(NamedTuple):
  """A model on a task, with a guess unless the model has no choice."""

  model: str
  task: str
  guess: str | None

  @property
  def name(self) -> str:
    return ','.join(part for part in self if part is not None)


class Result(NamedTuple):
  """What came out of a cell: losses at the query, and those of its baselines."""

  cell: Cell
  num_params: int
  learning_rate: float  # the best of those tried
  losses: list[float]  # of each seed
  stderr: float  # of their mean, over prompts
  baselines: Mapping[str, float]  # on the same prompts, the mean over the seeds

  @property
  def loss(self) -> float:
    return float(np.mean(self.losses))


# Why a cell has no result: what its model cannot do, or that training diverged.
Reason = str


def run(
  cells: Sequence[Cell],
  get_config: GetConfig,
  out: pathlib.Path,
  num_seeds: int = 3,
  learning_rates: Sequence[float] = LEARNING_RATES,
  num_steps: int | None = None,
) -> dict[Cell, Result | Reason] | None:
  """Trains the cells that are not in the folder `out` yet, one after the other.

  Writes `atlas.csv`, and `atlas_TASK.png` and `.svg` for each task. Returns None after
  SIGTERM; the same call resumes. Raises UserError for a folder of another grid, and
  otherwise the errors of `sweeps.sweep`.
  """
  found: dict[Cell, Result | Reason] = {}
  axes = {
    'seed': list(range(num_seeds)),
    'optimizer.learning_rate': list(learning_rates),
  }
  points = sweeps.grid(axes)
  for number, cell in enumerate(cells, start=1):
    logging.info('cell %d of %d: %s', number, len(cells), cell.name)
    try:
      config = get_config(*cell)
      if num_steps is not None:
        _shorten(config, num_steps)
      sweeps.at_point(config, points[0])
    except UserError as error:  # the model cannot do the task
      found[cell] = str(error)
      continue
    rows = sweeps.sweep(config, points, out / 'cells' / cell.name)
    if rows is None:
      return None
    found[cell] = _result(cell, rows)
  out.mkdir(parents=True, exist_ok=True)
  write_atomically(out / 'atlas.csv', _csv(found))
  trained = {cell: one for cell, one in found.items() if isinstance(one, Result)}
  for task in dict.fromkeys(cell.task for cell in trained):
    figure = _picture([one for cell, one in trained.items() if cell.task == task])
    for suffix in ('png', 'svg'):
      figure.savefig(out / f'atlas_{task}.{suffix}', dpi=150)
  return found


def table(found: Mapping[Cell, Result | Reason]) -> str:
  """The cells for a terminal, with the best baseline that is known for each."""
  rows, reasons = [], []
  for cell, result in found.items():
    if isinstance(result, str):
      reasons.append(f'{cell.name}: {result}')
      continue
    best, loss = _best_baseline(result)
    rows.append(
      [
        cell.name,
        f'{result.num_params:,}',
        f'{result.learning_rate:g}',
        format_estimate(result.loss, result.stderr),
        f'{min(result.losses):.4f} … {max(result.losses):.4f}',
        f'{result.baselines["zero"]:.4f}' if 'zero' in result.baselines else '-',
        f'{best} {loss:.4f}',
      ]
    )
  header = 'cell', 'weights', 'rate', 'loss ± s.e.', 'seeds', 'zero', 'best baseline'
  return '\n'.join([format_table(rows, header), *reasons])


def _shorten(config: Config, num_steps: int) -> None:
  train, optimizer = config.train, config.optimizer
  train.num_steps = num_steps
  optimizer.warmup_steps = min(optimizer.warmup_steps, num_steps // 10)


def _result(cell: Cell, rows: Sequence[sweeps.Row]) -> Result | Reason:
  by_rate: dict[float, list[sweeps.Row]] = {}
  for row in rows:
    by_rate.setdefault(row['optimizer.learning_rate'], []).append(row)
  rate = min(by_rate, key=lambda rate: _held_out(by_rate[rate]))
  best = by_rate[rate]
  comparisons: list[Comparison] = [row['comparison'] for row in best]
  models = [one[MODEL] for one in comparisons]
  losses = [one['mean'][-1] for one in models]
  errors = [one['standard_error'][-1] for one in models]
  finite = [loss for loss in losses if loss is not None]
  if len(finite) < len(losses):
    return 'the loss is not finite'
  baselines = {}
  for name in comparisons[0]:
    values = [one[name]['mean'][-1] for one in comparisons]
    known = [value for value in values if value is not None]
    if name != MODEL and len(known) == len(values):
      baselines[name] = float(np.mean(known))
  stderr = math.sqrt(sum((error or 0.0) ** 2 for error in errors)) / len(errors)
  return Result(cell, best[0]['num_params'], rate, finite, stderr, baselines)


def _held_out(rows: Sequence[sweeps.Row]) -> float:
  """The mean loss of the seeds on held-out prompts; infinite if one has none."""
  risks = [row['eval_risk'] for row in rows]
  return math.inf if None in risks else float(np.mean(risks))


def _best_baseline(result: Result) -> tuple[str, float]:
  if 'bayes' in result.baselines:
    return 'bayes', result.baselines['bayes']
  return min(result.baselines.items(), key=lambda pair: pair[1])


def _csv(found: Mapping[Cell, Result | Reason]) -> str:
  names = dict.fromkeys(
    name
    for result in found.values()
    if isinstance(result, Result)
    for name in result.baselines
  )
  text = io.StringIO()
  columns = ['model', 'task', 'guess', 'num_params', 'learning_rate', 'loss', 'stderr']
  columns += ['losses', 'reason', *names]
  writer = csv.DictWriter(text, columns, lineterminator='\n')
  writer.writeheader()
  for cell, result in found.items():
    row: dict[str, Any] = cell._asdict()
    if isinstance(result, str):
      writer.writerow({**row, 'reason': result})
      continue
    row |= {name: getattr(result, name) for name in columns[3:7]}
    losses = ' '.join(f'{loss:.6g}' for loss in result.losses)
    writer.writerow({**row, 'losses': losses, **result.baselines})
  return text.getvalue()


def _picture(results: Sequence[Result]) -> Figure:
  """The losses of one task: a row a model, a mark a guess, a line a baseline."""
  ordered = sorted(results, key=lambda result: result.loss)
  models = list(dict.fromkeys(result.cell.model for result in ordered))
  most = max(result.loss + result.stderr for result in results)
  figure = Figure(figsize=(8, 1.5 + 0.28 * len(models)), layout='constrained')
  axes = figure.subplots()
  for guess, marker in zip((None, *_guesses(results)), 'osDv^', strict=False):
    of = [result for result in results if result.cell.guess == guess]
    if of:
      rows = [models.index(result.cell.model) for result in of]
      label = 'no choice of a guess' if guess is None else f'guess: {guess}'
      losses, errors = [r.loss for r in of], [r.stderr for r in of]
      axes.errorbar(losses, rows, xerr=errors, fmt=marker, label=label, alpha=0.75)
  for name, style in (('gd', '--'), ('bayes', '-'), ('zero', ':')):
    known = [r.baselines[name] for r in results if name in r.baselines]
    if known and np.median(known) < 1.5 * most:
      axes.axvline(float(np.median(known)), linestyle=style, color='0.5', label=name)
  axes.set_yticks(range(len(models)), models)
  axes.invert_yaxis()
  axes.set_xlim(left=0)
  axes.set_xlabel('loss at the query, mean of the seeds ± standard error')
  axes.set_title(results[0].cell.task)
  axes.grid(alpha=0.3)
  figure.legend(loc='outside right upper')
  return figure


def _guesses(results: Sequence[Result]) -> list[str]:
  found = dict.fromkeys(result.cell.guess for result in results)
  return [guess for guess in found if guess is not None]
