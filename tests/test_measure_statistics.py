"""Standard errors and intervals, against scipy's own tests and by coverage."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from tests.compare import refuses
from zoo.measure.statistics import (
  Estimate,
  estimate,
  estimate_of_batches,
  holm,
  interval,
)
from zoo.training.evaluation import mean_and_deviation


def test_the_standard_error_divides_by_n_minus_one():
  values = np.array([1.0, 2.0, 4.0, 9.0])
  mean, stderr = estimate(values)
  assert mean == 4.0
  # Σ(x − 4)² = 9 + 4 + 0 + 25 = 38; over n − 1 = 3 and n = 4.
  assert stderr == pytest.approx(math.sqrt(38 / 3 / 4), rel=1e-15)
  batches = values.reshape(2, 2)
  pooled = estimate_of_batches(batches.mean(axis=1), batches.var(axis=1), 4)
  assert pooled == pytest.approx(Estimate(mean, stderr), rel=1e-14)


@pytest.mark.parametrize(('mean', 'spread'), [(5.0, 1e-4), (3.5, 3e-4), (0.0, 1.0)])
def test_a_spread_that_is_small_beside_the_mean_is_not_lost(mean, spread):
  # Of 64 batches of 256 losses in float32, as a program measures them.
  drawn = np.random.default_rng(0).normal(mean, spread, size=(64, 256))
  losses = jnp.asarray(drawn, jnp.float32)
  means, deviations = jax.device_get(jax.jit(jax.vmap(mean_and_deviation))(losses))
  pooled = estimate_of_batches(means, deviations, 64 * 256)
  wanted = estimate(np.ravel(np.asarray(losses, np.float64)))
  # A loss of 5 is rounded by at most 2.4e-7, and so is the mean of a batch, from which
  # the deviations of 1e-4 are taken: (2.4e-7 / 1e-4)² is far below a percent.
  assert pooled.stderr == pytest.approx(wanted.stderr, rel=0.01)
  assert pooled.mean == pytest.approx(wanted.mean, abs=1e-6)


def test_an_interval_of_differences_is_that_of_the_paired_t_test():
  sample, other_sample = np.random.default_rng(0).normal(size=(2, 17))
  paired = interval(sample - other_sample)
  wanted = stats.ttest_rel(sample, other_sample).confidence_interval(0.95)
  assert paired[1:] == pytest.approx((wanted.low, wanted.high), rel=1e-12)
  assert paired.mean == pytest.approx(np.mean(sample - other_sample))


def test_one_sample_says_nothing_of_its_error():
  assert math.isnan(estimate([2.0]).stderr)
  assert math.isnan(estimate_of_batches(np.array([2.0]), np.array([0.0]), 1).stderr)
  assert interval([2.0]) == (2.0, -math.inf, math.inf)
  with refuses('no samples'):
    interval([])


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
