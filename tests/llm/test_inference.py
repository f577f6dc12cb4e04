"""The statistics of the ablation against equations, definitions and simulation."""

import itertools
import math
from typing import Any, cast

import numpy as np
import pytest
from scipy import optimize, stats

from studies.llm.inference import (
  Weights,
  _score_interval,
  least_squares,
  paired_interval,
  paired_test,
  weights,
)
from tests.marks import mostly_full


def columns(rng, n):
  """Guesses, own answers that depend on them, and answers, as columns."""
  guess = rng.uniform(0, 5, n)
  own = 0.4 * guess + rng.uniform(0, 3, n)
  answer = 0.7 * guess + 0.2 * own + 0.5 + rng.normal(0, 0.6, n)
  return guess, own, answer


def test_the_weights_are_those_of_the_normal_equations():
  """Cramer's rule on deviations, and the textbook variances, in plain loops."""
  guess, own, answer = columns(np.random.default_rng(0), 23)
  g, o, y = (list(x - x.mean()) for x in (guess, own, answer))
  n = len(y)
  gg, oo, go, gy, oy = (
    sum(p * q for p, q in zip(x, z, strict=True))
    for x, z in ((g, g), (o, o), (g, o), (g, y), (o, y))
  )
  determinant = gg * oo - go**2
  a, b = (gy * oo - oy * go) / determinant, (oy * gg - gy * go) / determinant
  residuals = [y[i] - a * g[i] - b * o[i] for i in range(n)]
  variance = sum(e**2 for e in residuals) / (n - 3)
  fit = weights(guess, own, answer)
  assert (fit.guess_weight, fit.own_weight) == (pytest.approx(a), pytest.approx(b))
  guess_stderr, own_stderr = np.sqrt(variance * np.array([oo, gg]) / determinant)
  assert fit.guess_weight_stderr == pytest.approx(guess_stderr)
  assert fit.own_weight_stderr == pytest.approx(own_stderr)


def test_copying_and_what_cannot_be_told_apart():
  guess, own, answer = columns(np.random.default_rng(4), 12)
  copied, stubborn = weights(guess, own, guess), weights(guess, own, own)
  np.testing.assert_allclose(np.array(copied), [1, 0, 0, 0], atol=1e-12)
  np.testing.assert_allclose(np.array(stubborn), [0, 0, 1, 0], atol=1e-12)
  unknown = Weights(None, None, None, None)
  assert weights(np.full_like(guess, 2.33), own, answer) == unknown
  assert weights(guess, np.full_like(own, 0.1), answer) == unknown
  assert weights(guess, 3 * guess - 1, answer) == unknown
  assert weights(guess[:3], own[:3], answer[:3]) == unknown
  assert None not in weights(guess[:4], own[:4], answer[:4])
  assert weights(guess[:0], own[:0], answer[:0]) == unknown


def test_p_values_and_intervals_are_those_of_the_t_test():
  differences = np.random.default_rng(5).normal(0.3, 1, 24)
  expected: Any = stats.ttest_1samp(differences, 0.0)
  assert paired_test(differences) == pytest.approx(expected.pvalue)
  bounds = paired_interval(differences, 0.9)
  assert bounds == pytest.approx(tuple(expected.confidence_interval(0.9)))
  assert paired_test(differences[:1]) is None
  assert paired_test(np.zeros(5)) == 1.0
  for unknown in ([np.nan] * 20, [np.nan, 1.0, 1.0]):
    assert np.isnan(cast(float, paired_test(np.array(unknown))))
    assert np.isnan(cast(Any, paired_interval(np.array(unknown), 0.9))).all()


def test_p_values_of_losses_0_and_1():
  """All signs of the nonzero differences are equally probable if nothing differs."""
  rng = np.random.default_rng(6)
  for num in range(2, 13):
    differences = rng.integers(-1, 2, num).astype(float)
    nonzero = differences[differences != 0]
    sums = [
      abs(sum(signs)) for signs in itertools.product((-1, 1), repeat=len(nonzero))
    ]
    expected = np.mean([size >= abs(nonzero.sum()) for size in sums])
    assert paired_test(differences) == pytest.approx(expected)
    assert paired_test(differences / 4) == pytest.approx(expected)
  # Three answers that are all worse prove nothing, although they do not vary.
  assert paired_test(np.ones(3)) == pytest.approx(0.25)


def signs(above, below, num):
  """Differences of losses 0 and 1."""
  return np.repeat([1.0, -1.0, 0.0], [above, below, num - above - below])


def test_ends_of_intervals_of_losses_0_and_1_are_those_of_the_score_test():
  """The probability of a negative difference is found by search, not by its formula."""
  quantile = stats.norm.ppf(0.95)
  for above, below, equal in (5, 2, 9), (3, 0, 4), (1, 11, 2), (0, 1, 43), (6, 6, 0):
    num = above + below + equal
    differences = signs(above, below, num)
    bounds = _score_interval(above, below, num, 0.9)
    # The interval is extended to 0 if `paired_test` does not reject 0.
    within = paired_interval(differences, 0.9)
    assert within is not None
    p = paired_test(differences)
    assert p is not None
    added = (0.0,) if p > 0.1 else ()
    assert within == pytest.approx((min(*bounds, *added), max(*bounds, *added)))
    assert paired_interval(-differences / 4, 0.9) == pytest.approx(
      (-within[1] / 4, -within[0] / 4)
    )
    for mean in bounds:

      def loss(q, mean=mean, counts=(above, below, equal)):
        rates = q + mean, q, 1 - 2 * q - mean
        pairs = zip(counts, rates, strict=True)
        return -sum(count * math.log(max(rate, 1e-300)) for count, rate in pairs)

      found: Any = optimize.minimize_scalar(
        loss, bounds=(max(0, -mean), (1 - mean) / 2), options={'xatol': 1e-12}
      )
      variance = num * (2 * found.x + mean * (1 - mean))
      score = (above - below - num * mean) / math.sqrt(variance)
      assert abs(score) == pytest.approx(quantile, rel=1e-3)


def test_intervals_of_losses_0_and_1_are_as_published_and_hold_their_mean():
  # Fagerland, Lydersen and Laake, Statistics in Medicine 33 (2014), have an example of
  # 21 pairs, of which 1 is positive and 7 are negative.
  assert _score_interval(1, 7, 21, 0.95) == pytest.approx((-0.517, -0.026), abs=5e-4)
  assert paired_interval(np.zeros(4), 0.9) is None
  assert paired_interval(np.ones(1), 0.9) is None
  # If all signs are the same, the interval ends at 1 or beyond the mean.
  bounds = paired_interval(np.ones(8), 0.95)
  assert bounds is not None
  assert bounds[1] == 1.0
  assert 0 < bounds[0] < 1
  bounds = paired_interval(signs(5, 0, 1000), 0.95)
  assert bounds is not None
  assert bounds[0] == 0.0  # The p value is 0.0625.
  assert bounds[1] > 0.01
  for above, below, num in itertools.product(range(7), range(7), (12, 40)):
    for confidence in (0.9, 0.999) if above + below else ():
      differences = signs(above, below, num)
      bounds, p = paired_interval(differences, confidence), paired_test(differences)
      assert bounds is not None
      assert p is not None
      assert bounds[0] <= differences.mean() <= bounds[1]
      # It leaves out 0 only if the test rejects at the same level.
      assert bounds[0] <= 0 <= bounds[1] or p <= 1 - confidence + 1e-12


@pytest.mark.parametrize(
  ('num', 'above', 'below'),
  mostly_full(
    [(24, 0.2, 0.05), (100, 0.03, 0.01)],
    [(1000, 0.005, 0.0), (1000, 0.005, 0.002)],
  ),
)
def test_intervals_of_losses_0_and_1_contain_the_mean(num, above, below):
  """The coverage is a sum over all counts of signs, each with its probability."""
  covered = 0.0
  for first in range(num + 1):
    of_first = stats.binom.pmf(first, num, above)
    if of_first < 1e-5:
      continue
    for second in range(num - first + 1):
      of_both = of_first * stats.binom.pmf(second, num - first, below / (1 - above))
      if of_both > 1e-5:
        bounds = paired_interval(signs(first, second, num), 0.95)
        # Without any sign there is no interval, which is counted as a miss.
        hit = bounds is not None and bounds[0] <= above - below <= bounds[1]
        covered += of_both * hit
  # Score intervals may have a coverage of about 0.93 at single rates.
  assert covered > 0.93


def test_errors_of_coefficients_are_those_of_scipy():
  x, y = np.random.default_rng(5).normal(size=(2, 17))
  fit = least_squares(np.stack([x, np.ones(17)], axis=1), y)
  assert fit is not None
  wanted: Any = stats.linregress(x, y)
  np.testing.assert_allclose(fit.mean, [wanted.slope, wanted.intercept])
  np.testing.assert_allclose(fit.stderr, [wanted.stderr, wanted.intercept_stderr])
  assert least_squares(np.stack([x, 2 * x], axis=1), y) is None
  assert least_squares(np.eye(2), np.ones(2)) is None
