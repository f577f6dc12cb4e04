"""Means over samples, with standard errors and confidence intervals.

Variances divide by n − 1, so that they are unbiased.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import ArrayLike, Float
from scipy import stats

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
  return Estimate(float(values.mean()), float(stats.sem(values.ravel())))


def estimate_from_moments(mean: float, mean_square: float, count: int) -> Estimate:
  """Like `estimate`, from the mean of `count` samples and the mean of their squares."""
  if count == 1:
    return Estimate(mean, math.nan)
  # Rounding may make the difference slightly negative.
  return Estimate(mean, math.sqrt(max(mean_square - mean**2, 0.0) / (count - 1)))


def interval(values: ArrayLike | Sequence[float], confidence: float = 0.95) -> Interval:
  """The mean of samples `[n]` with its t interval; unbounded for a single sample.

  For differences on the same prompts this is the interval of the paired t-test.
  """
  values = np.asarray(values, np.float64)
  if not values.size:
    raise UserError('there are no samples; an interval needs at least one')
  if values.size == 1:
    return Interval(float(values[0]), -math.inf, math.inf)
  mean, stderr = estimate(values)
  half = float(stats.t.ppf((1 + confidence) / 2, values.size - 1)) * stderr
  return Interval(mean, mean - half, mean + half)


def seed_interval(
  losses: Float[ArrayLike, 's p'], confidence: float = 0.95
) -> Interval:
  """The mean of the losses of s seeds on the same p ≥ s prompts, with a t interval.

  It covers new seeds and new prompts, and has s − 1 degrees of freedom. For a single
  seed it is unbounded.
  """
  losses = np.asarray(losses, np.float64)
  mean, half = seed_bounds(losses, confidence)
  return Interval(float(mean), float(mean - half), float(mean + half))


def seed_bounds(
  losses: Float[np.ndarray, '*b s p'], confidence: float = 0.95
) -> tuple[Float[np.ndarray, '*b'], Float[np.ndarray, '*b']]:
  """The mean and half the width of `seed_interval`, for a batch of them.

  Losses are taken as `mean + seed + prompt + rest`, all normal. The means of the seeds
  differ by `seed` and by the mean of `rest`, but not by that of `prompt`, since all
  seeds have the same prompts. So each is moved by the amount by which its own share of
  the prompts (every s-th one) differs from all, times k. These amounts are independent
  of the differences between seeds and of the mean of all; k is chosen so that the
  variance of the moved means is s times that of the mean of all. Then `(mean − truth) /
  (s.d. of the moved means / √s)` has Student's t distribution with s − 1 degrees of
  freedom, however large the four parts are.
  """
  *_, s, p = losses.shape
  by_seed, by_prompt = losses.mean(axis=-1), losses.mean(axis=-2)
  mean = np.asarray(by_seed.mean(axis=-1))
  if s == 1:
    return mean, np.full_like(mean, math.inf)
  rest = losses - by_seed[..., None] - by_prompt[..., None, :] + mean[..., None, None]
  variance = by_prompt.var(axis=-1, ddof=1)  # of `prompt`, plus 1/s of that of `rest`
  of_rest = np.square(rest).sum(axis=(-1, -2)) / ((s - 1) * max(p - 1, 1) * s)
  share = 1 - of_rest / np.where(variance > 0, variance, np.inf)
  shares = [by_prompt[..., i::s].mean(axis=-1) for i in range(s)]
  own = np.stack(shares, axis=-1)
  own = own - own.mean(axis=-1, keepdims=True)
  moved = by_seed + np.sqrt(np.maximum(share, 0))[..., None] * own
  quantile = float(stats.t.ppf((1 + confidence) / 2, s - 1))
  return mean, np.asarray(quantile * moved.std(axis=-1, ddof=1) / math.sqrt(s))
