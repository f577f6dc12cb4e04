"""Comparisons in an atlas: of models with softmax attention, and of guesses."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from studies.atlas.results import (
  LEAST_SHARE,
  TRAINED,
  AtlasRow,
  at_budget,
  scale_of,
)
from zoo.measure.statistics import (
  Estimate,
  Interval,
  estimate,
  holm,
  t_test,
  welch_test,
)

REFERENCE = 'softmax'  # the model with which others are compared
# These models have linear attention only, and cannot add an offset to a prediction.
LINEAR_NETWORKS = 'deep_lsa', 'gd_plus_plus'


class Difference(NamedTuple):
  """A model compared with softmax attention on the same task after the same budget.

  Attributes:
    row: The row of the model.
    reference: The row of softmax attention.
    gap: The mean log share of the model minus that of softmax attention. Shares are
      given by `LossScale.share`.
    p_value: The p value of Welch's t-test of `gap`, corrected by Holm's method over all
      models and tasks. NaN if it cannot be tested.
  """

  row: AtlasRow
  reference: AtlasRow
  gap: float
  p_value: float

  @property
  def word(self) -> str:
    """'lower' or 'higher' if p < 0.05, else 'not seen to differ'; empty if untested."""
    if math.isnan(self.p_value):
      return ''
    if self.p_value >= 0.05:
      return 'not seen to differ'
    return 'lower' if self.gap < 0 else 'higher'


def differences(rows: Sequence[AtlasRow]) -> list[Difference]:
  """Compares each trained model with softmax attention on the same prompts.

  The comparison is by log((loss − Bayes loss) / (loss without examples − Bayes loss)),
  after the largest budget with which every trained cell has a row. Shares below
  `LEAST_SHARE` count as `LEAST_SHARE`. Models that take an initial guess are compared
  with the guess 0. Rows with a loss that is infinite or NaN are left out.

  Returns:
    A difference for each model, task and context length.
  """
  shown = [
    row
    for row in at_budget(rows)
    if row.known == TRAINED and row.guess in ('', 'zero') and _is_finite(row)
  ]
  # The log shares of the seeds, by prompts and by model.
  logs: dict[tuple[str, int], dict[str, np.ndarray]] = {}
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
  of_pairs = [(logs[row.prompts], row.model) for row, _ in pairs]
  p_values = holm(
    [welch_test(log[model], log[REFERENCE], [*log.values()]) for log, model in of_pairs]
  )
  return [
    Difference(*pair, float(log[model].mean() - log[REFERENCE].mean()), p_value)
    for pair, (log, model), p_value in zip(pairs, of_pairs, p_values, strict=True)
  ]


def share_difference(rows: Sequence[AtlasRow], difference: Difference) -> Interval:
  """Returns the share of a model minus that of softmax attention, with its interval.

  This is the plain interval of Welch's t-test of the two mean shares. In contrast to
  `Difference.p_value` it has the variances of the two models themselves, and it is not
  corrected for the number of comparisons.

  Args:
    rows: The rows of the atlas.
    difference: The two rows that are compared, from `differences`.

  Returns:
    The difference of the means with its 95 % interval, whose ends are NaN if one of the
    models has a single seed.
  """
  share = scale_of(rows, difference.row.prompts).share
  own, reference = (
    [share(loss) for loss in row.losses]
    for row in (difference.row, difference.reference)
  )
  mean = float(np.mean(own) - np.mean(reference))
  if min(len(own), len(reference)) < 2:
    return Interval(mean, math.nan, math.nan)
  test = stats.ttest_ind(own, reference, equal_var=False)
  low, high = test.confidence_interval(0.95)
  return Interval(mean, float(low), float(high))


def _is_finite(row: AtlasRow) -> bool:
  return bool(row.losses) and all(map(math.isfinite, row.losses))


class GuessChange(NamedTuple):
  """The effect of an initial guess on the loss of one model.

  Attributes:
    row: The row of the model with the guess.
    reference: The row of the same model with the guess 0, after the same budget.
    p_value: The p value of a t-test paired by seed, corrected by Holm's method over all
      effects. NaN if it cannot be tested.
  """

  row: AtlasRow
  reference: AtlasRow
  p_value: float = math.nan

  @property
  def kind(self) -> str:
    """'linear attention' for the models in `LINEAR_NETWORKS`, else 'other models'."""
    is_linear = self.row.model in LINEAR_NETWORKS
    return 'linear attention' if is_linear else 'other models'

  @property
  def loss(self) -> Estimate:
    """The loss with the guess minus the loss without it, paired by seed and prompt."""
    return estimate(_differences(self))

  @property
  def share(self) -> Estimate:
    """`loss` divided by the loss with the guess 0, whose own error is ignored."""
    loss, whole = self.loss, self.reference.loss.mean
    return Estimate(loss.mean / whole, loss.stderr / whole, loss.num)


def changes(rows: Sequence[AtlasRow]) -> list[GuessChange]:
  """Returns the effect of each guess on each model that was also trained with guess 0.

  Losses are those after the largest budget with which every trained cell has a row.
  """
  shown = at_budget(rows)
  cells = {row.cell: row for row in shown if row.known == TRAINED and _is_finite(row)}
  effects = []
  for (model, task, guess, length), row in cells.items():
    zero = cells.get((model, task, 'zero', length))
    if guess != 'zero' and zero is not None:
      effects.append(GuessChange(row, zero))
  p_values = holm([t_test(_differences(effect)) for effect in effects])
  return [
    effect._replace(p_value=p) for effect, p in zip(effects, p_values, strict=True)
  ]


def _differences(change: GuessChange) -> list[float]:
  """Returns the loss of each seed with the guess minus its loss with the guess 0."""
  pairs = zip(change.row.losses, change.reference.losses, strict=True)
  return [changed - other for changed, other in pairs]


class Pool(NamedTuple):
  """The key of `pooled`: the models of one kind, on one task, with one guess."""

  task: str
  context_length: int
  guess: str
  kind: str


def pooled(effects: Sequence[GuessChange]) -> dict[Pool, Estimate]:
  """Returns the mean of `GuessChange.share` over the models of each kind.

  The 95 % intervals are over models. A kind with a single model is left out.
  """
  groups: dict[Pool, list[float]] = {}
  for effect in effects:
    pool = Pool(*effect.row.prompts, effect.row.guess, effect.kind)
    groups.setdefault(pool, []).append(effect.share.mean)
  return {pool: estimate(of) for pool, of in groups.items() if len(of) > 1}
