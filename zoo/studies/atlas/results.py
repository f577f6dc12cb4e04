"""The cells of an atlas, their results, and tables of them."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from zoo.core.tables import format_table
from zoo.measure.intervals import Interval, interval, seed_interval


class Cell(NamedTuple):
  """A model on a task, with a guess unless the model has no choice of one.

  `context_length` None means the task's own.
  """

  model: str
  task: str
  guess: str | None
  context_length: int | None = None

  @property
  def name(self) -> str:
    """The parts of the cell that are not None, separated by commas."""
    return ','.join(str(part) for part in self if part is not None)

  @property
  def prompts(self) -> str:
    """The name of the prompts: the task, and the context length if it is given."""
    if self.context_length is None:
      return self.task
    return f'{self.task}_c{self.context_length}'


# Why a cell has no result: its model does not fit the task, or training diverged.
Reason = str


class Result(NamedTuple):
  """The result of a cell: the losses of its seeds and of its task's baselines.

  All losses are on the same p prompts, at n numbers of examples.
  """

  cell: Cell
  num_params: int
  learning_rate: float  # the best of those tried
  num_steps: int
  seconds: float  # of training, for all seeds and learning rates together
  still_falls: bool  # in the last tenth of training, by more than the standard error
  context_length: int  # of training
  lengths: tuple[int, ...]
  losses: Float[np.ndarray, 's p n']  # NaN where there are too many examples
  baselines: Mapping[str, Float[np.ndarray, 'p n']]
  exact: Float[np.ndarray, 's n'] | None = None  # exact risks; NaN where unknown
  exact_baselines: Mapping[str, Float[np.ndarray, ' n']] | None = None  # the same
  lowest_known: float | None = None  # exact risk of models of this kind, if covered

  @property
  def trained(self) -> int:
    """The index of the context length of training."""
    return self.lengths.index(self.context_length)

  @property
  def by_seed(self) -> list[float]:
    """The loss of each seed after as many examples as in training."""
    exact = self.exact_at(self.trained)
    if exact is not None:
      return exact.tolist()
    return self.losses[:, :, self.trained].mean(axis=1).tolist()

  @property
  def loss(self) -> Interval:
    """The mean loss of the seeds after as many examples as in training."""
    return self.at(self.trained)

  @property
  def longest(self) -> Interval | None:
    """The loss after the most examples; None if the model cannot take them."""
    longest = self.at(-1)
    return None if math.isnan(longest.mean) else longest

  def exact_at(self, index: int) -> Float[np.ndarray, ' s'] | None:
    """The exact risk of each seed at a number of examples; None if it is not known."""
    if self.exact is None or not np.isfinite(self.exact[:, index]).all():
      return None
    return self.exact[:, index]

  def at(self, index: int) -> Interval:
    """The loss at a number of examples, with its 95 % interval over seeds and prompts.

    It is exact where theory covers the model; the interval is then over seeds alone.
    """
    exact = self.exact_at(index)
    if exact is not None:
      return interval(exact)
    return seed_interval(self.losses[:, :, index])

  def baseline(self, name: str, index: int | None = None) -> float:
    """The loss of a baseline, exact where it is known, else sampled.

    It is that at a number of examples, by default as many as in training.
    """
    index = self.trained if index is None else index
    exact = (self.exact_baselines or {}).get(name)
    if exact is not None and math.isfinite(exact[index]):
      return float(exact[index])
    return float(self.baselines[name][:, index].mean())

  @property
  def best_baseline(self) -> str:
    """Bayes where it is known, otherwise the baseline with the least loss."""
    if 'bayes' in self.baselines:
      return 'bayes'
    return min(self.baselines, key=self.baseline)

  @property
  def excess(self) -> float:
    """The share of the learnable loss that is not learned from examples.

    It is 0 at the loss of the best baseline, and 1 at the least loss of a baseline
    without examples, which for Bayes is the loss of predicting the prior mean.
    """
    best, without = self.baseline(self.best_baseline), self.without_examples
    return (self.loss.mean - best) / (without - best)

  @property
  def without_examples(self) -> float:
    """The loss of Bayes, or else the least loss of a baseline, before any example."""
    lines = [self.best_baseline] if 'bayes' in self.baselines else self.baselines
    return min(self.baseline(name, 0) for name in lines)


Results = Mapping[Cell, Result | Reason]


def trained_cells(found: Results) -> list[Result]:
  """The cells that have a result."""
  return [one for one in found.values() if isinstance(one, Result)]


def difference(one: Result, other: Result) -> Interval:
  """The loss of a cell minus that of another, with its 95 % interval.

  It is exact if both losses are, and otherwise on the same prompts. Seeds are paired:
  those of the same number start from the same key and train on the same prompts. Seeds
  that only one of the cells has are left out.
  """
  cells, num = (one, other), min(len(one.losses), len(other.losses))
  exact = [cell.exact_at(cell.trained) for cell in cells]
  if exact[0] is not None and exact[1] is not None:
    return interval(exact[0][:num] - exact[1][:num])
  first, second = (cell.losses[:num, :, cell.trained] for cell in cells)
  return seed_interval(first - second)


class Change(NamedTuple):
  """The effect of a guess: a cell, and the same cell with the guess 0."""

  result: Result
  reference: Result

  @property
  def label(self) -> str:
    """The guess; for linear attention, which has no choice, it is linear."""
    return f'guess: {self.result.cell.guess or "linear"}'

  @property
  def loss(self) -> Interval:
    """The loss minus that with the guess 0, by `difference`."""
    return difference(self.result, self.reference)

  @property
  def share(self) -> Interval:
    """`loss` as a share of the loss with the guess 0, whose own error is ignored."""
    whole = self.reference.loss.mean
    return Interval(*(end / whole for end in self.loss))


def changes(results: Sequence[Result]) -> list[Change]:
  """The effect of each guess, where the model was also trained with the guess 0."""
  by_cell = {one.cell: one for one in results}
  found = []
  for one in results:
    reference = by_cell.get(_with_guess_zero(one.cell))
    if reference is not None and reference is not one:
      found.append(Change(one, reference))
  return found


def _with_guess_zero(cell: Cell) -> Cell:
  if cell.model == 'yq_lsa':  # LSA with a trained guess (Definition 3)
    return cell._replace(model='lsa')
  return cell if cell.guess is None else cell._replace(guess='zero')


def table(found: Results) -> str:
  """The cells as a table for a terminal, each with its best known baseline."""
  reasons = [
    f'{cell.name}: {one}' for cell, one in found.items() if isinstance(one, str)
  ]
  results = trained_cells(found)
  header = 'cell', *COLUMNS
  rows = [[one.cell.name, *row_of(one)] for one in results]
  tables = [format_table(rows, header)]
  if found_changes := changes(results):
    tables.append(
      '\n' + format_table([*map(row_of_change, found_changes)], CHANGE_COLUMNS)
    )
  return '\n'.join([*tables, *reasons])


COLUMNS = (
  *('weights', 'rate', 'loss, ± 95 %', 'seeds', 'twice the examples'),
  *('zero', 'best baseline', 'time'),
)


def row_of(result: Result) -> list[str]:
  """The entries of `COLUMNS`."""
  best, longest = result.best_baseline, result.longest
  exact = ', exact risk' if result.exact_at(result.trained) is not None else ''
  falls = ', still falls' if result.still_falls else ''
  return [
    f'{result.num_params:,}',
    f'{result.learning_rate:g}',
    _format(result.loss) + exact + falls,
    f'{min(result.by_seed):.4f} … {max(result.by_seed):.4f}',
    '-' if longest is None else _format(longest),
    f'{result.baseline("zero"):.4f}',
    f'{best} {result.baseline(best):.4f}',
    f'{result.seconds:.0f} s',
  ]


CHANGE_COLUMNS = 'cell', 'guess 0', 'minus guess 0, ± 95 %', 'in %'


def row_of_change(change: Change) -> list[str]:
  """The entries of `CHANGE_COLUMNS`."""
  share = change.share
  return [
    change.result.cell.name,
    f'{change.reference.loss.mean:.4f}',
    _format(change.loss),
    _format(Interval(*(100 * end for end in share)), '+.1f', '.1f'),
  ]


def _format(found: Interval, form: str = '.4f', of_half: str = '.4f') -> str:
  """A mean ± half its interval; with one seed, for which none is known, says so."""
  mean = format(found.mean, form)
  if math.isinf(found.half):
    return f'{mean} (one seed)'
  return f'{mean} ± {format(found.half, of_half)}'


def to_csv(found: Results) -> str:
  """All cells as CSV: their losses by number of examples, and the baselines' losses."""
  trained = trained_cells(found)
  names = dict.fromkeys(name for one in trained for name in one.baselines)
  lengths = sorted({length for one in trained for length in one.lengths})
  curve = {length: f'loss_after_{length}' for length in lengths}
  columns = ['model', 'task', 'guess', 'num_params', 'learning_rate', 'num_steps']
  columns += ['seconds', 'still_falls', 'context_length', 'loss', 'low', 'high']
  columns += [
    'by_seed',
    'minus_guess_0',
    'minus_guess_0_low',
    'minus_guess_0_high',
    'reason',
    *(f'{name}_loss' for name in names),
    *curve.values(),
  ]
  of_guess = {change.result.cell: change.loss for change in changes(trained)}
  text = io.StringIO()
  writer = csv.DictWriter(text, columns, lineterminator='\n')
  writer.writeheader()
  for cell, one in found.items():
    row: dict[str, Any] = cell._asdict()
    if isinstance(one, str):
      writer.writerow({**row, 'reason': one})
      continue
    row |= {name: getattr(one, name) for name in columns[3:9]}
    row |= _ends('loss', 'low', 'high', one.loss)
    if change := of_guess.get(cell):
      name = 'minus_guess_0'
      row |= _ends(name, f'{name}_low', f'{name}_high', change)
    row['by_seed'] = ' '.join(f'{loss:.6g}' for loss in one.by_seed)
    row |= {f'{name}_loss': one.baseline(name) for name in one.baselines}
    means = {n: one.at(i).mean for i, n in enumerate(one.lengths)}
    row |= {curve[n]: mean for n, mean in means.items() if not math.isnan(mean)}
    writer.writerow(row)
  return text.getvalue()


def _ends(mean: str, low: str, high: str, found: Interval) -> dict[str, float]:
  """An interval by the names of its columns; without its ends if it is unbounded."""
  row = dict(zip((mean, low, high), found, strict=True))
  return {name: value for name, value in row.items() if math.isfinite(value)}
