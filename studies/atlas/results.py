"""The rows of an atlas, which its CSV keeps, and what follows from them."""

import csv
import dataclasses
import io
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from zoo.core.errors import UserError
from zoo.core.tables import to_csv as write_csv
from zoo.measure.statistics import Interval, interval

TRAINED, LOWEST, NOTHING = 'trained', 'lowest known', 'nothing'  # of models
EXACT, SAMPLED = 'exact', 'sampled'  # of baselines
LEAST_SHARE = 1e-3  # that is told apart from a smaller one
LIKE_BAYES = 0.01  # of what can be learned, within which a loss is like that of Bayes
_DERIVED = 'loss', 'low', 'high'  # columns that follow from the losses


class Cell(NamedTuple):
  """A model on a task, with a guess unless the model has no choice of one.

  `context_length` None means the task's own.
  """

  model: str
  task: str
  guess: str | None = None
  context_length: int | None = None

  @property
  def name(self) -> str:
    """The parts of the cell that are not None, separated by commas."""
    return ','.join(str(part) for part in self if part is not None)


@dataclasses.dataclass(frozen=True)
class AtlasRow:
  """A model after a budget, or a baseline, on a task; `known` says how.

  The loss of a model is trained, the lowest known exact risk, or nothing, for a
  `reason`. That of a baseline is from a formula or sampled. Operations are those of
  products of matrices.
  """

  model: str  # or a baseline
  task: str
  guess: str = ''  # empty if the model has no choice of one
  context_length: int = 0
  known: str = TRAINED
  weights: int = 0
  operations: float = 0.0  # a prompt
  budget: float = 0.0  # of operations of training, for each seed
  steps: int = 0  # the steps that have so many operations, or the most that are trained
  training_operations: float = 0.0  # of these steps
  rate: float = math.nan  # the learning rate
  half_rate_loss: float = math.nan  # held out, of the search at this budget
  rate_loss: float = math.nan
  twice_rate_loss: float = math.nan
  at_edge: bool = False  # of the rates that were tried: a further one may be better
  losses: tuple[float, ...] = ()  # of the seeds; one number if it is exact
  reason: str = ''  # why there is no loss
  lengths: tuple[int, ...] = ()  # numbers of examples, and the losses after them
  by_length: tuple[float, ...] = ()
  minutes: float = 0.0  # of the cell so far, its search included

  @property
  def is_model(self) -> bool:
    """Whether this is a model, not a baseline."""
    return self.known not in (EXACT, SAMPLED)

  @property
  def is_capped(self) -> bool:
    """Whether the budget has more operations than the most steps that are trained."""
    return self.training_operations < 0.95 * self.budget

  @property
  def prompts(self) -> tuple[str, int]:
    """What rows on the same prompts share."""
    return self.task, self.context_length

  @property
  def cell(self) -> tuple[str, str, str, int]:
    """What the budgets of a cell share."""
    return self.model, self.task, self.guess, self.context_length

  @property
  def loss(self) -> Interval:
    """The mean over the seeds with its interval; of what has no seeds without width."""
    if self.known in (EXACT, SAMPLED, LOWEST):
      risk = self.losses[0]
      return Interval(risk, risk, risk)
    return interval(self.losses)


def to_csv(rows: Iterable[AtlasRow]) -> str:
  """The rows as CSV, with each loss and its interval for readers."""
  names = [field.name for field in dataclasses.fields(AtlasRow)]
  at = names.index('losses')
  return write_csv([*names[:at], *_DERIVED, *names[at:]], map(_cells, rows))


def _cells(row: AtlasRow) -> dict[str, str]:
  values = dataclasses.asdict(row)
  if row.losses and all(map(math.isfinite, row.losses)):
    values |= dict(zip(_DERIVED, row.loss, strict=True))
  return {name: _text(value) for name, value in values.items()}


def _text(value: Any) -> str:
  if isinstance(value, tuple):
    return ' '.join(f'{number:.8g}' for number in value)
  if isinstance(value, float):
    return f'{value:.8g}' if math.isfinite(value) else ''
  return str(value)


# What reads a field of a row from its text, by its type.
_READERS: dict[Any, Callable[[str], Any]] = {
  str: str,
  int: int,
  bool: lambda text: {'True': True, 'False': False}[text],
  float: lambda text: float(text or 'nan'),
  tuple[int, ...]: lambda text: tuple(map(int, text.split())),
  tuple[float, ...]: lambda text: tuple(map(float, text.split())),
}


def from_csv(text: str, source: str) -> list[AtlasRow]:
  """The rows of `to_csv`; `source` names them in the message of UserError."""
  readers = {field.name: _READERS[field.type] for field in dataclasses.fields(AtlasRow)}
  try:
    return [
      AtlasRow(**{name: read(line[name]) for name, read in readers.items()})
      for line in csv.DictReader(io.StringIO(text))
    ]
  except (KeyError, ValueError, TypeError, AttributeError) as error:
    raise UserError(f'{source} is no table of an atlas: {error!r}') from None


def common_budgets(rows: Sequence[AtlasRow]) -> list[float]:
  """The budgets that all cells with budgets have, increasing."""
  budgets: dict[tuple[str, str, str, int], set[float]] = {}
  for row in rows:
    if row.budget:
      budgets.setdefault(row.cell, set()).add(row.budget)
  return sorted(set.intersection(*budgets.values())) if budgets else []


def at_budget(rows: Sequence[AtlasRow], budget: float | None = None) -> list[AtlasRow]:
  """The rows of models after a budget, by default the largest common one.

  Those without budgets are among them: values of theory, and cells that have no loss.
  """
  if budget is None:
    budget = max(common_budgets(rows), default=0.0)
  return [row for row in rows if row.is_model and row.budget in (0.0, budget)]


def baselines_of(
  rows: Sequence[AtlasRow], prompts: tuple[str, int]
) -> dict[str, AtlasRow]:
  """The baselines on some prompts, by name."""
  return {row.model: row for row in rows if row.prompts == prompts and not row.is_model}


class LossScale(NamedTuple):
  """The loss of Bayes, or 0 where that is not known, and the loss without examples."""

  floor: float
  without: float

  def share(self, loss: float) -> float:
    """The share of the learnable loss that is not learned."""
    return (loss - self.floor) / (self.without - self.floor)


def scale_of(rows: Sequence[AtlasRow], prompts: tuple[str, int]) -> LossScale:
  """The scale of the losses on some prompts, from the rows of their baselines.

  Without examples the loss is that of Bayes or of the prediction 0, the lower of the
  two; that of 0 where Bayes needs no examples, as for the parity of one's own symbols
  or for classes whose labels are known.
  """
  baselines = baselines_of(rows, prompts)
  zero = baselines['zero'].losses[0]
  bayes = baselines.get('bayes') or baselines.get('bayes_estimate')
  if bayes is None:
    return LossScale(0.0, zero)
  floor, without = bayes.losses[0], bayes.by_length[0]
  needs_examples = without - floor > LIKE_BAYES * (zero - floor)
  return LossScale(floor, min(without, zero) if needs_examples else zero)


def share_in_words(share: float) -> str:
  """A share of what can be learned, with two digits."""
  return f'< {LEAST_SHARE:g}' if abs(share) < LEAST_SHARE else f'{share:.2g}'


def is_like_bayes(row: AtlasRow, rows: Sequence[AtlasRow]) -> bool:
  """Whether the whole interval is less than 1 % of what can be learned above Bayes.

  The sampling error of a Bayes loss without a formula is ignored.
  """
  if row.known != TRAINED or 'bayes' not in baselines_of(rows, row.prompts):
    return False
  return scale_of(rows, row.prompts).share(row.loss.high) < LIKE_BAYES
