"""Standard errors, intervals and tests, against scipy's own and by coverage."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from tests.compare import refuses
from zoo.measure import intervals
from zoo.measure.intervals import (
  Estimate,
  difference,
  estimate,
  estimate_of_batches,
  estimate_of_neighbours,
  estimates,
  one_more,
  resampled_means,
  wilson,
)
from zoo.measure.ratio import ratio
from zoo.measure.table import ENOUGH
from zoo.measure.tests import (
  p_value_above_zero,
  t_test,
)
from zoo.training.evaluation import mean_and_deviation


def test_neighbours_that_share_a_draw_have_a_larger_error():
  """Of (c' − c)² with the next draw c': without it 95 % would be 89 %."""
  draws = np.random.default_rng(0).normal(size=(2000, 256))
  values = np.square(np.roll(draws, -1, axis=1) - draws)
  found = [estimate_of_neighbours(row) for row in values]
  hits = np.mean([abs(of.mean - 2) <= of.half for of in found])
  apart = np.mean([abs(of.mean - 2) <= of.half for of in map(estimate, values)])
  # Four standard errors of 2,000 draws are 2 %.
  assert apart < 0.91
  assert 0.93 <= hits <= 0.97
  alone = np.array([1.0, 3.0, 1.0, 3.0])  # whose neighbours differ
  assert estimate_of_neighbours(alone) == estimate(alone)
  assert estimate_of_neighbours(np.ones(8)) == Estimate(1.0, 0.0, 8)


def test_one_more_sample_is_in_its_interval():
  draws = np.random.default_rng(0).normal(size=(4000, 4))
  found = [one_more(row[:3]) for row in draws]
  hits = np.mean(
    [abs(of.mean - row[3]) <= of.half for of, row in zip(found, draws, strict=True)]
  )
  assert abs(hits - 0.95) < 4 * math.sqrt(0.95 * 0.05 / 4000)
  with refuses('there are 1 samples'):
    one_more([2.0])


def test_the_standard_error_divides_by_n_minus_one():
  values = np.array([1.0, 2.0, 4.0, 9.0])
  found = estimate(values)
  assert found.mean == 4.0
  # Σ(x − 4)² = 9 + 4 + 0 + 25 = 38; over n − 1 = 3 and n = 4.
  assert found.stderr == pytest.approx(math.sqrt(38 / 3 / 4), rel=1e-15)
  batches = values.reshape(2, 2)
  pooled = estimate_of_batches(batches.mean(axis=1), batches.var(axis=1), 4)
  assert (pooled.mean, pooled.num) == (4.0, 4)
  assert pooled.stderr == pytest.approx(found.stderr, rel=1e-14)


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
  paired = estimate(sample - other_sample)
  for confidence in 0.95, 0.9:
    ends = paired.interval(confidence)
    wanted = stats.ttest_rel(sample, other_sample).confidence_interval(confidence)
    assert (ends.low, ends.high) == pytest.approx((wanted.low, wanted.high), rel=1e-12)
  assert (paired.low, paired.high) == (paired.interval().low, paired.interval().high)
  with refuses('confidence is 1'):
    paired.interval(1.0)


def test_an_estimate_is_no_tuple():
  found: Any = Estimate(0.31, 0.01, 512)
  assert str(found) == '0.31 ± 0.02'
  for misuse in (
    lambda: found + found,
    lambda: 2 * found,
    lambda: found < found,
    lambda: found[0],
    lambda: [*found],
    lambda: setattr(found, 'mean', 0.0),
  ):
    with pytest.raises((TypeError, AttributeError)):
      misuse()


def test_one_sample_says_nothing_of_its_error():
  assert math.isnan(estimate([2.0]).stderr)
  assert math.isnan(estimate_of_batches(np.array([2.0]), np.array([0.0]), 1).stderr)
  assert math.isnan(estimate([2.0]).half)
  with refuses('no samples'):
    estimate([])


def test_means_of_several_columns_are_those_of_each():
  values = np.random.default_rng(0).normal(size=(19, 2, 3))
  mean, stderr = estimates(values)
  np.testing.assert_allclose(mean, values.mean(axis=0))
  np.testing.assert_allclose(stderr, stats.sem(values, axis=0))
  assert np.isnan(estimates(values[:1]).stderr).all()


def test_without_a_number_of_samples_an_interval_is_that_of_many():
  low, high = stats.norm.interval(0.95, loc=3.0, scale=0.2)
  assert Estimate(3.0, 0.2).half == pytest.approx((high - low) / 2, rel=1e-12)


def test_intervals_of_a_few_samples_contain_the_mean():
  # Of 2,000 draws a share of 0.95 has the binomial spread 0.0049.
  draws = np.random.default_rng(11).normal(size=(2000, 8))
  for n in 2, 3, 5, 8:
    found = [estimate(row[:n]) for row in draws]
    hits = np.mean([each.low <= 0 <= each.high for each in found])
    assert abs(hits - 0.95) < 4 * 0.0049
    above = np.mean([p_value_above_zero(each) < 0.025 for each in found])
    assert above == np.mean([each.low > 0 for each in found])


def test_a_paired_difference_is_that_of_the_paired_t_test():
  first, second = np.random.default_rng(1).normal(size=(2, 11))
  found = difference(first, second)
  wanted: Any = stats.ttest_rel(first, second)
  assert found.mean / found.stderr == pytest.approx(wanted.statistic, rel=1e-12)
  assert t_test(first - second) == pytest.approx(wanted.pvalue, rel=1e-12)


@pytest.mark.slow
def test_intervals_of_means_and_ratios_contain_the_truth():
  """Of 4000 draws; the binomial spread of a share of 0.95 is 0.0034.

  The ratio is to the first order in 1/n, so that its coverage differs from 0.95 by some
  1/n, 0.01 for the 200 samples.
  """
  rng = np.random.default_rng(3)
  whole = rng.exponential(size=(4000, 200))
  part = 0.3 * whole + rng.normal(size=whole.shape) ** 2
  hits = {'mean': 0, 'ratio': 0, 'difference': 0, 'seeds': 0}
  for p, w in zip(part, whole, strict=True):
    for name, found, truth in (
      ('mean', estimate(p), 1.3),
      ('ratio', ratio(p, w), 1.3),
      ('difference', difference(p, w), 0.3),
    ):
      hits[name] += abs(found.mean - truth) <= found.half
    few = estimate(rng.normal(size=4))
    hits['seeds'] += few.low <= 0 <= few.high
  for count in hits.values():
    assert 0.93 < count / 4000 < 0.965


def _drawn_losses(rng, count):
  """Returns skewed losses of predictors of linear regression, and of classes."""
  d, c, noise = 4, 8, 0.5
  w, query = rng.normal(size=(2, count, d))
  x = rng.normal(size=(count, c, d))
  y = np.einsum('pcd,pd->pc', x, w) + noise * rng.normal(size=(count, c))
  products = np.einsum('pcd,pc->pd', x, y)
  gram = np.einsum('pci,pcj->pij', x, x) + noise**2 * np.eye(d)
  bayes = np.linalg.solve(gram, products[..., None])[..., 0]
  signs = rng.random(count) < 1 / (1 + np.exp(-query[:, 0]))
  return {
    'bayes': np.sum((bayes - w) * query, axis=1) ** 2,
    'one step': np.sum((0.55 * products / c - w) * query, axis=1) ** 2,
    'zero': np.sum(w * query, axis=1) ** 2,
    'signs': np.log1p(np.exp(np.where(signs, -query[:, 0], query[:, 0]))),
  }


@pytest.mark.slow
def test_intervals_of_skewed_losses_contain_the_mean_if_there_are_enough():
  rng = np.random.default_rng(15)
  for name, losses in _drawn_losses(rng, 200_000).items():
    hits = {}
    for count in 64, ENOUGH:
      drawn = losses[rng.integers(len(losses), size=(2000, count))]
      found = [estimate(row) for row in drawn]
      hits[count] = np.mean([each.low <= losses.mean() <= each.high for each in found])
    # 2000 draws have a spread of 0.006; the mean of the 200,000 is known.
    assert hits[ENOUGH] > 0.93 - 2 * 0.006, (name, hits)
    # Of the most skewed losses the interval is too narrow with few prompts.
    assert name != 'bayes' or hits[64] < 0.9


def test_means_over_prompts_drawn_again_have_the_spread_of_the_mean():
  values = np.random.default_rng(4).gamma(2.0, size=(50, 2))
  drawn = resampled_means(values, 20_000)
  assert drawn.shape == (20_000, 2)
  # Given the values, a mean over n drawn ones has their variance with n, over n. The
  # error of 20,000 draws is 0.5 % of the spread, and 0.7 % of a spread in the mean.
  spread = values.std(axis=0) / math.sqrt(50)
  np.testing.assert_allclose(drawn.std(axis=0), spread, rtol=0.025)
  assert np.all(np.abs(drawn.mean(axis=0) - values.mean(axis=0)) < 0.03 * spread)
  # The same prompts for all values.
  both = resampled_means(np.column_stack([values[:, 0], 2 * values[:, 0]]))
  np.testing.assert_allclose(both[:, 1], 2 * both[:, 0])


def test_many_prompts_are_drawn_again_in_blocks(monkeypatch):
  values = np.random.default_rng(6).normal(size=(30, 2))
  together = resampled_means(values, 100)
  monkeypatch.setattr(intervals, '_MOST_COUNTS', 30 * 7 + 1)
  np.testing.assert_allclose(resampled_means(values, 100), together, rtol=1e-12)


@pytest.mark.parametrize(('hits', 'count'), [(0, 10), (1, 1), (7, 9), (50, 100)])
def test_the_interval_of_a_share_reaches_the_farther_end_of_wilsons(hits, count):
  share = wilson(np.arange(count) < hits)
  middle = (hits + 1.92) / (count + 3.84)
  spread = 1.96 * math.sqrt(hits * (count - hits) / count + 0.96) / (count + 3.84)
  farther = max(share.mean - middle + spread, middle + spread - share.mean)
  assert share.mean == pytest.approx(hits / count)
  assert share.half == pytest.approx(farther, rel=1e-3)
