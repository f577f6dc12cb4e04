"""Uncertainty: standard errors, intervals and tests of everything that is measured.

Variances divide by n − 1, so that they are unbiased. In data an error is a standard
error, `stderr`. In text, tables and pictures the number after ± is half of a 95 %
interval, `Estimate.half`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import ArrayLike, Float

from zoo.core.errors import UserError
from zoo.core.tables import Z_95, format_mean

LEVEL = 0.05  # Tests have this level.
_MOST_COUNTS = 2**21  # The bootstrap holds at most so many counts, of 8 bytes each.
# A weight between 0 and 1 has at most this standard error: half of its range.
_MOST_STDERR = 0.5
# A curvature below this share of the largest is rounding.
_FLAT = 1e-12


class Estimate(NamedTuple):
  """A mean over samples and its standard error.

  Functions that measure something return it. The 95 % interval of the mean is from
  `mean − half` to `mean + half`, where `half` is 1.96 standard errors. This is the
  number after ± in tables.

  Attributes:
    mean: The mean.
    stderr: The standard error of the mean; NaN for a single sample. In the subclass
      `HalfWidth`, for shares and for means of few samples, it is `half / 1.96`, and
      only `half` has a meaning.

  Example:
    >>> found = Estimate(mean=1.0, stderr=0.5)
    >>> round(found.half, 2)
    0.98
  """

  mean: float
  stderr: float

  @property
  def half(self) -> float:
    """Half of the 95 % interval, for many samples: 1.96 standard errors."""
    return Z_95 * self.stderr


class HalfWidth(Estimate):
  """An estimate whose 95 % interval is known, but is not 1.96 standard errors.

  Shares and means of few samples are such estimates. Their `stderr` is `half` divided
  by 1.96. It only serves to recover the interval: it is no standard error by which to
  weight or to add. Tables for other programs have `half` in its place.

  Example:
    >>> found = estimate_of_share([0] * 10)
    >>> found.mean, round(found.half, 3)
    (0.0, 0.278)
  """


def plus_minus(estimate: Estimate | None) -> str:
  """Returns a mean ± half of its 95 % interval, to three decimals.

  A dash stands for None, and for an error that is unknown. Small numbers have
  exponents, as `format_mean` says.
  """
  return '-' if estimate is None else format_mean(estimate.mean, estimate.half, 3)


def half_of(stderr: float | None) -> float | None:
  """Returns half of a 95 % interval for many samples; None for an unknown error."""
  return None if stderr is None else Z_95 * stderr


class Estimates(NamedTuple):
  """Several means over the same samples, and their standard errors.

  Attributes:
    mean: The means.
    stderr: The standard errors of the means; NaN for a single sample.
  """

  mean: Float[np.ndarray, '*n']
  stderr: Float[np.ndarray, '*n']


class Interval(NamedTuple):
  """A mean over samples with a two-sided Student t confidence interval.

  Attributes:
    mean: The mean.
    low: The lower end of the interval.
    high: The upper end of the interval.
  """

  mean: float
  low: float
  high: float

  @property
  def half(self) -> float:
    """Half of the width of the interval; infinite for a single sample."""
    return (self.high - self.low) / 2


# This part has means, differences and ratios over prompts.


def estimate(values: ArrayLike | Sequence[float]) -> Estimate:
  """Returns the mean of samples `[n]` and its standard error, in float64.

  Example:
    >>> [round(number, 3) for number in estimate([1.0, 2.0, 3.0])]
    [2.0, 0.577]
  """
  mean, stderr = estimates(np.ravel(np.asarray(values, np.float64)))
  return Estimate(float(mean), float(stderr))


def estimate_of_share(hits: ArrayLike) -> HalfWidth:
  """Returns the share of samples that are hits, with Wilson's 95 % interval.

  Args:
    hits: 0 or 1 for each of n ≥ 1 samples.

  Returns:
    The share. Its `half` reaches the end of Wilson's interval (J. Am. Stat. Assoc. 22,
    1927) that is farther from the share, so that it is not 0 for a share of 0 or 1.

  Example:
    >>> round(estimate_of_share([0] * 10).half, 3)  # 1.96² / (10 + 1.96²)
    0.278
  """
  hits = np.ravel(np.asarray(hits, np.float64))
  n, share = len(hits), float(hits.mean())
  # The middle of Wilson's interval is moved from the share by this distance.
  moved = Z_95**2 * abs(0.5 - share) / (n + Z_95**2)
  spread = math.sqrt(share * (1 - share) / n + (Z_95 / (2 * n)) ** 2)
  half = moved + Z_95 * spread / (1 + Z_95**2 / n)
  return HalfWidth(share, half / Z_95)


def estimate_of_neighbours(values: ArrayLike) -> Estimate:
  """Returns the mean of samples `[n]`, each of which depends on the one after it, too.

  An example is the loss of a prompt that is given something of the next prompt, where
  the last prompt is given something of the first. Neighbours share one draw, so that
  their covariance γ₁ adds to the variance γ₀ of a sample: the variance of the mean is
  (γ₀ + 2γ₁)/n. The estimate of it is never less than γ₀/n.
  """
  values = np.ravel(np.asarray(values, np.float64))
  mean, stderr = estimate(values)
  if len(values) < 4:
    return Estimate(mean, stderr)
  apart = values - mean
  variance = np.sum(apart**2) / (len(values) - 1)
  shared = np.sum(apart * np.roll(apart, -1)) / (len(values) - 1)
  more = max(1 + 2 * shared / variance, 1.0) if variance > 0 else 1.0
  return Estimate(mean, stderr * math.sqrt(more))


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
    return Estimate(mean, math.nan)
  # The variance is that within batches plus that of their means.
  variance = float(np.mean(deviations + np.square(means - mean)))
  return Estimate(mean, math.sqrt(variance / (count - 1)))


def difference(first: ArrayLike, second: ArrayLike) -> Estimate:
  """Returns the mean difference of samples `[n]` that are paired, such as by prompt."""
  return estimate(np.asarray(first, np.float64) - np.asarray(second, np.float64))


def difference_of(first: Estimate, second: Estimate) -> Estimate:
  """Returns the difference of two estimates, with the largest error that it can have.

  Estimates on the same prompts are not independent. The standard error of their
  difference is at most the sum of the two. With this sum the dependence leads to no
  claim too soon; a small difference may be missed.
  """
  return Estimate(first.mean - second.mean, first.stderr + second.stderr)


def ratio(part: Float[np.ndarray, ' p'], whole: Float[np.ndarray, ' p']) -> Estimate:
  """Returns the ratio of two means over the same samples.

  Its error is to the first order in the errors of both means. It is NaN if the mean of
  `whole` is 0.
  """
  share, stderr = ratios(part, whole)
  return Estimate(float(share), float(stderr))


def share_of_gap(
  part: Float[np.ndarray, ' p'],
  gap: Float[np.ndarray, ' p'],
  with_next: bool = False,
  is_loss: bool = False,
) -> Estimate | None:
  """Returns the ratio of two means, or None if the denominator may be 0.

  Args:
    part: A number for each of p samples, whose mean is the numerator.
    gap: A number for each of the same samples, whose mean is the denominator.
    with_next: Whether the part of a sample also depends on the next sample, as in
      `estimate_of_neighbours`.
    is_loss: Whether the gap is the loss that corrupt prompts add, which has to be
      positive. A gap of another metric may be negative.

  Returns:
    The share, with its error to the first order. None if the 95 % interval of the mean
    gap contains 0: then the share may be any number. Also None if the gap is negative
    and `is_loss`: then all shares would have the wrong sign.
  """
  whole = estimate(gap)
  if why_no_share(whole, is_loss) is not None:
    return None
  share, stderr = ratio(part, gap)
  if with_next:
    gap = np.asarray(gap, np.float64)
    stderr = estimate_of_neighbours((part - share * gap) / whole.mean).stderr
  return Estimate(share, stderr)


def why_no_share(gap: Estimate, is_loss: bool) -> str | None:
  """Returns why `share_of_gap` gives no share of a gap; None if it gives one."""
  if math.isnan(gap.mean):
    return 'the gap is NaN'
  if math.isnan(gap.half):
    return 'a single prompt has no interval of the gap'
  if not abs(gap.mean) > gap.half:
    return 'the 95 % interval of the gap contains 0'
  if is_loss and gap.mean < 0:
    return 'the corrupt prompts have the lower loss'
  return None


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
  return Estimate(float(whole), estimate(pseudo).stderr)


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


def interval(values: ArrayLike | Sequence[float], confidence: float = 0.95) -> Interval:
  """Returns the mean of samples `[n]` with its interval by Student's t.

  For differences on the same prompts this is the interval of the paired t test.

  Args:
    values: The samples, n ≥ 1.
    confidence: The confidence of the interval, above 0 and below 1, such as 0.95.

  Returns:
    The interval, which is unbounded for a single sample.

  Raises:
    UserError: If there are no samples, or if the confidence is out of its range.

  Example:
    >>> round(interval([1.0, 2.0, 3.0]).half, 3)  # 4.303 / √3
    2.484
  """
  from scipy import special  # It is slow to import.

  values = np.asarray(values, np.float64)
  if not 0 < confidence < 1:
    raise UserError(f'confidence is {confidence}; it must be above 0 and below 1')
  if not values.size:
    raise UserError('there are no samples; an interval needs at least one')
  if values.size == 1:
    return Interval(float(values[0]), -math.inf, math.inf)
  mean, stderr = estimate(values)
  # scipy.stats has the quantile of Student's t, too, but takes long to import.
  half = float(special.stdtrit(values.size - 1, (1 + confidence) / 2)) * stderr
  return Interval(mean, mean - half, mean + half)


def estimate_of_few(values: ArrayLike | Sequence[float]) -> HalfWidth:
  """Returns the mean of a few samples `[n]` from a normal distribution.

  Args:
    values: n ≥ 2 samples, such as one for each of ten splits of a table.

  Returns:
    The mean. Its `half` is half of the 95 % interval with Student's t, so that its
    standard error is t/1.96 times the usual one.

  Raises:
    UserError: If there are fewer than two samples.

  Example:
    >>> round(estimate_of_few([1.0, 2.0, 3.0]).half, 3)  # 4.303 / √3
    2.484
  """
  n = np.size(values)
  if n < 2:
    raise UserError(f'there are {n} samples; their interval needs two or more')
  whole = interval(values)
  return HalfWidth(whole.mean, whole.half / Z_95)


def one_more(values: ArrayLike | Sequence[float]) -> HalfWidth:
  """Returns a prediction of one more sample, after a few samples `[n]`.

  The samples are from a normal distribution.

  Args:
    values: n ≥ 2 samples, such as one for each of a few seeds.

  Returns:
    The mean. Its `half` is half of the interval that contains one more sample with a
    probability of 95 %, `t s √(1 + 1/n)` with Student's t and the standard deviation s.

  Raises:
    UserError: If there are fewer than two samples.

  Example:
    >>> one_more([1.0, 2.0, 3.0]).mean
    2.0
  """
  n = np.size(values)
  if n < 2:
    raise UserError(f'there are {n} samples; what one more would be needs two or more')
  whole = interval(values)
  return HalfWidth(whole.mean, whole.half * math.sqrt(n + 1) / Z_95)


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
  return _t_p_value(*estimate(values), float(values.size - 1))


def welch_test(
  first: Float[np.ndarray, ' n'],
  second: Float[np.ndarray, ' m'],
  groups: Sequence[np.ndarray],
) -> float:
  """Returns the two-sided p value of the test that two groups of seeds have one mean.

  This is Welch's t test with one change: no variance over seeds is taken to be less
  than the mean variance of all groups, since three seeds may be close together by
  chance.

  Args:
    first: The values of one group `[n]`.
    second: The values of the other group `[m]`.
    groups: All groups from which the mean variance is taken, including these two.

  Returns:
    The p value. NaN if one of the two groups has a single value, or if no group has a
    variance.
  """
  if min(len(first), len(second)) < 2:
    return math.nan
  several = [group for group in groups if len(group) > 1]
  num_free = sum(map(len, several)) - len(several)
  squares = sum(float(np.sum((group - group.mean()) ** 2)) for group in several)
  mean_variance = squares / num_free
  if not mean_variance:
    return math.nan
  parts = []  # Each part of the variance of the gap has its degrees of freedom.
  of_mean = 0.0  # Groups that take the mean variance are one part together.
  for group in first, second:
    if (variance := float(group.var(ddof=1))) > mean_variance:
      parts.append((variance / len(group), len(group) - 1))
    else:
      of_mean += mean_variance / len(group)
  parts.append((of_mean, num_free))
  gap = float(first.mean() - second.mean())
  return _t_p_value(gap, *_stderr_and_degrees(parts))


def welch_p_value(mean: float, parts: Sequence[tuple[float, int]]) -> float:
  """Returns the one-sided p value that a mean is at most 0, by Welch's t test.

  Args:
    mean: The mean, such as a difference of two means.
    parts: Its variance in independent parts, each with its degrees of freedom.

  Returns:
    The p value. It is NaN if the variance is 0 and the mean is not.
  """
  p_value = _t_p_value(mean, *_stderr_and_degrees(parts))
  return p_value / 2 if mean > 0 else 1 - p_value / 2


def _stderr_and_degrees(parts: Sequence[tuple[float, int]]) -> tuple[float, float]:
  """Returns the standard error of a sum of parts, with Welch's degrees of freedom."""
  whole = sum(part for part, _ in parts)
  degrees = whole**2 / sum(part**2 / free for part, free in parts) if whole else 1.0
  return math.sqrt(whole), degrees


def _t_p_value(mean: float, stderr: float, degrees: float) -> float:
  """Returns a two-sided p value; NaN for a mean other than 0 without any variance."""
  from scipy import special  # It is slow to import.

  if stderr == 0:
    return 1.0 if mean == 0 else math.nan
  return float(2 * special.stdtr(degrees, -abs(mean) / stderr))


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
    _, low, high = interval(differences, confidence)
    return low, high
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

  The tests are one-sided, at half of the level, so that one test alone agrees with the
  95 % interval. Estimates are taken to be normal. An estimate whose error is 0 is above
  0 if it exceeds the rounding. An estimate without an error is not tested.

  Args:
    values: The estimates.
    rounding: The size up to which a mean may be rounding.
    level: The level of the two-sided test.
  """
  p_values = holm(_p_values_above_zero(values, rounding))
  return [p_value < level / 2 for p_value in p_values]


def p_value_above_zero(value: Estimate, rounding: float = 0.0) -> float:
  """Returns the one-sided p value that a mean is at most 0, or at most the rounding.

  The mean is taken to be normal. The p value is NaN if the mean or its error is NaN.
  """
  from scipy import special  # It is slow to import.

  mean, stderr = value
  if math.isnan(mean) or math.isnan(stderr):
    return math.nan
  if stderr == 0:
    return 0.0 if mean > rounding else 1.0
  return float(special.ndtr(-(mean - rounding) / stderr))


def _p_values_above_zero(values: Sequence[Estimate], rounding: float) -> list[float]:
  return [p_value_above_zero(value, rounding) for value in values]
