"""The cells of an atlas, their results, and tables of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from zoo.core import tables
from zoo.measure.intervals import Interval, interval, seed_interval
from zoo.reports import Table


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
  results = trained_cells(found)
  texts = [cells_table(results).text()]
  if differences := changes(results):
    texts.append('\n' + changes_table(differences).text())
  return '\n'.join([*texts, *(': '.join(row) for row in reasons_table(found).rows)])


def cells_table(results: Sequence[Result], title: str = '') -> Table:
  """The losses of cells, each with its best known baseline."""
  header = (
    *('cell', 'weights', 'rate', 'loss, ± 95 %', 'seeds', 'twice the examples'),
    *('zero', 'best baseline', 'time'),
  )
  return Table([*map(_row, results)], header, title)


def _row(result: Result) -> list[str]:
  best, longest = result.best_baseline, result.longest
  exact = ', exact risk' if result.exact_at(result.trained) is not None else ''
  falls = ', still falls' if result.still_falls else ''
  return [
    result.cell.name,
    f'{result.num_params:,}',
    f'{result.learning_rate:g}',
    _format(result.loss) + exact + falls,
    f'{min(result.by_seed):.4f} … {max(result.by_seed):.4f}',
    '-' if longest is None else _format(longest),
    f'{result.baseline("zero"):.4f}',
    f'{best} {result.baseline(best):.4f}',
    f'{result.seconds:.0f} s',
  ]


def changes_table(found: Sequence[Change]) -> Table:
  """What guesses change."""
  rows = [
    [
      change.result.cell.name,
      f'{change.reference.loss.mean:.4f}',
      _format(change.loss),
      _format(Interval(*(100 * end for end in change.share)), '+.1f', '.1f'),
    ]
    for change in found
  ]
  header = 'cell', 'guess 0', 'minus guess 0, ± 95 %', 'in %'
  return Table(rows, header, 'what the guess changes, on the same prompts')


def reasons_table(found: Results) -> Table:
  """The cells without a result."""
  rows = [[cell.name, one] for cell, one in found.items() if isinstance(one, str)]
  return Table(rows, ('cell', 'why it has no result'))


def _format(found: Interval, form: str = '.4f', of_half: str = '.4f') -> str:
  """A mean ± half its interval; with one seed, for which none is known, says so."""
  mean = format(found.mean, form)
  if math.isinf(found.half):
    return f'{mean} (one seed)'
  return f'{mean} ± {format(found.half, of_half)}'


def to_csv(found: Results) -> str:
  """All cells as CSV: their losses by number of examples, and the baselines' losses."""
  trained = trained_cells(found)
  baselines = dict.fromkeys(name for one in trained for name in one.baselines)
  lengths = sorted({length for one in trained for length in one.lengths})
  columns = (
    *('model', 'task', 'guess', 'num_params', 'learning_rate', 'num_steps'),
    *('seconds', 'still_falls', 'context_length', 'loss', 'low', 'high', 'by_seed'),
    *('minus_guess_0', 'minus_guess_0_low', 'minus_guess_0_high', 'reason'),
    *(f'{name}_loss' for name in baselines),
    *(f'loss_after_{length}' for length in lengths),
  )
  of_guess = {change.result.cell: change.loss for change in changes(trained)}
  rows = [
    {**cell._asdict(), 'reason': one}
    if isinstance(one, str)
    else _csv_row(one, of_guess.get(cell))
    for cell, one in found.items()
  ]
  return tables.to_csv(columns, rows)


def _csv_row(one: Result, change: Interval | None) -> dict[str, Any]:
  row = {
    **one.cell._asdict(),
    'num_params': one.num_params,
    'learning_rate': one.learning_rate,
    'num_steps': one.num_steps,
    'seconds': one.seconds,
    'still_falls': one.still_falls,
    'context_length': one.context_length,
    'by_seed': ' '.join(f'{loss:.6g}' for loss in one.by_seed),
    **{f'{name}_loss': one.baseline(name) for name in one.baselines},
  }
  numbers = {'loss': one.loss.mean, 'low': one.loss.low, 'high': one.loss.high}
  if change is not None:
    numbers['minus_guess_0'] = change.mean
    numbers['minus_guess_0_low'] = change.low
    numbers['minus_guess_0_high'] = change.high
  numbers |= {f'loss_after_{n}': one.at(i).mean for i, n in enumerate(one.lengths)}
  # With one seed there are no ends; a model may not take so many examples.
  return row | {name: value for name, value in numbers.items() if math.isfinite(value)}
