"""Uncertainty: standard errors, intervals and tests of everything that is measured.

Variances divide by n − 1, so that they are unbiased. In data an error is a standard
error, `stderr`. In text, tables and pictures the number after ± is `Estimate.half`: the
standard error times Student's t. `name_of_half` says whether it is half of a 95 %
interval.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
from jaxtyping import ArrayLike, Float

from zoo.core.errors import UserError
from zoo.core.tables import format_mean

LEVEL = 0.05  # Tests have this level.
# From this number of prompts on, mean ± half contains the mean of a skewed loss in 93 %
# of cases or more. With fewer, ± is not called a 95 % interval.
ENOUGH = 1024
_MOST_COUNTS = 2**21  # The bootstrap holds at most so many counts, of 8 bytes each.
# A weight between 0 and 1 has at most this standard error: half of its range.
_MOST_STDERR = 0.5
# A curvature below this share of the largest is rounding.
_FLAT = 1e-12
# A gap of this many standard errors has shares with an error to the first order.
_SURE = 8
# With fewer samples, intervals of the shares that are shown are too narrow.
_FEWEST = 16
# Smaller gaps have Fieller's set at this confidence, 3 standard errors if it is normal.
_FIELLER = 0.9973
# A gap of two losses may be rounding up to this share of them: 84 units of the last
# place of float32, about the error of a sum of 84² = 7,000 numbers that are rounded.
GAP_ROUNDING = 1e-5

_Numbers = TypeVar('_Numbers', float, np.ndarray)


def half_of(
  stderr: _Numbers, num: int | float = math.inf, confidence: float = 0.95
) -> _Numbers:
  """Returns half of the interval of a mean, by Student's t with num − 1 degrees.

  Args:
    stderr: The standard error of the mean, or several.
    num: The number of independent draws. Infinity stands for many draws: the interval
      is then that of the normal distribution, 1.96 standard errors at 95 %.
    confidence: The confidence of the interval.
  """
  from scipy import special  # It is slow to import, and scipy.stats still slower.

  return float(special.stdtrit(num - 1, (1 + confidence) / 2)) * stderr


@dataclasses.dataclass(frozen=True)
class Estimate:
  """A mean over independent draws, such as prompts or seeds, and its standard error.

  Functions that measure something return it. `half` is the number after ± in tables:
  the standard error times the 97.5 % quantile of Student's t, which is 1.96 for many
  draws. From `low`, which is `mean − half`, to `high`, which is `mean + half`, goes the
  95 % interval of Student's t-test. It contains the true mean in 95 % of cases if the
  mean is nearly normal, as means over seeds are. Losses are skewed: for the mean of a
  squared error it is 93 % with 1024 prompts, 87 % with 64 and 78 % with 16.

  Attributes:
    mean: The mean.
    stderr: The standard error of the mean; 0 for a number that is known exactly, NaN
      for a single draw.
    num: The number of independent draws. Infinity stands for many draws whose number
      is not known, as in files that have a mean and its standard error alone.

  Example:
    >>> found = Estimate(mean=0.31, stderr=0.01, num=512)
    >>> print(found)
    0.31 ± 0.02
    >>> round(found.low, 3), round(found.high, 3)
    (0.29, 0.33)
  """

  mean: float
  stderr: float
  num: int | float = math.inf

  @property
  def half(self) -> float:
    """The standard error times Student's t, at 97.5 %; NaN for a single draw."""
    return half_of(self.stderr, self.num)

  @property
  def low(self) -> float:
    """The mean minus `half`."""
    return self.mean - self.half

  @property
  def high(self) -> float:
    """The mean plus `half`."""
    return self.mean + self.half

  def interval(self, confidence: float = 0.95) -> Interval:
    """Returns the interval of the mean by Student's t.

    Args:
      confidence: The confidence of the interval, above 0 and below 1.

    Raises:
      UserError: If the confidence is out of its range.
    """
    if not 0 < confidence < 1:
      raise UserError(f'confidence is {confidence}; it must be above 0 and below 1')
    half = half_of(self.stderr, self.num, confidence)
    return Interval(self.mean, self.mean - half, self.mean + half)

  def __str__(self) -> str:
    return format_mean(self.mean, self.half, 2)


@dataclasses.dataclass(frozen=True)
class Interval:
  """A number with an interval that is not that of a mean by Student's t.

  Shares have such an interval, since it is never below 0 or above 1, and so has what
  one more draw would be.

  Attributes:
    mean: The number.
    low: The lower end of the interval.
    high: The upper end of the interval.

  Example:
    >>> print(wilson([0] * 10))
    0.00 ± 0.28
  """

  mean: float
  low: float
  high: float

  @property
  def half(self) -> float:
    """The distance from the number to the farther end of the interval."""
    return max(self.mean - self.low, self.high - self.mean)

  def __str__(self) -> str:
    return format_mean(self.mean, self.half, 2)


# A share of a gap whose error is known to the first order, or a wide interval of it.
Share: TypeAlias = Estimate | Interval


def plus_minus(estimate: Estimate | Interval | None) -> str:
  """Returns a mean ± half of its interval, to three decimals.

  A dash stands for None, and for an error that is unknown. Small numbers have
  exponents, as `format_mean` says.
  """
  return '-' if estimate is None else format_mean(estimate.mean, estimate.half, 3)


def format_estimate(
  mean: float | None, stderr: float | None = None, num: int | float = math.inf
) -> str:
  """Returns a mean of a file ± half of its interval, if its error is known.

  A dash stands for no mean. There are four decimals unless the numbers are small, as
  `format_mean` says. `num` is as in `half_of`.
  """
  if mean is None:
    return '-'
  return format_mean(mean, None if stderr is None else half_of(stderr, num), 4)


def name_of_half(num: int | float) -> str:
  """Returns what stands after ± in a table of means over prompts.

  It is half of a 95 % interval if there are enough prompts: '± 95 %'. With fewer the
  interval of a skewed loss is too narrow. The name is then '± t·s.e.', the standard
  error times Student's t. Squared differences of predictions have heavier tails; ± of
  their means and shares always has this name.

  Args:
    num: The number of prompts, of the mean that has the fewest. Means over seeds are
      nearly normal, so that they need no more than two.

  Example:
    >>> name_of_half(4096), name_of_half(256)
    ('± 95 %', '± t·s.e.')
  """
  return '± 95 %' if num >= ENOUGH else '± t·s.e.'


class Estimates(NamedTuple):
  """Several means over the same samples, and their standard errors.

  Attributes:
    mean: The means.
    stderr: The standard errors of the means; NaN for a single sample.
  """

  mean: Float[np.ndarray, '*n']
  stderr: Float[np.ndarray, '*n']


# This part has means, differences and ratios over prompts.


def estimate(values: ArrayLike | Sequence[float]) -> Estimate:
  """Returns the mean of samples `[n]` and its standard error, in float64.

  For differences on the same prompts its interval is that of the paired t-test.

  Raises:
    UserError: If there are no samples.

  Example:
    >>> found = estimate([1.0, 2.0, 3.0])
    >>> found.mean, round(found.stderr, 3), found.num
    (2.0, 0.577, 3)
    >>> round(found.half, 3)  # 4.303 / √3
    2.484
  """
  values = np.ravel(np.asarray(values, np.float64))
  if not values.size:
    raise UserError('there are no samples; a mean needs at least one')
  mean, stderr = estimates(values)
  return Estimate(float(mean), float(stderr), values.size)


def wilson(hits: ArrayLike) -> Interval:
  """Returns the share of samples that are hits, with Wilson's 95 % interval.

  Args:
    hits: 0 or 1 for each of n ≥ 1 samples.

  Example:
    >>> round(wilson([0] * 10).high, 3)  # 1.96² / (10 + 1.96²)
    0.278
  """
  from scipy import stats  # It is slow to import.

  hits = np.ravel(np.asarray(hits))
  test = stats.binomtest(int(hits.sum()), len(hits))
  ends = test.proportion_ci(method='wilson')
  return Interval(float(hits.mean()), float(ends.low), float(ends.high))


def estimate_of_neighbours(values: ArrayLike) -> Estimate:
  """Returns the mean of samples `[n]`, each of which depends on the one after it, too.

  An example is the loss of a prompt that is given something of the next prompt, where
  the last prompt is given something of the first. Neighbours share one draw, so that
  their covariance γ₁ adds to the variance γ₀ of a sample: the variance of the mean is
  (γ₀ + 2γ₁)/n. The estimate of it is never less than γ₀/n.
  """
  values = np.ravel(np.asarray(values, np.float64))
  found = estimate(values)
  if len(values) < 4:
    return found
  apart = values - found.mean
  variance = np.sum(apart**2) / (len(values) - 1)
  shared = np.sum(apart * np.roll(apart, -1)) / (len(values) - 1)
  more = max(1 + 2 * shared / variance, 1.0) if variance > 0 else 1.0
  return dataclasses.replace(found, stderr=found.stderr * math.sqrt(more))


def estimates(values: ArrayLike) -> Estimates:
  """Returns the means over the first axis of samples `[n, ...]`, in float64."""
  values = np.asarray(values, np.float64)
  mean = values.mean(axis=0)
  if len(values) == 1:
    return Estimates(mean, np.full_like(mean, math.nan))
  return Estimates(mean, values.std(axis=0, ddof=1) / math.sqrt(len(values)))


def estimate_of_batches(
  means: np.ndarray, deviations: np.ndarray, count: int
) -> Estimate:
  """Returns the mean of samples in batches of one size, and its standard error.

  Args:
    means: The mean of each batch `[n]`.
    deviations: The mean square of the deviations from the mean, for each batch `[n]`.
    count: The number of samples in all batches together.
  """
  means, deviations = np.asarray(means, np.float64), np.asarray(deviations, np.float64)
  mean = float(np.mean(means))
  if count == 1:
    return Estimate(mean, math.nan, count)
  # The variance is that within batches plus that of their means.
  variance = float(np.mean(deviations + np.square(means - mean)))
  return Estimate(mean, math.sqrt(variance / (count - 1)), count)


def difference(first: ArrayLike, second: ArrayLike) -> Estimate:
  """Returns the mean difference of samples `[n]` that are paired, such as by prompt."""
  return estimate(np.asarray(first, np.float64) - np.asarray(second, np.float64))


def difference_of(first: Estimate, second: Estimate) -> Estimate:
  """Returns the difference of two estimates, with the largest error that it can have.

  Estimates on the same prompts are not independent. The standard error of their
  difference is at most the sum of the two. With this sum the dependence leads to no
  claim too soon; a small difference may be missed.
  """
  return Estimate(
    first.mean - second.mean,
    first.stderr + second.stderr,
    min(first.num, second.num),
  )


def ratio(part: Float[np.ndarray, ' p'], whole: Float[np.ndarray, ' p']) -> Estimate:
  """Returns the ratio of two means over the same samples.

  Its error is to the first order in the errors of both means. It is NaN if the mean of
  `whole` is 0.
  """
  share, stderr = ratios(part, whole)
  return Estimate(float(share), float(stderr), len(whole))


def share_of_gap(
  part: Float[np.ndarray, ' p'],
  clean: Float[np.ndarray, ' p'],
  corrupt: Float[np.ndarray, ' p'],
  with_next: bool = False,
  is_loss: bool = False,
) -> Share | None:
  """Returns a mean as a share of the gap between corrupt and clean losses.

  A gap that is 0 up to its error has shares of any size, and a gap that is called
  different from 0 by chance is too large, so that its shares are too small. So there
  are three cases:

  - The gap is at least 8 standard errors from 0. The share is an `Estimate` with its
    error to the first order.
  - The gap is nearer to 0, but 3 standard errors away, by Student's t. The share is an
    `Interval`, the set of Fieller (J. R. Stat. Soc. B 16, 1954) at 3 standard errors:
    the shares θ for which the mean of part − θ gap is 0 up to them.
  - There is no share otherwise, as that set is then unbounded.

  Of the shares that are shown, the interval contains at least 94 % if the true gap is 1
  standard error or more, also if all of their error is that of the gap. Gaps of half a
  standard error are shown in 1 of 150 cases, and 78 % of their intervals do.

  Args:
    part: A number for each of p samples, whose mean is the numerator.
    clean: The loss of each sample, or another metric, from which the gap starts.
    corrupt: The loss at which it ends. The mean of corrupt − clean is the denominator.
    with_next: Whether the part of a sample also depends on the next sample, as in
      `estimate_of_neighbours`.
    is_loss: Whether the gap has to be positive, as that of losses. A gap of another
      metric may be negative.

  Returns:
    The share. None if there is no such set, if there are fewer than 16 samples, if the
    gap is no more than rounding, or if it is negative and `is_loss`: then all shares
    would have the wrong sign.
  """
  part, clean, corrupt = (
    np.asarray(values, np.float64) for values in (part, clean, corrupt)
  )
  gap = corrupt - clean
  whole = estimate(gap)
  if why_no_share(whole, estimate(clean), estimate(corrupt), is_loss) is not None:
    return None
  share = ratio(part, gap)
  if with_next:
    of_each = estimate_of_neighbours((part - share.mean * gap) / whole.mean)
    wider = of_each.stderr / share.stderr if share.stderr else 1.0
    share = dataclasses.replace(of_each, mean=share.mean)
  else:
    wider = 1.0
  if is_sure(whole):
    return share
  return _fieller(part, gap, wider)


def is_sure(gap: Estimate) -> bool:
  """Returns whether shares of a gap have errors to the first order."""
  return abs(gap.mean) >= _SURE * gap.stderr


def name_of_share(gap: Estimate) -> str:
  """Returns what stands after ± in a table of shares of a gap, as `name_of_half` does.

  If the gap is not sure, the shares have Fieller's set at 3 standard errors.
  """
  return name_of_half(gap.num) if is_sure(gap) else '± 3 s.e.'


def why_no_share(
  gap: Estimate, clean: Estimate, corrupt: Estimate, is_loss: bool
) -> str | None:
  """Returns why `share_of_gap` gives no share of a gap; None if it gives one."""
  if math.isnan(gap.mean):
    return 'the gap is NaN'
  if gap.num < _FEWEST:
    return f'a share needs {_FEWEST} prompts or more'
  if abs(gap.mean) <= GAP_ROUNDING * max(abs(clean.mean), abs(corrupt.mean)):
    return 'the gap is no more than rounding'
  if not abs(gap.mean) > half_of(gap.stderr, gap.num, _FIELLER):
    return 'the gap is less than 3 standard errors from 0'
  if is_loss and gap.mean < 0:
    return 'the corrupt prompts have the lower loss'
  return None


def _fieller(
  part: Float[np.ndarray, ' p'], gap: Float[np.ndarray, ' p'], wider: float
) -> Interval | None:
  """Returns Fieller's set for the ratio of two means; None if it is unbounded.

  Args:
    part: The samples of the numerator.
    gap: Those of the denominator.
    wider: The factor by which the errors are larger than those of independent samples.
  """
  n = len(gap)
  width = wider * half_of(1.0, n, _FIELLER)
  (of_part, of_both), (_, of_gap) = width**2 * np.cov(part, gap) / n
  # The set has the shares θ with (mean of part − θ gap)² ≤ width² · its variance.
  square = gap.mean() ** 2 - of_gap
  linear = part.mean() * gap.mean() - of_both
  constant = part.mean() ** 2 - of_part
  if square <= 0:
    return None
  spread = math.sqrt(max(linear**2 - square * constant, 0.0))
  share, low, high = (
    part.mean() / gap.mean(),
    (linear - spread) / square,
    (linear + spread) / square,
  )
  return Interval(float(share), float(low), float(high))


def ratios(
  part: Float[np.ndarray, 'p ...'], whole: Float[np.ndarray, ' p']
) -> Estimates:
  """Returns the ratios of several means to one mean over the same samples.

  Their errors are to the first order in the errors of both means. They are NaN if the
  mean of `whole` is 0.
  """
  part = np.asarray(part, np.float64)
  whole = np.asarray(whole, np.float64)
  mean = whole.mean()
  if mean == 0:
    unknown = np.full(part.shape[1:], math.nan)
    return Estimates(unknown, unknown)
  share = part.mean(axis=0) / mean
  along = whole.reshape(-1, *(1,) * (part.ndim - 1))
  return Estimates(share, estimates((part - share * along) / mean).stderr)


def correlation(
  first: Float[np.ndarray, 'p k'], second: Float[np.ndarray, 'p k']
) -> Estimate | None:
  """Returns the correlation of paired values of k outputs, over prompts and outputs.

  Each value is taken relative to the mean of its output. The error is the jackknife's
  over prompts, so that it also holds if one value says how much the other varies:
  without any correlation, a correlation then lies outside of ± 2/√p too often.

  Args:
    first: The values `[p, k]` for each of p prompts.
    second: As many other values.

  Returns:
    The correlation, with its standard error. None if the values of `first` or of
    `second` do not vary, or would not without one of the prompts.
  """
  # Equal values have the difference 0, which the rounding of a mean could change.
  apart = [np.asarray(values - values[0], np.float64) for values in (first, second)]
  x, y = (values - values.mean(axis=0) for values in apart)
  count = len(x)

  def products(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The sums over all prompts but one, and last over all."""
    sums = [
      np.append(v.sum(axis=0) - v, [v.sum(axis=0)], axis=0) for v in (a, b, a * b)
    ]
    nums = np.append(np.full(count, count - 1), count)[:, None]
    return (sums[2] - sums[0] * sums[1] / nums).sum(axis=1)

  squares = products(x, x) * products(y, y)
  if not (x.any() and y.any()) or squares.min() <= 0:
    return None
  *without_one, whole = products(x, y) / np.sqrt(squares)
  pseudo = count * whole - (count - 1) * np.array(without_one)
  return Estimate(float(whole), estimate(pseudo).stderr, count)


def resampled_means(
  values: Float[np.ndarray, 'p ...'], num_draws: int = 500, seed: int = 0
) -> Float[np.ndarray, 'r ...']:
  """Returns means of the bootstrap, over prompts that are drawn with replacement.

  Args:
    values: A number, or several, for each of p prompts.
    num_draws: The number of means r ≥ 1. Each is over p drawn prompts.
    seed: The seed of the draws. Means of other values of as many prompts with the same
      seed are over the same prompts.

  Returns:
    The means; their percentiles 2.5 and 97.5 are a 95 % interval.
  """
  count = len(values)
  shares, generator = np.full(count, 1 / count), np.random.default_rng(seed)
  means, at_once = [], max(1, _MOST_COUNTS // count)
  for start in range(0, num_draws, at_once):
    counts = generator.multinomial(count, shares, min(at_once, num_draws - start))
    means.append(np.tensordot(counts.astype(np.float64), values, 1) / count)
  return np.concatenate(means)


# This part has fits over prompts.


def simplex_stderrs(
  weights: Float[np.ndarray, ' m'],
  gradients: Float[np.ndarray, 'p m'],
  hessian: Float[np.ndarray, 'm m'],
  rounding: float = 0.0,
) -> Float[np.ndarray, ' m']:
  """Returns the standard errors of weights on a simplex that minimise a mean loss.

  The weights are ≥ 0 and their sum is 1. The errors are those of weights that may be
  negative, among the weights that are not 0, by the sandwich formula `Z A⁻¹ B A⁻¹
  Zᵀ/p`: A is the curvature along directions Z of the sum 0, and B is the covariance of
  the gradients of prompts along them (Huber, 1967; White, Econometrica 48, 1980). A
  weight that is 0 has the error that it would have if it were free, too. If only one
  weight is not 0, it has the largest error of the others.

  Args:
    weights: The weights at the minimum, m ≥ 2.
    gradients: The gradient of each prompt's loss by the weights, at the minimum.
    hessian: The Hessian of the mean loss.
    rounding: The error of the mean loss. Weights that change the loss by less cannot be
      told apart, so that no standard error is 0.

  Returns:
    A standard error for each weight, at most ½; NaN for fewer than two prompts.
  """
  m = len(weights)
  if len(gradients) < 2:
    return np.full(m, math.nan)
  _, _, unknown = _directions(hessian)
  positive = weights > 0
  stderrs = np.zeros(m)
  for j in range(m):
    free = np.flatnonzero(positive | (np.arange(m) == j))
    if len(free) > 1:
      of_free = _sandwich(gradients[:, free], hessian[np.ix_(free, free)], rounding)
      stderrs[j] = of_free[free == j].item()
  stderrs = np.where(stderrs > 0, stderrs, stderrs.max())
  return np.where(unknown, _MOST_STDERR, np.minimum(stderrs, _MOST_STDERR))


def _sandwich(
  gradients: Float[np.ndarray, 'p m'],
  hessian: Float[np.ndarray, 'm m'],
  rounding: float,
) -> Float[np.ndarray, ' m']:
  """Returns the standard errors of weights with the sum 1 that may be negative."""
  count = len(gradients)
  directions, curvatures, _ = _directions(hessian)
  along = directions / curvatures
  scores = (gradients - gradients.mean(axis=0)) @ along
  variances = np.square(scores @ directions.T).sum(axis=0) / (count - 1) / count
  # The loss rises by ½ δᵀ A δ.
  return np.sqrt(variances + 2 * rounding * np.sum(along * directions, axis=1))


def _directions(
  hessian: Float[np.ndarray, 'm m'],
) -> tuple[Float[np.ndarray, 'm k'], Float[np.ndarray, ' k'], np.ndarray]:
  """Returns orthonormal directions of the sum 0 with their curvatures.

  Directions without curvature are left out. The last result `[m]` says which weights
  change along them.
  """
  m = len(hessian)
  basis = np.linalg.qr(np.eye(m) - 1 / m)[0][:, : m - 1]
  values, vectors = np.linalg.eigh(basis.T @ hessian @ basis)
  directions = basis @ vectors
  flat = values <= _FLAT * max(float(values.max()), np.finfo(float).tiny)
  unknown = np.abs(directions[:, flat]).max(axis=1, initial=0) > math.sqrt(_FLAT)
  return directions[:, ~flat], values[~flat], unknown


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


# This part uses Student's t, for a few seeds.


def one_more(values: ArrayLike | Sequence[float]) -> Interval:
  """Returns a prediction of one more sample, after a few samples `[n]`.

  The samples are from a normal distribution.

  Args:
    values: n ≥ 2 samples, such as one for each of a few seeds.

  Returns:
    The mean, with the interval that contains one more sample with a probability of
    95 %: its half is `t s √(1 + 1/n)` with Student's t and the standard deviation s.

  Raises:
    UserError: If there are fewer than two samples.

  Example:
    >>> one_more([1.0, 2.0, 3.0]).mean
    2.0
  """
  n = np.size(values)
  if n < 2:
    raise UserError(f'there are {n} samples; what one more would be needs two or more')
  found = estimate(values)
  half = found.half * math.sqrt(n + 1)
  return Interval(found.mean, found.mean - half, found.mean + half)


def t_test(values: ArrayLike | Sequence[float]) -> float:
  """Returns the two-sided p value of Student's test that samples `[n]` have the mean 0.

  For differences this is the paired test. It is NaN for a single sample, and for equal
  samples other than 0: their variance is unknown, so that no t value is defined. It is
  1 for two or more samples that are all 0.

  Example:
    >>> t_test([0.1, 0.1]), t_test([0.0, 0.0])
    (nan, 1.0)
  """
  values = np.asarray(values, np.float64)
  # The mean of equal samples may be rounded, which gives them a tiny variance.
  if values.any() and np.all(values == values.flat[0]):
    return math.nan
  return _two_sided(estimate(values))


def welch_sum(mean: float, parts: Sequence[tuple[float, int]]) -> Estimate:
  """Returns an estimate whose variance has parts with few degrees of freedom.

  Args:
    mean: The mean, such as a difference of two means.
    parts: Its variance in independent parts, each with its degrees of freedom.

  Returns:
    The estimate, by whose `num` its interval has Welch's degrees of freedom.
  """
  whole = sum(part for part, _ in parts)
  degrees = whole**2 / sum(part**2 / free for part, free in parts) if whole else 1.0
  return Estimate(mean, math.sqrt(whole), degrees + 1)


def _two_sided(found: Estimate) -> float:
  """Returns the p value that a mean is 0; NaN for another one without any variance."""
  from scipy import special  # It is slow to import.

  if found.stderr == 0:
    return 1.0 if found.mean == 0 else math.nan
  return float(2 * special.stdtr(found.num - 1, -abs(found.mean) / found.stderr))


# This part has tests of paired losses, which may be 0 and 1.


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


# This part corrects for several tests.


def holm(p_values: Sequence[float]) -> list[float]:
  """Returns Holm's adjusted p values (Scand. J. Statist. 6, 1979).

  The j-th smallest of m values is multiplied by m − j + 1, and is no less than the one
  before it. NaN stands for no test: it stays, and does not count.

  Example:
    >>> [round(p_value, 2) for p_value in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
  """
  adjusted, largest = list(map(float, p_values)), 0.0
  tested = [i for i, p_value in enumerate(adjusted) if not math.isnan(p_value)]
  tested.sort(key=lambda i: adjusted[i])
  for rank, place in enumerate(tested):
    largest = max(largest, min(1.0, (len(tested) - rank) * adjusted[place]))
    adjusted[place] = largest
  return adjusted


def apart_from_extreme(
  gaps: Sequence[Estimate], rounding: float = 0.0, level: float = LEVEL
) -> list[bool]:
  """Returns which of several means are apart from the least, or largest, of them.

  Which mean is the extreme one is decided by the samples that also test the gaps. So
  any pair of means may come to be compared, and Bonferroni's correction is over all
  pairs. If means are equal, one of them is called apart with at most the probability
  `level`.

  Args:
    gaps: The distance of each of the k − 1 other means from the extreme one, ≥ 0.
    rounding: The size up to which a gap may be rounding.
    level: The level of the test.
  """
  num_pairs = (len(gaps) + 1) * len(gaps) / 2
  p_values = _p_values_above_zero(gaps, rounding)
  return [num_pairs * p_value < level / 2 for p_value in p_values]


def above_zero(
  values: Sequence[Estimate], rounding: float = 0.0, level: float = LEVEL
) -> list[bool]:
  """Returns which of several estimates are above 0, by Holm's method over all of them.

  The tests are Student's, one-sided at half of the level, so that one test alone agrees
  with the 95 % interval. An estimate whose error is 0 is above 0 if it exceeds the
  rounding. An estimate without an error is not tested.

  Args:
    values: The estimates.
    rounding: The size up to which a mean may be rounding.
    level: The level of the two-sided test.
  """
  p_values = holm(_p_values_above_zero(values, rounding))
  return [p_value < level / 2 for p_value in p_values]


def p_value_above_zero(value: Estimate, rounding: float = 0.0) -> float:
  """Returns the one-sided p value that a mean is at most 0, or at most the rounding.

  The test is Student's. The p value is NaN if the mean or its error is NaN.
  """
  from scipy import special  # It is slow to import.

  if math.isnan(value.mean) or math.isnan(value.stderr):
    return math.nan
  if value.stderr == 0:
    return 0.0 if value.mean > rounding else 1.0
  return float(special.stdtr(value.num - 1, -(value.mean - rounding) / value.stderr))


def _p_values_above_zero(values: Sequence[Estimate], rounding: float) -> list[float]:
  return [p_value_above_zero(value, rounding) for value in values]
