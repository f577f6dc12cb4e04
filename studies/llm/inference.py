"""The weight that an answer gives to the guess."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from zoo.measure.intervals import Estimates, estimate
from zoo.measure.tests import t_test


class Weights(NamedTuple):
  """The weights of a least-squares fit of answers, all None if not determined.

  Attributes:
    guess_weight: The weight of the guess.
    guess_weight_stderr: Its standard error.
    own_weight: The weight of the answer to the same prompt without guesses.
    own_weight_stderr: Its standard error.
  """

  guess_weight: float | None = None
  guess_weight_stderr: float | None = None
  own_weight: float | None = None
  own_weight_stderr: float | None = None


def weights(
  guess: Float[np.ndarray, ' n'],
  own: Float[np.ndarray, ' n'],
  answer: Float[np.ndarray, ' n'],
) -> Weights:
  """Fits `answer = a·guess + b·own + c` over prompts, by least squares.

  Copying the guess means a = 1 and b = 0, ignoring it a = 0 and b = 1.

  Args:
    guess: The guess of each query.
    own: The answer to each prompt without guesses.
    answer: The answer to each prompt with guesses.

  Returns:
    The weights a and b with standard errors that assume equal variances. All are None
    if the guess or the own answer is constant, if one is a linear function of the
    other, or if there are too few prompts.
  """
  fit = least_squares(np.stack([guess, own, np.ones(len(answer))], axis=1), answer)
  if fit is None:
    return Weights()
  (a, b, _), (a_error, b_error, _) = fit.mean.tolist(), fit.stderr.tolist()
  return Weights(a, a_error, b, b_error)


def least_squares(
  inputs: Float[np.ndarray, 'n m'], targets: Float[np.ndarray, ' n']
) -> Estimates | None:
  """Returns the coefficients of a linear fit, with standard errors.

  The errors assume that all targets have the same variance.

  Args:
    inputs: The regressors `[n, m]`.
    targets: The targets `[n]`.

  Returns:
    The m coefficients. None if the inputs do not determine them, or if there are not
    more targets than coefficients.
  """
  n, m = inputs.shape
  sizes = np.maximum(np.abs(inputs).max(axis=0, initial=0.0), 1e-300)
  scaled = inputs / sizes
  # Rounding may leave differences of 1e-15 in a constant column.
  if n <= m or np.linalg.matrix_rank(scaled, rtol=1e-9) < m:
    return None
  fitted, *_ = np.linalg.lstsq(scaled, targets)
  errors = targets - scaled @ fitted
  covariance = np.linalg.inv(scaled.T @ scaled) * (errors @ errors) / (n - m)
  return Estimates(fitted / sizes, np.sqrt(np.diag(covariance)) / sizes)


def paired_test(differences: Float[np.ndarray, ' n']) -> float | None:
  """Returns the two-sided p value of a paired test; None below two differences.

  If one of the differences is NaN, so is the p value.

  It is the t test. If all differences that are not 0 have one size, as they do for
  losses 0 and 1, it is the exact sign test: McNemar's exact test.
  """
  if len(differences) < 2:
    return None
  if not differences.any():
    return 1.0
  if (signs := _sign_test(differences)) is not None:
    return float(signs.pvalue)
  return t_test(differences)


def paired_interval(
  differences: Float[np.ndarray, ' n'], confidence: float
) -> tuple[float, float] | None:
  """Returns an interval of the mean of paired differences, for use with `paired_test`.

  It is the interval of the t test, unless all differences that are not 0 have one size,
  as they do for losses 0 and 1. Then it is that size times Tango's score interval for
  the difference of two paired proportions. If b of the n differences are positive and c
  are negative, this interval holds every mean δ from −1 to 1 with

      (b − c − nδ)² ≤ z² n (2q + δ(1 − δ)),

  where z is the quantile of the normal distribution at (1 + confidence)/2, and q is the
  probability of a negative difference at which the likelihood is largest, given δ:

      q = (√(B² + 8ncδ(1 − δ)) − B) / 4n  with  B = (2n − b + c)δ − b − c.

  The interval is extended to 0 if `paired_test` does not reject 0 at the level
  1 − confidence. So no interval leaves out 0 while the p value is above this level.

  Args:
    differences: The differences `[n]`.
    confidence: The confidence of the interval, from 0 to 1.

  Returns:
    The lower and the upper end. None if all differences are 0, or if there are fewer
    than two.

  Example:
    >>> gains = np.repeat([1.0, 0.0], [5, 995])
    >>> low, high = paired_interval(gains, 0.95)
    >>> print(f'{gains.mean():.4f} from {low:.4f} to {high:.4f}')
    0.0050 from 0.0000 to 0.0117

  References:
    Tango, Statistics in Medicine 17 (1998), 891–908.
  """
  if len(differences) < 2 or not differences.any():
    return None
  if (signs := _sign_test(differences)) is None:
    ends = estimate(differences).interval(confidence)
    return ends.low, ends.high
  positive, negative = int((differences > 0).sum()), int((differences < 0).sum())
  low, high = _score_interval(positive, negative, len(differences), confidence)
  if signs.pvalue > 1 - confidence:
    low, high = min(low, 0.0), max(high, 0.0)
  size = float(np.abs(differences).max())
  return size * low, size * high


def _score_interval(
  positive: int, negative: int, count: int, confidence: float
) -> tuple[float, float]:
  """Returns Tango's score interval for the mean of differences −1, 0 and 1.

  `paired_interval` has the formula.
  """
  from scipy import special  # It is slow to import.

  z = float(special.ndtri((1 + confidence) / 2))

  def holds(mean: float) -> bool:
    linear = (2 * count - positive + negative) * mean - positive - negative
    constant = 8 * count * negative * mean * (1 - mean)
    q = (math.sqrt(max(linear**2 + constant, 0.0)) - linear) / (4 * count)
    variance = count * (2 * q + mean * (1 - mean))
    return (positive - negative - count * mean) ** 2 <= z**2 * variance

  ends = []
  for limit in -1.0, 1.0:
    inside, outside = (positive - negative) / count, limit
    if holds(limit):
      inside = limit
    # Each step halves the distance, at first 2 at most, so that it ends below 1e-15.
    for _ in range(52):
      middle = (inside + outside) / 2
      inside, outside = (middle, outside) if holds(middle) else (inside, middle)
    ends.append(inside)
  return ends[0], ends[1]


def _sign_test(differences: Float[np.ndarray, ' n']) -> Any:
  """Returns SciPy's test of signs if all differences that are not 0 have one size.

  At least one must not be 0. The result is None for other differences.
  """
  from scipy import stats  # It is slow to import.

  nonzero = differences[differences != 0]
  if np.isnan(nonzero).any() or len(np.unique(np.abs(nonzero))) > 1:
    return None
  return stats.binomtest(int((nonzero > 0).sum()), len(nonzero))
