"""Trains the cells of an atlas, measures them, and writes the results.

A cell is a sweep over seeds and learning rates. The learning rate with the least loss
on held-out prompts is chosen; the cell's losses are measured on other prompts, which
all cells of a task share.
"""

from __future__ import annotations

import math
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from zoo.config.validation import Config
from zoo.core.errors import UserError
from zoo.host.files import write_atomically
from zoo.host.interruption import Interruption
from zoo.host.parts import Part
from zoo.studies.atlas import measure, report
from zoo.studies.atlas.results import Cell, Reason, Result, to_csv
from zoo.studies.runner import each, history, run_in, sweep_in
from zoo.training import sweeps

# The config for the fields of a cell: model, task, guess and context length.
GetConfig = Callable[[str, str, str | None, int | None], Config]


class Grid(NamedTuple):
  """The cells to train, each once for each seed 0, 1, … and learning rate."""

  cells: Sequence[Cell]
  num_seeds: int
  learning_rates: Sequence[float]
  num_steps: int


def run(
  grid: Grid,
  get_config: GetConfig,
  out: str | os.PathLike[str],
  command: str,
  part: Part | None = None,
) -> dict[Cell, Result | Reason] | None:
  """Trains the cells that are not in the folder `out` yet, one after another.

  With a `part`, such as `Part(2, 4)`, it trains and measures only every fourth cell,
  from the second on, and writes no report; processes that share only the folder may
  have different parts.

  Writes `report.html`, `atlas.csv`, and each picture as PNG and SVG. `command` is the
  command that trains this grid, without the options that name a cell; the report shows
  it. Returns None after SIGTERM; the same call then resumes. Raises UserError for a
  folder of another grid, and otherwise the errors of `run_in` and `sweeps.sweep`.
  """
  cells = grid.cells if part is None else part.of(grid.cells)

  def work(
    out: pathlib.Path, interruption: Interruption
  ) -> dict[Cell, Result | Reason]:
    found: dict[Cell, Result | Reason] = {}
    for _, cell in each('cell', {cell.name: cell for cell in cells}, interruption):
      found[cell] = _train(cell, grid, get_config, out)
    if part is None:
      write_atomically(out / 'atlas.csv', to_csv(found))
      report.write(found, command, out)
    return found

  return run_in(out, work)


def _train(
  cell: Cell, grid: Grid, get_config: GetConfig, out: pathlib.Path
) -> Result | Reason:
  """Trains and measures a cell."""
  try:
    config, points = _planned(cell, grid, get_config)
  except UserError as error:  # the model cannot do the task
    return str(error)
  folder = out / 'cells' / cell.name
  try:
    rows = sweep_in(folder, config, points)
  except sweeps.LostPointsError as error:
    rows = error.rows
  best = _at_best_rate(rows, grid.num_seeds)
  if not best:
    return 'a seed stopped being finite at each learning rate'
  seconds = max(row['wall_time'] for row in rows)
  result = _measured(cell, config, best, seconds, out)
  return result if np.isfinite(result.by_seed).all() else 'the loss is not finite'


def _planned(
  cell: Cell, grid: Grid, get_config: GetConfig
) -> tuple[Config, list[sweeps.Point]]:
  """The config of a cell and the points of its sweep; raises UserError."""
  config = get_config(*cell)
  config.train.num_steps = grid.num_steps
  config.optimizer.warmup_steps = min(
    config.optimizer.warmup_steps, grid.num_steps // 10
  )
  # Evaluated ten times during training, to see whether the loss still falls. The
  # comparison with baselines is made here, on the same prompts for all cells.
  config.eval.every, config.eval.num_compared = max(config.train.num_steps // 10, 1), 0
  axes = {
    'seed': list(range(grid.num_seeds)),
    'optimizer.learning_rate': list(grid.learning_rates),
  }
  points = sweeps.grid(axes)
  sweeps.at_point(config, points[0])
  return config, points


def _at_best_rate(rows: Sequence[sweeps.Row], num_seeds: int) -> list[sweeps.Row]:
  """The runs at the learning rate with the least loss on held-out prompts.

  A rate at which a seed diverged is not chosen; empty if there is no other.
  """
  by_rate: dict[float, list[sweeps.Row]] = {}
  for row in rows:
    by_rate.setdefault(row['optimizer.learning_rate'], []).append(row)
  whole = [found for found in by_rate.values() if len(found) == num_seeds]
  return min(whole, key=_held_out, default=[])


def _measured(
  cell: Cell,
  config: Config,
  best: Sequence[sweeps.Row],
  seconds: float,
  out: pathlib.Path,
) -> Result:
  """What the chosen runs of a cell and the baselines of its task reach."""
  folders = [row['workdir'] for row in best]
  rate = best[0]['optimizer.learning_rate']
  cells, baselines, kept = out / 'cells' / cell.name, out / 'baselines', measure.kept
  return Result(
    cell,
    num_params=best[0]['num_params'],
    learning_rate=rate,
    num_steps=config.train.num_steps,
    seconds=seconds,
    still_falls=_still_falls(best),
    context_length=config.task.context_length,
    lengths=measure.lengths_of(config.task.context_length),
    losses=kept(
      cells / f'losses_{rate:g}.npz',
      config,
      lambda: {'losses': measure.model_losses(config, folders)},
    )['losses'],
    baselines=kept(
      baselines / f'{cell.prompts}.npz',
      config.task,
      lambda: measure.baseline_losses(config),
    ),
    exact=kept(
      cells / f'exact_{rate:g}.npz',
      config,
      lambda: {'exact': measure.exact_model_losses(config, folders)},
    )['exact'],
    exact_baselines=kept(
      baselines / f'{cell.prompts}_exact.npz',
      config.task,
      lambda: measure.exact_baseline_losses(config),
    ),
    # Only for models of linear attention, which have no choice of a guess.
    lowest_known=None if cell.guess is not None else measure.lowest_known(config),
  )


def _held_out(rows: Sequence[sweeps.Row]) -> float:
  """The mean loss of the seeds on held-out prompts; infinite if a seed has none."""
  risks = [row['eval_risk'] for row in rows]
  return math.inf if None in risks else float(np.mean(risks))


def _still_falls(rows: Sequence[sweeps.Row]) -> bool:
  """Whether the held-out loss fell by more than its error in the last tenth of steps.

  Both losses are on the same prompts, so this error is an overestimate.
  """
  falls = []
  for row in rows:
    steps, risks = history(row)
    before = [
      risk for step, risk in zip(steps, risks, strict=True) if step <= 0.9 * row['step']
    ]
    if not before or row['eval_risk'] is None:
      return False
    falls.append(before[-1] - row['eval_risk'])
  errors = [row['eval_risk_stderr'] for row in rows]
  if None in errors:  # unknown: it may be of any size
    return False
  error = math.sqrt(sum(error**2 for error in errors)) / len(errors)
  return float(np.mean(falls)) > error
