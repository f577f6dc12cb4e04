"""The statistics of the ablation against equations, definitions and simulation."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from studies.llm.inference import Weights, weights
from zoo.measure.statistics import paired_interval, paired_test


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


def test_intervals_of_losses_0_and_1():
  """Each end is the share at which as many signs, or more, have half the error rate."""
  assert paired_interval(np.zeros(4), 0.9) is None
  assert paired_interval(np.ones(1), 0.9) is None
  for above, below, equal in (5, 2, 9), (3, 0, 0), (1, 11, 2):
    differences = np.repeat([1.0, -1.0, 0.0], [above, below, equal])
    num, bounds = above + below, paired_interval(differences, 0.99)
    assert bounds is not None
    low, high = ((end * len(differences) / num + 1) / 2 for end in bounds)

    def tail(share, counts, num=num):
      return sum(
        math.comb(num, k) * share**k * (1 - share) ** (num - k) for k in counts
      )

    assert tail(low, range(above, num + 1)) == pytest.approx(0.005)
    if below:
      assert tail(high, range(above + 1)) == pytest.approx(0.005)
    else:
      assert high == 1
    # It excludes 0 if the test rejects at the same level.
    p = paired_test(differences)
    assert p is not None
    assert (bounds[0] > 0 or bounds[1] < 0) == (p < 0.01)
