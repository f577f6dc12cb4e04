"""The rows of an atlas, which its CSV keeps, and what follows from them."""

import csv
import dataclasses
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from zoo.core.errors import UserError
from zoo.core.tables import to_csv as write_csv
from zoo.measure.intervals import Interval, holm, interval
from zoo.reports import Table

TRAINED, LOWEST, NOTHING = 'trained', 'lowest known', 'nothing'  # of models
EXACT, SAMPLED = 'exact', 'sampled'  # of baselines
REFERENCE = 'softmax'  # the model that others are compared with
# Networks of linear attention alone, which cannot add an offset to what they predict.
LINEAR_NETWORKS = 'deep_lsa', 'gd_plus_plus'
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
  zero, bayes = baselines['zero'].losses[0], baselines.get('bayes')
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


def adjusted(p_values: Sequence[float]) -> list[float]:
  """The p values by Holm over all that are not NaN, which stay NaN."""
  known = iter(holm([p_value for p_value in p_values if not math.isnan(p_value)]))
  return [p_value if math.isnan(p_value) else next(known) for p_value in p_values]


class Difference(NamedTuple):
  """A model beside softmax attention on the same task, after the same budget."""

  row: AtlasRow
  reference: AtlasRow
  gap: float  # of the mean logarithms of the shares that are not learned
  p_value: float  # of a t-test of these, by Holm over all

  @property
  def word(self) -> str:
    """'lower', 'higher', 'not seen to differ' (p ≥ 0.05), or empty if not tested."""
    if math.isnan(self.p_value):
      return ''
    if self.p_value >= 0.05:
      return 'not seen to differ'
    return 'lower' if self.gap < 0 else 'higher'


def differences(rows: Sequence[AtlasRow]) -> list[Difference]:
  """Each trained model beside softmax attention, both with the guess 0 if with any.

  They are compared after the largest common budget, by the logarithms of the shares
  that are not learned; shares below LEAST_SHARE count as that.
  """
  shown = [
    row
    for row in at_budget(rows)
    if row.known == TRAINED and row.guess in ('', 'zero') and _is_finite(row)
  ]
  logs: dict[tuple[str, int], dict[str, np.ndarray]] = {}  # by prompts and model
  for row in shown:
    share = scale_of(rows, row.prompts).share
    shares = [max(share(loss), LEAST_SHARE) for loss in row.losses]
    logs.setdefault(row.prompts, {})[row.model] = np.log(shares)
  references = {row.prompts: row for row in shown if row.model == REFERENCE}
  pairs = [
    (row, references[row.prompts])
    for row in shown
    if row.model != REFERENCE and row.prompts in references
  ]
  tests = [_welch(row.model, REFERENCE, logs[row.prompts]) for row, _ in pairs]
  p_values = adjusted([p_value for _, p_value in tests])
  return [
    Difference(*pair, gap, p_value)
    for pair, (gap, _), p_value in zip(pairs, tests, p_values, strict=True)
  ]


def _is_finite(row: AtlasRow) -> bool:
  return bool(row.losses) and all(map(math.isfinite, row.losses))


def _welch(
  model: str, reference: str, logs: Mapping[str, np.ndarray]
) -> tuple[float, float]:
  """The gap of two of the models of a task, and its p value; NaN for a single seed.

  This is Welch's t-test, but for one thing: no variance over seeds is taken to be less
  than the mean one of all models, since three seeds may be close together by chance.
  """
  gap = float(logs[model].mean() - logs[reference].mean())
  if min(len(logs[model]), len(logs[reference])) < 2:
    return gap, math.nan
  several = [log for log in logs.values() if len(log) > 1]
  num_free = sum(map(len, several)) - len(several)
  mean_variance = sum(np.sum((log - log.mean()) ** 2) for log in several) / num_free
  parts = []  # of the variance of the gap, with their degrees of freedom
  of_mean = 0.0  # what stands on the mean variance is one part
  for log in logs[model], logs[reference]:
    if (variance := log.var(ddof=1)) > mean_variance:
      parts.append((variance / len(log), len(log) - 1))
    else:
      of_mean += mean_variance / len(log)
  parts.append((of_mean, num_free))
  whole = sum(part for part, _ in parts)
  if whole == 0:
    return gap, float(gap == 0)
  degrees = whole**2 / sum(part**2 / free for part, free in parts)
  return gap, float(2 * stats.t.sf(abs(gap) / math.sqrt(whole), degrees))


class GuessChange(NamedTuple):
  """The effect of a guess: a cell, and one trained as long with the guess 0."""

  row: AtlasRow
  reference: AtlasRow
  p_value: float = math.nan  # of the paired t-test, by Holm over all effects

  @property
  def kind(self) -> str:
    """'linear attention' for networks of nothing else, or 'other models'."""
    is_linear = self.row.model in LINEAR_NETWORKS
    return 'linear attention' if is_linear else 'other models'

  @property
  def loss(self) -> Interval:
    """The difference of the losses, paired by seed, and so by prompt."""
    pairs = zip(self.row.losses, self.reference.losses, strict=True)
    return interval([changed - other for changed, other in pairs])

  @property
  def share(self) -> Interval:
    """`loss` as a share of the loss with the guess 0, whose own error is ignored."""
    mean, low, high = self.loss
    whole = self.reference.loss.mean
    return Interval(mean / whole, low / whole, high / whole)


def changes(rows: Sequence[AtlasRow]) -> list[GuessChange]:
  """The effect of each guess on each model that was also trained with the guess 0.

  Both are taken after the largest common budget.
  """
  shown = at_budget(rows)
  cells = {row.cell: row for row in shown if row.known == TRAINED and _is_finite(row)}
  effects = []
  for (model, task, guess, length), row in cells.items():
    zero = cells.get((model, task, 'zero', length))
    if guess != 'zero' and zero is not None:
      effects.append(GuessChange(row, zero))
  p_values = adjusted([_p_value(effect) for effect in effects])
  return [
    effect._replace(p_value=p) for effect, p in zip(effects, p_values, strict=True)
  ]


def _p_value(change: GuessChange) -> float:
  pairs = [*zip(change.row.losses, change.reference.losses, strict=True)]
  if len(pairs) < 2:
    return math.nan
  return float(stats.ttest_rel(*np.transpose(pairs)).pvalue)


class Pool(NamedTuple):
  """The models whose effects are pooled."""

  task: str
  context_length: int
  guess: str
  kind: str


def pooled(effects: Sequence[GuessChange]) -> dict[Pool, Interval]:
  """The mean share that a guess changes, over the models of a kind.

  The unit of the interval is the model.
  """
  groups: dict[Pool, list[float]] = {}
  for effect in effects:
    pool = Pool(*effect.row.prompts, effect.row.guess, effect.kind)
    groups.setdefault(pool, []).append(effect.share.mean)
  return {pool: interval(shares) for pool, shares in groups.items()}


def tables(rows: Sequence[AtlasRow]) -> list[Table]:
  """What guesses change, if any was changed, and the cells."""
  effects = changes(rows)
  return [*([_changes_table(effects)] if effects else []), _cells_table(rows)]


def _cells_table(rows: Sequence[AtlasRow]) -> Table:
  """The cells after each budget, and the baselines."""
  header = ('cell', 'loss, ± 95 %', 'beside softmax', 'weights', 'operations a prompt')
  header += ('operations', 'steps', 'rate', 'minutes')
  words = {id(one.row): one.word for one in differences(rows)}
  shown = sorted(rows, key=lambda row: (row.is_model, row.prompts, row.guess))
  cells = [_cells_of(row, words.get(id(row), '')) for row in shown]
  return Table(cells, header, 'cells and baselines')


def _cells_of(row: AtlasRow, word: str) -> list[str]:
  name = ','.join([row.model, row.task, *filter(None, [row.guess])])
  reason, _, _ = row.reason.partition('; ')
  loss, sizes, training = reason, ['', ''], ['', '', '', '']
  if row.losses:
    how = '' if row.known == TRAINED else f', {row.known}'
    loss = f'{_format(row.loss)}{how}'
    if row.weights:
      sizes = [f'{row.weights:,}', f'{row.operations:,.0f}']
    if row.steps:
      edge = ', at the edge' if row.at_edge else ''
      training = [f'{row.training_operations:.3g}', f'{row.steps:,}']
      training += [f'{row.rate:.2g}{edge}', f'{row.minutes:.1f}']
  return [f'{name}, C = {row.context_length}', loss, word, *sizes, *training]


def _changes_table(effects: Sequence[GuessChange]) -> Table:
  """What guesses change: the pooled effects first, then each with its p value."""
  rows = [
    [
      f'{pool.task}, {pool.guess}, C = {pool.context_length}: {pool.kind}',
      '',
      _percent(effect),
      '',
    ]
    for pool, effect in pooled(effects).items()
  ]
  for change in sorted(effects, key=lambda change: change.share.mean):
    name = f'{",".join(change.row.cell[:3])}, C = {change.row.context_length}'
    p_value = '' if math.isnan(change.p_value) else f'{change.p_value:.2g}'
    rows.append([name, _format(change.loss), _percent(change.share), p_value])
  header = 'cell', 'minus guess 0, ± 95 %', 'in %', 'p, by Holm'
  return Table(rows, header, 'what the guess changes, paired by seed and prompt')


def _percent(share: Interval) -> str:
  mean, low, high = share
  return _format(Interval(100 * mean, 100 * low, 100 * high), '.1f')


def _format(measured: Interval, form: str = '.3g') -> str:
  """A mean ± half its interval; no width if it is exact or from one seed."""
  if measured.half == 0 or math.isinf(measured.half):
    return f'{measured.mean:{form}}' + (' (one seed)' if measured.half else '')
  return f'{measured.mean:{form}} ± {measured.half:{form}}'
