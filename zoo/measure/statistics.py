"""Means over samples, with standard errors and confidence intervals.

Variances divide by n − 1, so that they are unbiased.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import ArrayLike, Float

from zoo.core.errors import UserError


class Estimate(NamedTuple):
  """A mean over samples."""

  mean: float
  stderr: float  # standard error of the mean; NaN for a single sample


class Interval(NamedTuple):
  """A mean over samples with a two-sided Student t confidence interval."""

  mean: float
  low: float
  high: float

  @property
  def half(self) -> float:
    """Half the width of the interval; infinite for a single sample."""
    return (self.high - self.low) / 2


def estimate(values: ArrayLike | Sequence[float]) -> Estimate:
  """The mean of samples `[n]` and its standard error, in float64."""
  values = np.asarray(values, np.float64)
  if values.size == 1:
    return Estimate(float(values.mean()), math.nan)
  stderr = float(values.std(ddof=1)) / math.sqrt(values.size)
  return Estimate(float(values.mean()), stderr)


def estimate_of_batches(
  means: np.ndarray, deviations: np.ndarray, count: int
) -> Estimate:
  """The mean of `count` samples, in batches of one size, and its standard error.

  Args:
    means: the mean of each batch `[n]`.
    deviations: the mean square of the deviations from it, of each batch `[n]`.
    count: the number of samples in all batches together.
  """
  means, deviations = np.asarray(means, np.float64), np.asarray(deviations, np.float64)
  mean = float(np.mean(means))
  if count == 1:
    return Estimate(mean, math.nan)
  # The variance within batches, and that of their means.
  variance = float(np.mean(deviations + np.square(means - mean)))
  return Estimate(mean, math.sqrt(variance / (count - 1)))


def ratio(part: Float[np.ndarray, ' p'], whole: Float[np.ndarray, ' p']) -> Estimate:
  """The ratio of two means over the same samples, and its error to the first order.

  NaN if the mean of the whole is 0.
  """
  mean = whole.mean()
  if mean == 0:
    return Estimate(math.nan, math.nan)
  share = float(part.mean() / mean)
  return Estimate(share, estimate((part - share * whole) / mean).stderr)


def interval(values: ArrayLike | Sequence[float], confidence: float = 0.95) -> Interval:
  """The mean of samples `[n]` with its t interval; unbounded for a single sample.

  For differences on the same prompts this is the interval of the paired t-test.
  """
  from scipy import special  # slow to import

  values = np.asarray(values, np.float64)
  if not values.size:
    raise UserError('there are no samples; an interval needs at least one')
  if values.size == 1:
    return Interval(float(values[0]), -math.inf, math.inf)
  mean, stderr = estimate(values)
  # The quantile of Student's t; scipy.stats has it, too, but takes long to import.
  half = float(special.stdtrit(values.size - 1, (1 + confidence) / 2)) * stderr
  return Interval(mean, mean - half, mean + half)


def holm(p_values: Sequence[float]) -> list[float]:
  """Holm's adjusted p values (Scand. J. Statist. 6, 1979): the j-th smallest of m
  times m − j + 1, and no less than the one before it.
  """
  adjusted, largest = [0.0] * len(p_values), 0.0
  for rank, place in enumerate(np.argsort(p_values, kind='stable').tolist()):
    largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
    adjusted[place] = largest
  return adjusted
