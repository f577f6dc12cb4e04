"""Standard errors and intervals, against scipy's own tests and by coverage."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from tests.compare import refuses
from tests.marks import mostly_full
from zoo.measure.intervals import (
  Estimate,
  estimate,
  estimate_from_moments,
  interval,
  seed_bounds,
  seed_interval,
)


def test_the_standard_error_divides_by_n_minus_one():
  values = np.array([1.0, 2.0, 4.0, 9.0])
  mean, stderr = estimate(values)
  assert mean == 4.0
  # Σ(x − 4)² = 9 + 4 + 0 + 25 = 38; over n − 1 = 3 and n = 4.
  assert stderr == pytest.approx(math.sqrt(38 / 3 / 4), rel=1e-15)
  moments = estimate_from_moments(mean, float(np.mean(values**2)), 4)
  assert moments == pytest.approx(Estimate(mean, stderr), rel=1e-14)


def test_an_interval_of_differences_is_that_of_the_paired_t_test():
  one, other = np.random.default_rng(0).normal(size=(2, 17))
  found = interval(one - other)
  wanted = stats.ttest_rel(one, other).confidence_interval(0.95)
  assert found[1:] == pytest.approx((wanted.low, wanted.high), rel=1e-12)
  assert found.mean == pytest.approx(np.mean(one - other))


def test_intervals_cover_the_mean_as_often_as_they_say():
  draws = np.random.default_rng(1).normal(3.0, 2.0, size=(1000, 6))
  covered = np.mean([low <= 3.0 <= high for _, low, high in map(interval, draws)])
  # Four standard errors of a share of 1000 at 0.95.
  assert abs(covered - 0.95) < 4 * math.sqrt(0.95 * 0.05 / 1000)


def test_one_sample_says_nothing_of_its_error():
  assert math.isnan(estimate([2.0]).stderr)
  assert math.isnan(estimate_from_moments(2.0, 4.0, 1).stderr)
  assert interval([2.0]) == (2.0, -math.inf, math.inf)
  with refuses('no samples'):
    interval([])


def test_a_seed_interval_has_the_width_of_its_definition():
  """By loops over seeds and prompts, from an analysis of variance."""
  rng = np.random.default_rng(0)
  s, p = 3, 11
  losses = rng.normal(size=(s, p)) + rng.normal(size=(s, 1)) + rng.normal(size=(1, p))
  mean = losses.mean()
  rest = sum(
    (losses[i, j] - losses[i].mean() - losses[:, j].mean() + mean) ** 2
    for i in range(s)
    for j in range(p)
  ) / ((s - 1) * (p - 1))
  columns = s * losses.mean(axis=0).var(ddof=1)  # E = rest + s · prompt
  k = math.sqrt(1 - rest / columns)
  shares = [losses.mean(axis=0)[i::s].mean() for i in range(s)]
  moved = [losses[i].mean() + k * (shares[i] - np.mean(shares)) for i in range(s)]
  found = seed_interval(losses)
  half = stats.t.ppf(0.975, s - 1) * np.std(moved, ddof=1) / math.sqrt(s)
  assert found == pytest.approx((mean, mean - half, mean + half), rel=1e-12)
  assert seed_interval(losses[:1]) == (losses[0].mean(), -math.inf, math.inf)


@pytest.mark.parametrize('of', mostly_full(['difference'], ['loss']))
def test_seed_intervals_cover_the_mean_over_seeds_and_prompts(of):
  """Losses are 1 + seed + prompt + rest, with 1000 skewed prompts that seeds share.

  Of 20,000 repetitions 94.8 to 95.2 % were covered in each of the 18 cases. In 1000 the
  standard error is 0.7 %, so 93 to 97 % is 2.9 of them.
  """
  rng = np.random.default_rng(0)
  repetitions, p = 1000, 1000

  def draw(seeds, deviation, prompts):
    rest = 0.5 * rng.standard_normal((len(prompts), seeds, p), np.float32)
    seed = deviation * rng.standard_normal((len(prompts), seeds, 1))
    return 1 + seed + prompts[:, None] + rest

  for seeds, deviation in itertools.product((2, 3, 5), (0.0, 0.1, 0.3)):
    hits = 0
    for _ in range(repetitions // 100):  # in parts, which stay in the cache
      prompts = rng.standard_exponential((100, p), np.float32) - 1
      losses, truth = draw(seeds, deviation, prompts), 1
      if of == 'difference':
        own = 0.5 * (rng.standard_exponential((100, p), np.float32) - 1)
        losses, truth = losses - draw(seeds, deviation, prompts + own), 0
      mean, half = seed_bounds(losses)
      hits += int(np.sum(abs(mean - truth) <= half))
    assert 0.93 <= hits / repetitions <= 0.97, (seeds, deviation, hits)
