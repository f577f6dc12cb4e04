"""Ratios of two means, and shares of a gap, with their intervals."""

from __future__ import annotations

import dataclasses
import math
from typing import TypeAlias

import numpy as np
from jaxtyping import Float

from zoo.measure.intervals import (
  Estimate,
  Estimates,
  Interval,
  estimate,
  estimate_of_neighbours,
  estimates,
  half_of,
)

# A gap of this many standard errors has shares with an error to the first order.
_SURE = 8
# With fewer samples, intervals of the shares that are shown are too narrow.
_FEWEST = 16
# Smaller gaps have Fieller's set at this confidence, 3 standard errors if it is normal.
_FIELLER = 0.9973
# A gap of two losses may be rounding up to this share of them: 84 units of the last
# place of float32, about the error of a sum of 84² = 7,000 numbers that are rounded.
GAP_ROUNDING = 1e-5

# A share of a gap whose error is known to the first order, or its interval of 99.73 %.
Share: TypeAlias = Estimate | Interval


def ratio(part: Float[np.ndarray, ' p'], whole: Float[np.ndarray, ' p']) -> Estimate:
  """Returns the ratio of two means over the same samples.

  Its error is to the first order in the errors of both means. It is NaN if the mean of
  `whole` is 0.
  """
  share, stderr = ratios(part, whole)
  return Estimate(float(share), float(stderr), len(whole))


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
    `Interval`, the set of Fieller (J. R. Stat. Soc. B 16, 1954) at 3 standard errors,
    whose confidence is 99.73 %: the shares θ for which the mean of part − θ gap is 0
    up to them.
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
  return Interval(float(share), float(low), float(high), _FIELLER)
