"""Comparisons in an atlas: of models with softmax attention, and of guesses."""

import math
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from studies.atlas.results import (
  LEAST_SHARE,
  TRAINED,
  AtlasRow,
  at_budget,
  scale_of,
)
from zoo.measure.intervals import Estimate, Interval, estimate
from zoo.measure.tests import holm, t_test

REFERENCE = 'softmax'  # the model with which others are compared
# These models have linear attention only, and cannot add an offset to a prediction.
LINEAR_NETWORKS = 'deep_lsa', 'gd_plus_plus'


class Difference(NamedTuple):
  """A model compared with softmax attention on the same task after the same budget.

  Attributes:
    row: The row of the model.
    reference: The row of softmax attention.
    share: The mean share of the model minus that of softmax attention, with its 95 %
      interval by Welch's t-test, which is not corrected for the number of comparisons.
      Shares are given by `LossScale.share`. The ends are NaN if it cannot be tested.
    p_value: The p value of the same test, corrected by Holm's method over all models
      and tasks. NaN if it cannot be tested.
  """

  row: AtlasRow
  reference: AtlasRow
  share: Interval
  p_value: float

  @property
  def word(self) -> str:
    """'lower' or 'higher' if p < 0.05, else 'not seen to differ'; empty if untested."""
    if math.isnan(self.p_value):
      return ''
    if self.p_value >= 0.05:
      return 'not seen to differ'
    return 'lower' if self.share.mean < 0 else 'higher'


def differences(rows: Sequence[AtlasRow]) -> list[Difference]:
  """Compares each trained model with softmax attention on the same prompts.

  The comparison is by (loss − Bayes loss) / (loss without examples − Bayes loss), after
  the largest budget with which every trained cell has a row. Shares below `LEAST_SHARE`
  count as `LEAST_SHARE`. Models that take an initial guess are compared with the guess
  0. Rows with a loss that is infinite or NaN are left out.

  Returns:
    A difference for each model, task and context length.
  """
  shown = [
    row
    for row in at_budget(rows)
    if row.known == TRAINED and row.guess in ('', 'zero') and _is_finite(row)
  ]
  references = {row.prompts: row for row in shown if row.model == REFERENCE}
  pairs = [
    (row, references[row.prompts])
    for row in shown
    if row.model != REFERENCE and row.prompts in references
  ]
  tests = [_welch(_shares(rows, row), _shares(rows, other)) for row, other in pairs]
  p_values = holm([p_value for _, p_value in tests])
  return [
    Difference(*pair, share, p_value)
    for pair, (share, _), p_value in zip(pairs, tests, p_values, strict=True)
  ]


def _shares(rows: Sequence[AtlasRow], row: AtlasRow) -> list[float]:
  """Returns what each seed of a row has not learned."""
  share = scale_of(rows, row.prompts).share
  return [max(share(loss), LEAST_SHARE) for loss in row.losses]


def _welch(first: list[float], second: list[float]) -> tuple[Interval, float]:
  """Returns the difference of two means with its interval, and the p value."""
  mean, counts = float(np.mean(first) - np.mean(second)), (len(first), len(second))
  if np.ptp(first) == np.ptp(second) == mean == 0 and min(counts) > 1:
    return Interval(0.0, 0.0, 0.0, 0.95), 1.0
  if np.ptp(first) == np.ptp(second) == 0 or min(counts) < 2:
    return Interval(
      mean, math.nan, math.nan, 0.95
    ), math.nan  # The variance is not known.
  with warnings.catch_warnings():
    # SciPy warns of equal samples, such as shares that all count as `LEAST_SHARE`.
    warnings.simplefilter('ignore', RuntimeWarning)
    test: Any = stats.ttest_ind(first, second, equal_var=False)
  low, high = test.confidence_interval(0.95)
  return Interval(mean, float(low), float(high), 0.95), float(test.pvalue)


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
