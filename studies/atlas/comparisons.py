"""What differs between rows of an atlas: models, and the guesses of one model."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from studies.atlas.results import (
  LEAST_SHARE,
  TRAINED,
  AtlasRow,
  at_budget,
  scale_of,
)
from zoo.measure.statistics import Interval, holm, interval, t_test, welch_test

REFERENCE = 'softmax'  # the model that others are compared with
# Networks of linear attention alone, which cannot add an offset to what they predict.
LINEAR_NETWORKS = 'deep_lsa', 'gd_plus_plus'


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
  of_pairs = [(logs[row.prompts], row.model) for row, _ in pairs]
  p_values = holm(
    [welch_test(log[model], log[REFERENCE], [*log.values()]) for log, model in of_pairs]
  )
  return [
    Difference(*pair, float(log[model].mean() - log[REFERENCE].mean()), p_value)
    for pair, (log, model), p_value in zip(pairs, of_pairs, p_values, strict=True)
  ]


def _is_finite(row: AtlasRow) -> bool:
  return bool(row.losses) and all(map(math.isfinite, row.losses))


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
    return interval(_differences(self))

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
  p_values = holm([t_test(_differences(effect)) for effect in effects])
  return [
    effect._replace(p_value=p) for effect, p in zip(effects, p_values, strict=True)
  ]


def _differences(change: GuessChange) -> list[float]:
  """The differences of the losses, paired by seed, and so by prompt."""
  pairs = zip(change.row.losses, change.reference.losses, strict=True)
  return [changed - other for changed, other in pairs]


class Pool(NamedTuple):
  """The models whose effects are pooled."""

  task: str
  context_length: int
  guess: str
  kind: str


def pooled(effects: Sequence[GuessChange]) -> dict[Pool, Interval]:
  """The mean share that a guess changes, over the models of a kind.

  The unit of the interval is the model; kinds of a single model are left out.
  """
  groups: dict[Pool, list[float]] = {}
  for effect in effects:
    pool = Pool(*effect.row.prompts, effect.row.guess, effect.kind)
    groups.setdefault(pool, []).append(effect.share.mean)
  return {pool: interval(of) for pool, of in groups.items() if len(of) > 1}
