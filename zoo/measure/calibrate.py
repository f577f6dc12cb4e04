"""Calibration: whether events happen as often as a predictor says."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from zoo.core.distributions import Classes, Distribution
from zoo.core.errors import UserError, check_count
from zoo.core.prompt import Prompt
from zoo.core.protocols import Predictor, Task, require_task
from zoo.measure.comparison import MODEL
from zoo.measure.intervals import Estimate, Interval, wilson
from zoo.measure.predict import check_predictor
from zoo.measure.predictive import (
  check_not_nan,
  check_unknown,
  described,
  is_known,
  labels_for,
  measure_batches,
  with_drawn_labels,
)
from zoo.measure.table import Rows, WithRows

_NUM_RESAMPLED = 500
# With 5 prompts, Wilson's 95 % intervals of nearly sure classes contain the truth in
# 0.91 of draws, and with 10 in 0.94.
_LEAST_PROMPTS = 10
_LEAST_IN_BIN = 5  # The chi-squared test needs this number of expected labels in a bin.


class PitBin(NamedTuple):
  """A bin of the probability integral transform, and the share of labels in it.

  It is a row of a `PitHistogram`.

  Attributes:
    low: The lower end of the bin, from 0 to 1.
    high: The upper end of the bin.
    share: The share of labels whose probability of a smaller label is in the bin. Its ±
      reaches the farther end of Wilson's 95 % interval.
  """

  low: float
  high: float
  share: Interval | Estimate


@dataclasses.dataclass(frozen=True)
class PitHistogram(WithRows):
  """The histogram of the probability integral transform of labels that are numbers.

  `calibration` returns it for labels that are numbers. It prints as a table, with the
  p-value below. `records` returns the rows as dictionaries, `to_frame` as a data frame
  of pandas, and `to_csv` writes them to a file.

  Attributes:
    bins: Bins of equal width. With n bins each has the share 1/n if the distributions
      are calibrated.
    p_value: The p-value of the chi-squared test that all shares are 1/n.
    num_prompts: The number of labels.
  """

  bins: tuple[PitBin, ...]
  p_value: float
  num_prompts: int

  @property
  def rows(self) -> Rows[PitBin]:
    """The bins, as a table."""
    return Rows(self.bins)

  @property
  def footer(self) -> str:
    """The result of the test."""
    return f'chi-squared test that all shares are equal: p = {self.p_value:.3g}'

  def __repr__(self) -> str:
    return str(self)


class ConfidenceBin(NamedTuple):
  """The predictions whose most probable class has a probability in a bin.

  It is a row of a `Reliability`.

  Attributes:
    low: The lower end of the bin, from 0 to 1.
    high: The upper end of the bin.
    num_prompts: The number of predictions in the bin.
    confidence: The mean probability of the most probable class; NaN without
      predictions.
    accuracy: The share of labels that are that class. Its ± reaches the farther end of
      Wilson's 95 % interval. None without predictions.
  """

  low: float
  high: float
  num_prompts: int
  confidence: float
  accuracy: Interval | Estimate | None


@dataclasses.dataclass(frozen=True)
class Reliability(WithRows):
  """How often the most probable class is the label, by its probability.

  `calibration` returns it for classes and signs. It prints as a table, with the error
  below. `records` returns the rows as dictionaries, `to_frame` as a data frame of
  pandas, and `to_csv` writes them to a file.

  Attributes:
    bins: Bins of equal width, from 0 to 1.
    ece: The expected calibration error, `Σ share of a bin · |accuracy − confidence|`
      (Naeini et al., 2015; Guo et al., arXiv 1706.04599). It is a sum of absolute
      values: its expectation is too large, and it is not normal near 0, so that it has
      no 95 % interval. Compare it with `null` instead.
    null: The 95 % quantile of the error of a calibrated predictor with these
      probabilities, on as many prompts. It is above 0, since labels are random.
    num_prompts: The number of labels.
  """

  bins: tuple[ConfidenceBin, ...]
  ece: float
  null: float
  num_prompts: int

  @property
  def rows(self) -> Rows[ConfidenceBin]:
    """The bins that hold a prediction, as a table."""
    return Rows(each for each in self.bins if each.num_prompts)

  @property
  def footer(self) -> str:
    """The error, and that of a calibrated predictor."""
    return (
      f'expected calibration error {self.ece:.3g}; of a calibrated predictor at '
      f'most {self.null:.3g} (95 %)'
    )

  def __repr__(self) -> str:
    return str(self)


def calibration(
  predictor: Predictor,
  task: Task,
  num_prompts: int = 4096,
  seed: int = 0,
  *,
  num_bins: int = 10,
) -> PitHistogram | Reliability:
  """Measures whether events happen as often as a predictor says.

  For labels that are numbers the result is the histogram of u = P(label ≤ the observed
  label), the probability integral transform. For a calibrated predictor u is uniform on
  (0, 1). A distribution that is too narrow has too many labels in the outer bins. For
  classes the result is how often the most probable class is the label, by its
  probability.

  Args:
    predictor: A predictor with a distribution (see `zoo.distribution`).
    task: The task from which prompts and labels are drawn.
    num_prompts: The number of prompts, at least 10. For labels that are numbers the
      chi-squared test needs at least 5 for each bin.
    seed: The seed of the prompts and their labels, ≥ 0.
    num_bins: The number of bins of equal width between 0 and 1, ≥ 2.

  Returns:
    A `PitHistogram` for numbers, and a `Reliability` for classes and signs.
    `zoo.reports.calibration_plots.plot_calibration` draws both.

  Raises:
    UserError: If the predictor has no distribution of numbers or of classes, if labels
      are not drawn or are known (their standard deviation is 0), or if there are too
      few prompts.

  Example:
    >>> task = zoo.create_task(
    ...   'linear_regression', num_features=2, context_length=4, noise_std=0.5
    ... )
    >>> result = zoo.calibration(task.baselines()['bayes'], task, num_prompts=512)
    >>> print(f'p = {result.p_value:.2f}')
    p = 0.43
  """
  check_predictor(predictor)
  num_prompts = check_count('num_prompts', num_prompts, minimum=_LEAST_PROMPTS)
  require_task(task)
  num_bins = check_count('num_bins', num_bins, minimum=2)
  if task.label_kind == 'numbers':
    if num_prompts < _LEAST_IN_BIN * num_bins:
      raise UserError(
        f'num_prompts is {num_prompts}; the chi-squared test of {num_bins} bins needs '
        f'at least {_LEAST_IN_BIN * num_bins}, which is {_LEAST_IN_BIN} for each bin'
      )
    known, shares = measure_batches(_below, [predictor], task, num_prompts, seed)
    check_unknown(MODEL, task, known[0])
    check_not_nan(MODEL, task, shares[0])
    return _histogram(shares[0], num_bins)
  confidence, correct = measure_batches(
    _best_class, [predictor], task, num_prompts, seed
  )
  check_not_nan(MODEL, task, confidence[0])
  return _reliability(confidence[0], correct[0], num_bins, seed)


def _below(
  predictors: Sequence[Predictor], prompt: Prompt, task: Task, key: Key[Array, '']
) -> list[Array]:
  (predictor,) = predictors
  said = described(predictor, prompt, task)
  assert isinstance(said, Distribution)
  below = said.cdf(with_drawn_labels(task, key, prompt).y_query)
  return [is_known(said)[None], below[None]]


def _best_class(
  predictors: Sequence[Predictor], prompt: Prompt, task: Task, key: Key[Array, '']
) -> list[Float[Array, '1 b']]:
  (predictor,) = predictors
  said = described(predictor, prompt, task)
  assert isinstance(said, Classes)
  labels = with_drawn_labels(task, key, prompt).y_query
  labels = labels_for(said, labels)
  p = said.probabilities
  best = jnp.argmax(p, axis=-1)[:, None]
  taken = [jnp.take_along_axis(array, best, axis=-1)[:, 0] for array in (p, labels)]
  return [array[None] for array in taken]


def _bins_of(shares: Float[np.ndarray, ' p'], num_bins: int) -> np.ndarray:
  """Returns which bin each share is in, as `[p, n]` of 0 and 1."""
  of_each = np.minimum((shares * num_bins).astype(int), num_bins - 1)
  return (of_each[:, None] == np.arange(num_bins)).astype(np.float64)


def _histogram(shares: Float[np.ndarray, ' p'], num_bins: int) -> PitHistogram:
  from scipy import stats  # It is slow to import.

  within = _bins_of(shares, num_bins)
  bins = tuple(
    PitBin(i / num_bins, (i + 1) / num_bins, wilson(within[:, i]))
    for i in range(num_bins)
  )
  test = stats.chisquare(within.sum(axis=0))
  return PitHistogram(bins, float(test.pvalue), len(shares))


def _reliability(
  confidence: Float[np.ndarray, ' p'],
  correct: Float[np.ndarray, ' p'],
  num_bins: int,
  seed: int,
) -> Reliability:
  within = _bins_of(confidence, num_bins)
  bins = []
  for i in range(num_bins):
    here = within[:, i] > 0
    bins.append(
      ConfidenceBin(
        i / num_bins,
        (i + 1) / num_bins,
        int(here.sum()),
        float(confidence[here].mean()) if here.any() else math.nan,
        wilson(correct[here]) if here.any() else None,
      )
    )
  gaps = within * (correct - confidence)[:, None]
  # The null has labels of a calibrated predictor. They are drawn one set after the
  # other, since all sets together would take 4 GB for a million prompts.
  generator = np.random.default_rng(seed)
  calibrated = np.array(
    [
      ((generator.random(len(confidence)) < confidence) - confidence) @ within
      for _ in range(_NUM_RESAMPLED)
    ]
  )
  return Reliability(
    bins=tuple(bins),
    ece=float(np.abs(gaps.mean(axis=0)).sum()),
    null=float(np.quantile(np.abs(calibrated).sum(axis=1), 0.95) / len(confidence)),
    num_prompts=len(confidence),
  )
