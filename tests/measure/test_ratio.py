"""Ratios and shares of gaps, against the delta method and by coverage."""

import math

import numpy as np
import pytest
from scipy import stats

from tests.marks import mostly_full
from zoo.measure.intervals import (
  Estimate,
  Interval,
  difference,
  estimate,
  estimate_of_neighbours,
)
from zoo.measure.ratio import ratio, ratios, share_of_gap
from zoo.measure.table import name_of_own, name_of_share


def test_a_share_of_a_gap_that_may_be_0_is_none():
  clean = np.zeros(16)
  gap = np.tile([1.0, -1.0, 2.0, -1.9], 4)
  assert share_of_gap(gap / 2, clean, gap) is None
  assert share_of_gap(0 * gap, clean, clean) is None
  assert share_of_gap(gap[:1], clean[:1], gap[:1]) is None  # without an error
  wide = np.tile([1.0, 2.0, 1.5, 1.2], 4)
  # A gap may be negative, as that of an accuracy.
  share = share_of_gap(gap, clean, -wide)
  assert isinstance(share, Estimate)
  assert share == ratio(gap, -wide)
  assert share_of_gap(gap, clean, -wide, is_loss=True) is None
  apart = (gap + share.mean * wide) / wide.mean()
  shared = share_of_gap(gap, clean, -wide, with_next=True)
  assert isinstance(shared, Estimate)
  assert shared.stderr == pytest.approx(estimate_of_neighbours(apart).stderr)


def test_a_gap_that_is_rounding_has_no_shares():
  losses = np.random.default_rng(12).gamma(1.0, size=512)
  again = losses * (1 + 1e-7)  # One unit of the last place of float32, in each loss.
  assert difference(again, losses).mean > 8 * difference(again, losses).stderr
  assert share_of_gap(again - losses, losses, again) is None
  assert share_of_gap(losses / 2, losses, 2 * losses) is not None


def test_a_gap_that_is_less_sure_has_the_set_of_fieller():
  rng = np.random.default_rng(13)
  gap, part = 1 + 1.5 * rng.normal(size=64), 0.3 + rng.normal(size=64)
  share = share_of_gap(part, np.zeros(64), gap)
  assert isinstance(share, Interval)
  assert share.low < share.mean < share.high
  assert share.confidence == 0.9973
  assert str(share).endswith('(99.73 %)')
  assert name_of_share(estimate(gap)) == name_of_own(share) == '± 3 s.e.'
  sure = 10 + gap
  own = share_of_gap(part, np.zeros(64), sure)
  assert own is not None
  assert name_of_share(estimate(sure)) == name_of_own(own) == '± t·s.e.'
  width = stats.t.ppf((1 + 0.9973) / 2, 63)
  for end in share.low, share.high:  # There the mean of part − end · gap is just not 0.
    rest = estimate(part - end * gap)
    assert abs(rest.mean) / rest.stderr == pytest.approx(width)
  # The error is larger if neighbours share draws.
  pairs = np.repeat(part[::2], 2)
  alone, shared = (
    share_of_gap(pairs, np.zeros(64), gap, with_next=with_next)
    for with_next in (False, True)
  )
  assert alone is not None
  assert shared is None or shared.half > alone.half


@pytest.mark.parametrize(  # 16 is the least number.
  ('count', 'of_gap'), mostly_full([], [16, 64], [0.0, 0.5, 1.0], slow=[(16, 1.0)])
)
def test_intervals_of_shares_that_are_shown_contain_the_share(of_gap, count):
  """Of those shown, where the true gap is some standard errors.

  With `of_gap` 1 the part is a constant, so that all of the error is that of the gap:
  this is the case with the most bias, since the gaps that are shown are too large.
  """
  rng = np.random.default_rng(14)
  for errors in 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0:
    size = errors / math.sqrt(count)
    gap = size + rng.normal(size=(20_000, count))
    part = 0.25 * (size + (1 - of_gap) * rng.normal(size=gap.shape))
    zero, hits = np.zeros(count), []
    for p, g in zip(part, gap, strict=True):
      if (share := share_of_gap(p, zero, g)) is not None:
        hits.append(share.mean - share.half <= 0.25 <= share.mean + share.half)
      if len(hits) == 2000:
        break
    # With a true share of 0.94 and n draws, four binomial errors are 0.95/√n.
    if len(hits) >= 100:
      assert np.mean(hits) > 0.94 - 0.95 / math.sqrt(len(hits)), (errors, len(hits))


@pytest.mark.parametrize('count', [16, 64, 256])
def test_intervals_of_shares_of_skewed_losses_contain_the_share(count):
  """Of squared errors, and of losses with logarithms that are normal."""
  rng, hits = np.random.default_rng(16), []
  for _ in range(400):
    z = rng.normal(size=(3, count))
    squares = (0.3 * z[0]) ** 2, (0.3 * z[0] + 1.2 * z[1]) ** 2
    patched = (0.3 * z[0] + 0.6 * z[1]) ** 2
    clean, far, other = np.exp(z) * np.array([[0.1], [1.0], [0.25]])
    for part, clean_loss, corrupt_loss in (
      (squares[1] - patched, *squares),
      (far - other, clean, clean + far),
    ):
      share = share_of_gap(part, clean_loss, corrupt_loss, is_loss=True)
      if share is not None:
        hits.append(share.mean - share.half <= 0.75 <= share.mean + share.half)
  # With a true share of 0.93 and n draws, four binomial errors are 1.02/√n.
  assert np.mean(hits) > 0.93 - 1.02 / math.sqrt(len(hits))


def test_the_error_of_a_ratio_is_that_of_the_delta_method():
  rng = np.random.default_rng(2)
  whole = rng.gamma(4.0, size=31)
  part = np.stack([whole + rng.normal(size=31), rng.normal(size=31)], axis=1)
  share, stderr = ratios(part, whole)
  for column in range(2):
    covariance = np.cov(part[:, column], whole) / len(whole)
    mean = part[:, column].mean() / whole.mean()
    slope = np.array([1, -mean]) / whole.mean()
    assert share[column] == pytest.approx(mean)
    assert stderr[column] == pytest.approx(math.sqrt(slope @ covariance @ slope))
    alone = ratio(part[:, column], whole)
    assert alone.mean == pytest.approx(mean)
    assert alone.stderr == pytest.approx(stderr[column])
  assert np.isnan(ratios(part, 0 * whole)).all()
