"""The cells of an atlas, what came out of them, and the table."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from zoo.intervals import Estimate, estimate
from zoo.tables import format_estimate, format_table


class Cell(NamedTuple):
  """A model on a task, with a guess unless the model has no choice.

  `context_length` None is that of the task.
  """

  model: str
  task: str
  guess: str | None
  context_length: int | None = None

  @property
  def name(self) -> str:
    """The parts that are given, with commas between them."""
    return ','.join(str(part) for part in self if part is not None)

  @property
  def prompts(self) -> str:
    """The name of the prompts: the task, and the context length if it is given."""
    if self.context_length is None:
      return self.task
    return f'{self.task}_c{self.context_length}'


# Why a cell has no result: what its model cannot do, or that training diverged.
Reason = str


class Result(NamedTuple):
  """What came out of a cell: losses of its seeds and of the baselines of its task.

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
  losses: Float[np.ndarray, 's p n']  # nan where the model cannot take so many examples
  baselines: Mapping[str, Float[np.ndarray, 'p n']]
  infimum: float | None = None  # exact, of the model's kind; None if it is not known

  @property
  def trained(self) -> int:
    """The index of the context length of training."""
    return self.lengths.index(self.context_length)

  @property
  def by_seed(self) -> list[float]:
    """The loss of each seed after as many examples as in training."""
    return self.losses[:, :, self.trained].mean(axis=1).tolist()

  @property
  def loss(self) -> Estimate:
    """The loss after as many examples as in training, the mean of the seeds."""
    return self.at(self.trained)

  @property
  def longest(self) -> Estimate | None:
    """The loss after the most examples; None if the model cannot take them."""
    longest = self.at(-1)
    return None if math.isnan(longest.mean) else longest

  def at(self, index: int) -> Estimate:
    """The loss at a number of examples; its error is that of the sample of prompts."""
    return estimate(self.losses[:, :, index].mean(axis=0))

  def baseline(self, name: str) -> float:
    """The loss of a baseline after as many examples as in training."""
    return float(self.baselines[name][:, self.trained].mean())

  @property
  def best_baseline(self) -> str:
    """Bayes where it is known, otherwise the baseline of the least loss."""
    if 'bayes' in self.baselines:
      return 'bayes'
    return min(self.baselines, key=self.baseline)

  @property
  def excess(self) -> float:
    """What is not learned from examples: 0 as the best line, 1 as without examples.

    Without examples the loss is that of the best line before any, which for Bayes is
    that of predicting the mean of the prior.
    """
    best, without = self.baseline(self.best_baseline), self.without_examples
    return (self.loss.mean - best) / (without - best)

  @property
  def without_examples(self) -> float:
    """The loss of the best line before any example."""
    lines = [self.best_baseline] if 'bayes' in self.baselines else self.baselines
    return min(float(self.baselines[name][:, 0].mean()) for name in lines)


Results = Mapping[Cell, Result | Reason]


def trained_cells(found: Results) -> list[Result]:
  """The cells that have a result."""
  return [one for one in found.values() if isinstance(one, Result)]


def difference(one: Result, other: Result) -> Estimate:
  """The loss of a cell minus that of another on the same prompts.

  The standard error is that over prompts, of the difference of the seeds' means, and
  that over seeds, if there are several, added as independent errors are.
  """
  losses = [result.losses[:, :, result.trained] for result in (one, other)]
  of_prompts = estimate(losses[0].mean(axis=0) - losses[1].mean(axis=0))
  variances = [of_prompts.stderr**2]
  for loss in losses:
    if len(loss) > 1:
      variances.append(float(loss.mean(axis=1).var(ddof=1) / len(loss)))
  return Estimate(of_prompts.mean, math.sqrt(sum(variances)))


class Change(NamedTuple):
  """What a guess changes: a cell, and the same one with the guess 0."""

  result: Result
  reference: Result

  @property
  def guess(self) -> str:
    """The guess; that of linear attention, which has no choice, is linear."""
    return self.result.cell.guess or 'linear'

  @property
  def loss(self) -> Estimate:
    """The loss minus that with the guess 0, as `difference`."""
    return difference(self.result, self.reference)

  @property
  def share(self) -> Estimate:
    """The same as a share of the loss with the guess 0, whose error is left out."""
    mean, stderr = self.loss
    whole = self.reference.loss.mean
    return Estimate(mean / whole, stderr / whole)


def changes(results: Sequence[Result]) -> list[Change]:
  """What guesses change, of all cells whose model was also trained with the guess 0."""
  by_cell = {one.cell: one for one in results}
  found = []
  for one in results:
    reference = by_cell.get(_with_guess_zero(one.cell))
    if reference is not None and reference is not one:
      found.append(Change(one, reference))
  return found


def _with_guess_zero(cell: Cell) -> Cell:
  if cell.model == 'yq_lsa':  # it is LSA with a trained guess (Definition 3)
    return cell._replace(model='lsa')
  return cell if cell.guess is None else cell._replace(guess='zero')


def table(found: Results) -> str:
  """The cells for a terminal, with the best baseline that is known for each."""
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
  *('weights', 'rate', 'loss ± s.e.', 'seeds', 'twice the examples'),
  *('zero', 'best baseline', 'time'),
)


def row_of(result: Result) -> list[str]:
  """The entries of `COLUMNS`."""
  best, longest = result.best_baseline, result.longest
  falls = ', still falls' if result.still_falls else ''
  return [
    f'{result.num_params:,}',
    f'{result.learning_rate:g}',
    format_estimate(*result.loss) + falls,
    f'{min(result.by_seed):.4f} … {max(result.by_seed):.4f}',
    '-' if longest is None else format_estimate(*longest),
    f'{result.baseline("zero"):.4f}',
    f'{best} {result.baseline(best):.4f}',
    f'{result.seconds:.0f} s',
  ]


CHANGE_COLUMNS = 'cell', 'guess 0', 'minus guess 0 ± s.e.', 'in %'


def row_of_change(change: Change) -> list[str]:
  """The entries of `CHANGE_COLUMNS`."""
  share = change.share
  return [
    change.result.cell.name,
    f'{change.reference.loss.mean:.4f}',
    format_estimate(*change.loss),
    f'{100 * share.mean:+.1f} ± {100 * share.stderr:.1f}',
  ]


def to_csv(found: Results) -> str:
  """All cells: their losses by number of examples, and those of the baselines."""
  trained = trained_cells(found)
  names = dict.fromkeys(name for one in trained for name in one.baselines)
  lengths = sorted({length for one in trained for length in one.lengths})
  curve = {length: f'loss_after_{length}' for length in lengths}
  columns = ['model', 'task', 'guess', 'num_params', 'learning_rate', 'num_steps']
  columns += ['seconds', 'still_falls', 'context_length', 'loss', 'stderr', 'by_seed']
  columns += [
    'minus_guess_0',
    'minus_guess_0_stderr',
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
    row |= {'loss': one.loss.mean, 'stderr': one.loss.stderr}
    if change := of_guess.get(cell):
      row |= {'minus_guess_0': change.mean, 'minus_guess_0_stderr': change.stderr}
    row['by_seed'] = ' '.join(f'{loss:.6g}' for loss in one.by_seed)
    row |= {f'{name}_loss': one.baseline(name) for name in one.baselines}
    means = {n: one.at(i).mean for i, n in enumerate(one.lengths)}
    row |= {curve[n]: mean for n, mean in means.items() if not math.isnan(mean)}
    writer.writerow(row)
  return text.getvalue()
