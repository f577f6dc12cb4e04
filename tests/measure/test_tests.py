"""Tests and corrections for several of them, against their definitions."""

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from zoo.measure.intervals import (
  Estimate,
  welch_sum,
)
from zoo.measure.tests import (
  above_zero,
  apart_from_extreme,
  holm,
  p_value_above_zero,
  t_test,
)


def test_holm_rejects_what_its_sequential_procedure_rejects():
  """From the smallest p on, until the first one exceeds level / (those left)."""
  rng = np.random.default_rng(6)
  for _ in range(50):
    p_values = (rng.random(7) ** 3).tolist()
    p_values[2] = p_values[4]  # ties
    adjusted = holm(p_values)
    for level in (0.001, 0.01, 0.05, 0.2, 0.9):
      rejected, left = set(), dict(enumerate(p_values))
      while left:
        smallest = min(left, key=left.__getitem__)
        if left[smallest] > level / len(left):
          break
        rejected.add(smallest)
        del left[smallest]
      # Both compare the same products, but for rounding, which no random p meets.
      assert {i for i, p in enumerate(adjusted) if p <= level} == rejected
  assert holm([]) == []
  assert holm([0.03]) == [0.03]
  assert holm([0.9, 0.8]) == [1.0, 1.0]


def test_what_was_not_tested_does_not_count():
  assert holm([0.02, math.nan, 0.03]) == pytest.approx(
    [0.04, math.nan, 0.04], nan_ok=True
  )


def test_a_t_test_of_equal_samples_is_undefined():
  # The mean of three times 0.1 is rounded, so that its deviations are not 0.
  for equal in [0.1, 0.1], [0.1] * 3, [-2.0] * 5, [0.0], [3.0]:
    assert math.isnan(t_test(equal))
  assert t_test([0.0, 0.0]) == 1.0


def test_one_estimate_is_above_0_where_its_interval_is():
  for mean in (0.19, 0.20):
    found = Estimate(mean, 0.1)
    assert above_zero([found]) == [mean - found.half > 0]
  # Of two, the least p value counts twice: 2.2414 standard errors are needed.
  needed = float(stats.norm.isf(0.025 / 2))
  for factor, wanted in ((0.999, [False, False]), (1.001, [True, False])):
    assert above_zero([Estimate(factor * needed, 1.0), Estimate(1.0, 1.0)]) == wanted
  # Exact numbers, up to rounding, and what has no error.
  exact = [Estimate(2e-8, 0.0), Estimate(1e-9, 0.0), Estimate(3.0, math.nan)]
  assert above_zero(exact, rounding=1e-8) == [True, False, False]
  assert above_zero([]) == []


def test_what_survives_is_wrong_once_in_forty_times_at_most():
  rng = np.random.default_rng(6)
  draws = rng.normal(size=(4000, 5))
  wrong = sum(
    any(above_zero([Estimate(z, 1.0) for z in row])) for row in draws.tolist()
  )
  # 0.025 with a binomial spread of 0.0025.
  assert 0.0175 < wrong / 4000 < 0.0325


def test_of_equal_means_one_is_called_apart_once_in_twenty_times_at_most():
  """The largest is chosen by the samples that are tested."""
  rng, wrong, num_draws = np.random.default_rng(7), {4: 0, 16: 0}, 1500
  for k in wrong:
    for row in rng.normal(size=(num_draws, k)):
      gaps = np.delete(row.max() - row, row.argmax())
      error = math.sqrt(2)  # It is that of a difference.
      wrong[k] += any(apart_from_extreme([Estimate(gap, error) for gap in gaps]))
    # 0.05 with four times its binomial spread of 0.0056.
    assert wrong[k] / num_draws < 0.0725
  # Of two means there is one pair, and the test is that of the 95 % interval.
  assert apart_from_extreme([Estimate(1.97, 1.0)]) == [True]
  assert apart_from_extreme([Estimate(1.95, 1.0)]) == [False]


def test_a_p_value_of_parts_is_that_of_the_t_test():
  samples = np.array([0.3, 1.1, 0.2, 0.9])
  parts = [(float(samples.var(ddof=1)) / 4, 3)]
  for sign in 1, -1:
    of_one: Any = stats.ttest_1samp(sign * samples, 0, alternative='greater')
    found = welch_sum(sign * float(samples.mean()), parts)
    assert p_value_above_zero(found) == pytest.approx(of_one.pvalue)
  # Welch's test of two means.
  first, second = np.array([3.0, 1.2, 2.2, 4.1]), np.array([0.3, 0.2, 0.7, 0.1, 0.4])
  parts = [(float(x.var(ddof=1)) / len(x), len(x) - 1) for x in (first, second)]
  wanted: Any = stats.ttest_ind(first, second, equal_var=False, alternative='greater')
  found = welch_sum(float(first.mean() - second.mean()), parts)
  assert p_value_above_zero(found) == pytest.approx(wanted.pvalue)
  ends = wanted.confidence_interval(0.9)  # Its low end is that of 80 %, two-sided.
  assert found.interval(0.8).low == pytest.approx(ends.low)
  # A part that is known well leaves the degrees of freedom of the other.
  found = welch_sum(3.0, [(1.0, 2), (1e-9, 500)])
  assert p_value_above_zero(found) == pytest.approx(stats.t.sf(3.0, 2), rel=1e-3)
