"""The rows of an atlas, which its CSV keeps, and what follows from them."""

import csv
import dataclasses
import io
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from zoo.core.errors import UserError
from zoo.core.tables import to_csv as write_csv
from zoo.measure.intervals import Estimate, estimate

# How the loss of a model is known, and then how that of a baseline is.
TRAINED, LOWEST, NOTHING = 'trained', 'lowest known', 'nothing'
EXACT, SAMPLED = 'exact', 'sampled'
# Shares are given by `LossScale.share`. Those below LEAST_SHARE are not told apart, and
# a model with a share below LIKE_BAYES counts as Bayes.
LEAST_SHARE = 1e-3
LIKE_BAYES = 0.01
# These columns of the CSV are computed from the losses, and are not read back.
_DERIVED = 'loss', 'low', 'high'


class Cell(NamedTuple):
  """A model, the task it is trained on, and its initial guess.

  Attributes:
    model: The name of the architecture.
    task: The name of the task.
    guess: The name of the initial guess. None for a model that takes no guess.
    context_length: The number of examples in a prompt. None stands for the task's own.
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
  """The losses of a model on a task after one budget of training, or of a baseline.

  Operations are floating-point operations in products of matrices.

  Attributes:
    model: The name of the model or of the baseline.
    task: The name of the task.
    guess: The initial guess. Empty if the model takes none.
    context_length: The number of examples in a prompt of training.
    known: How the loss is known. For a model: `trained`; `lowest known`, which is the
      lowest risk that theory has; or `nothing`, for the `reason` given. For a baseline:
      `exact` if a formula gives it, or `sampled`.
    weights: The number of weights.
    operations: The operations of a forward pass for one prompt.
    budget: The operations that each seed may spend on training. 0 if the row does not
      depend on a budget.
    steps: The training steps: as many as the budget pays for. Networks of linear
      attention have at most `MOST_STEPS`.
    training_operations: The operations of these steps.
    rate: The learning rate that the search chose.
    half_rate_loss: The held-out loss of the search at half of the rate.
    rate_loss: The held-out loss of the search at the rate.
    twice_rate_loss: The held-out loss of the search at twice the rate.
    at_edge: Whether the rate is the lowest or the highest that was tried at this
      budget, so that a rate beyond it may be better.
    losses: The loss of each seed, or one number if no seeds are needed.
    reason: Why there is no loss. Empty if there is one.
    lengths: Numbers of examples before the query.
    by_length: The mean loss over seeds after each of `lengths`.
    minutes: The minutes spent on the cell so far, including the search for the rate.
  """

  model: str
  task: str
  guess: str = ''
  context_length: int = 0
  known: str = TRAINED
  weights: int = 0
  operations: float = 0.0
  budget: float = 0.0
  steps: int = 0
  training_operations: float = 0.0
  rate: float = math.nan
  half_rate_loss: float = math.nan
  rate_loss: float = math.nan
  twice_rate_loss: float = math.nan
  at_edge: bool = False
  losses: tuple[float, ...] = ()
  reason: str = ''
  lengths: tuple[int, ...] = ()
  by_length: tuple[float, ...] = ()
  minutes: float = 0.0

  @property
  def is_model(self) -> bool:
    """Whether the row is of a model. False for a baseline."""
    return self.known not in (EXACT, SAMPLED)

  @property
  def is_capped(self) -> bool:
    """Whether the cap on steps left more than 5 % of the budget unspent."""
    return self.training_operations < 0.95 * self.budget

  @property
  def prompts(self) -> tuple[str, int]:
    """The task and the context length, which say what the prompts are."""
    return self.task, self.context_length

  @property
  def cell(self) -> tuple[str, str, str, int]:
    """The model, the task, the guess and the context length, without the budget."""
    return self.model, self.task, self.guess, self.context_length

  @property
  def loss(self) -> Estimate:
    """The mean loss over the seeds with its 95 % t interval.

    A loss without seeds, from a formula or of a baseline, has an interval of width 0.
    """
    if self.known in (EXACT, SAMPLED, LOWEST):
      return Estimate(self.losses[0], 0.0)
    return estimate(self.losses)


def to_csv(rows: Iterable[AtlasRow]) -> str:
  """Writes rows as CSV, with three columns more: the mean loss and its interval."""
  names = [field.name for field in dataclasses.fields(AtlasRow)]
  at = names.index('losses')
  return write_csv([*names[:at], *_DERIVED, *names[at:]], map(_cells, rows))


def _cells(row: AtlasRow) -> dict[str, str]:
  values = dataclasses.asdict(row)
  if row.losses and all(map(math.isfinite, row.losses)):
    ends = row.loss.mean, row.loss.low, row.loss.high
    values |= dict(zip(_DERIVED, ends, strict=True))
  return {name: _text(value) for name, value in values.items()}


def _text(value: Any) -> str:
  if isinstance(value, tuple):
    return ' '.join(f'{number:.8g}' for number in value)
  if isinstance(value, float):
    return f'{value:.8g}' if math.isfinite(value) else ''
  return str(value)


# The function for each type of a field that reads a value of it from the CSV.
_READERS: dict[Any, Callable[[str], Any]] = {
  str: str,
  int: int,
  bool: lambda text: {'True': True, 'False': False}[text],
  float: lambda text: float(text or 'nan'),
  tuple[int, ...]: lambda text: tuple(map(int, text.split())),
  tuple[float, ...]: lambda text: tuple(map(float, text.split())),
}


def from_csv(text: str, source: str) -> list[AtlasRow]:
  """Reads the rows that `to_csv` wrote.

  Args:
    text: The content of the CSV.
    source: The name of the file, for the error message.

  Returns:
    The rows in the order of the text.

  Raises:
    UserError: If the text lacks a column, or a cell cannot be read.
  """
  readers = {field.name: _READERS[field.type] for field in dataclasses.fields(AtlasRow)}
  try:
    return [
      AtlasRow(**{name: read(line[name]) for name, read in readers.items()})
      for line in csv.DictReader(io.StringIO(text))
    ]
  except (KeyError, ValueError, TypeError, AttributeError) as error:
    raise UserError(f'{source} is no table of an atlas: {error!r}') from None


def common_budgets(rows: Sequence[AtlasRow]) -> list[float]:
  """Returns the budgets with which every trained cell has a row, increasing."""
  budgets: dict[tuple[str, str, str, int], set[float]] = {}
  for row in rows:
    if row.budget:
      budgets.setdefault(row.cell, set()).add(row.budget)
  return sorted(set.intersection(*budgets.values())) if budgets else []


def at_budget(rows: Sequence[AtlasRow], budget: float | None = None) -> list[AtlasRow]:
  """Selects the rows of models at one budget.

  Rows of models that do not depend on a budget are included: lowest risks known from
  theory, and cells without a loss.

  Args:
    rows: The rows of an atlas.
    budget: The operations of training. None stands for the largest budget with which
      every trained cell has a row.

  Returns:
    The selected rows, in their order.
  """
  if budget is None:
    budget = max(common_budgets(rows), default=0.0)
  return [row for row in rows if row.is_model and row.budget in (0.0, budget)]


def baselines_of(
  rows: Sequence[AtlasRow], prompts: tuple[str, int]
) -> dict[str, AtlasRow]:
  """Returns the rows of the baselines on some prompts, by name of the baseline."""
  return {row.model: row for row in rows if row.prompts == prompts and not row.is_model}


class LossScale(NamedTuple):
  """The scale on which losses of one task are compared, from `without` to `floor`.

  Attributes:
    floor: The Bayes loss. 0 where it is not known.
    without: The loss without examples.
  """

  floor: float
  without: float

  def share(self, loss: float) -> float:
    """Returns (loss − floor) / (without − floor): 0 is Bayes, 1 is nothing learned."""
    return (loss - self.floor) / (self.without - self.floor)


def scale_of(rows: Sequence[AtlasRow], prompts: tuple[str, int]) -> LossScale:
  """Returns the scale of the losses on some prompts, from the rows of their baselines.

  The loss without examples is the lower of two: the loss of Bayes after 0 examples, and
  the loss of the prediction 0. On some tasks Bayes needs no examples, such as the
  parity of symbols that the query itself holds, or classes whose labels are fixed.
  There the loss without examples is the loss of the prediction 0.
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
  """Returns the share that `LossScale.share` gives as text with two digits."""
  return f'< {LEAST_SHARE:g}' if abs(share) < LEAST_SHARE else f'{share:.2g}'


def is_like_bayes(row: AtlasRow, rows: Sequence[AtlasRow]) -> bool:
  """Returns whether a trained model is as good as Bayes.

  It is if the upper end of its interval has a share below `LIKE_BAYES` (see
  `LossScale.share`). If the Bayes loss is sampled, its sampling error is ignored.
  """
  if row.known != TRAINED or 'bayes' not in baselines_of(rows, row.prompts):
    return False
  return scale_of(rows, row.prompts).share(row.loss.high) < LIKE_BAYES
