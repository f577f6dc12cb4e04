"""The statistics of the ablation against equations, definitions and simulation."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from zoo.llm.inference import (
  crossing,
  first_crossings,
  p_value,
  paired_interval,
  weights,
)


def columns(rng, n):
  """Guesses, own answers that depend on them, and answers, as columns."""
  guess = rng.uniform(0, 5, n)
  own = 0.4 * guess + rng.uniform(0, 3, n)
  answer = 0.7 * guess + 0.2 * own + 0.5 + rng.normal(0, 0.6, n)
  return guess[:, None], own[:, None], answer[:, None]


def test_the_weights_are_those_of_the_normal_equations():
  """Cramer's rule on deviations, and the textbook variances, in plain loops."""
  guess, own, answer = columns(np.random.default_rng(0), 23)
  g, o, y = (list(np.ravel(x) - x.mean()) for x in (guess, own, answer))
  n = len(y)
  gg, oo, go, gy, oy = (
    sum(p * q for p, q in zip(one, other, strict=True))
    for one, other in ((g, g), (o, o), (g, o), (g, y), (o, y))
  )
  determinant = gg * oo - go**2
  a, b = (gy * oo - oy * go) / determinant, (oy * gg - gy * go) / determinant
  residuals = [y[i] - a * g[i] - b * o[i] for i in range(n)]
  variance = sum(e**2 for e in residuals) / (n - 3)
  found = weights(guess, own, answer)
  assert found is not None
  assert (found.guess, found.own) == (pytest.approx(a), pytest.approx(b))
  assert found.guess_stderr == pytest.approx(math.sqrt(variance * oo / determinant))
  assert found.own_stderr == pytest.approx(math.sqrt(variance * gg / determinant))


def classes(rng, n):
  """One-hot guesses, and distributions over three classes."""
  guess = np.eye(3)[rng.integers(3, size=n)]
  own = rng.dirichlet(np.ones(3), n)
  noise = rng.dirichlet(np.ones(3), n)
  return guess, own, 0.5 * guess + 0.3 * own + 0.2 * noise


def test_the_weights_of_classes_have_errors_by_prompt():
  """With dummy columns, least squares, and the sandwich of clusters in loops."""
  guess, own, answer = classes(np.random.default_rng(2), 17)
  n, k = answer.shape
  rows = [
    [guess[i, j], own[i, j], *(float(j == c) for c in range(k))]
    for i in range(n)
    for j in range(k)
  ]
  x, y = np.array(rows), answer.reshape(-1)
  fit = np.linalg.lstsq(x, y, rcond=None)[0]
  meat = np.zeros((k + 2, k + 2))
  for i in range(n):
    score = sum(x[r] * (y[r] - x[r] @ fit) for r in range(k * i, k * i + k))
    meat += np.outer(score, score)
  bread = np.linalg.inv(x.T @ x)
  factor = n / (n - 1) * (n * k - 1) / (n * k - k - 2)
  errors = np.sqrt(np.diag(factor * bread @ meat @ bread))
  found = weights(guess, own, answer)
  assert found is not None
  assert (found.guess, found.own) == pytest.approx(tuple(fit[:2]))
  assert (found.guess_stderr, found.own_stderr) == pytest.approx(tuple(errors[:2]))


def test_copying_and_what_cannot_be_told_apart():
  guess, own, answer = columns(np.random.default_rng(4), 12)
  copied = weights(guess, own, guess)
  assert copied is not None
  np.testing.assert_allclose(copied[:4], [1, 0, 0, 0], atol=1e-12)
  stubborn = weights(guess, own, own)
  assert stubborn is not None
  np.testing.assert_allclose(stubborn[:4], [0, 0, 1, 0], atol=1e-12)
  assert weights(np.full_like(guess, 2.33), own, answer) is None
  assert weights(guess, np.full_like(own, 0.1), answer) is None
  assert weights(guess, 3 * guess - 1, answer) is None
  assert weights(guess[:3], own[:3], answer[:3]) is None
  assert weights(guess[:4], own[:4], answer[:4]) is not None
  assert weights(guess[:0], own[:0], answer[:0]) is None


def test_p_values_and_intervals_are_those_of_the_t_test():
  differences = np.random.default_rng(5).normal(0.3, 1, 24)
  expected: Any = stats.ttest_1samp(differences, 0.0)
  assert p_value(differences) == pytest.approx(expected.pvalue)
  found = paired_interval(differences, 0.9)
  assert found == pytest.approx(tuple(expected.confidence_interval(0.9)))
  assert p_value(differences[:1]) is None
  assert p_value(np.zeros(5)) == 1.0


def test_p_values_of_losses_0_and_1():
  """All signs of the nonzero differences are equally probable if nothing differs."""
  rng = np.random.default_rng(6)
  for num in range(2, 13):
    differences = rng.integers(-1, 2, num).astype(float)
    nonzero = differences[differences != 0]
    sums = [
      abs(sum(signs)) for signs in itertools.product((-1, 1), repeat=len(nonzero))
    ]
    expected = np.mean([one >= abs(nonzero.sum()) for one in sums])
    assert p_value(differences) == pytest.approx(expected)
    assert p_value(differences / 4) == pytest.approx(expected)
  # Three answers that are all worse prove nothing, although they do not vary.
  assert p_value(np.ones(3)) == pytest.approx(0.25)


def test_intervals_of_losses_0_and_1():
  """Each end is the share at which as many signs, or more, have half the error rate."""
  assert paired_interval(np.zeros(4), 0.9) is None
  assert paired_interval(np.ones(1), 0.9) is None
  for above, below, equal in (5, 2, 9), (3, 0, 0), (1, 11, 2):
    differences = np.repeat([1.0, -1.0, 0.0], [above, below, equal])
    num, found = above + below, paired_interval(differences, 0.99)
    assert found is not None
    low, high = ((end * len(differences) / num + 1) / 2 for end in found)

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
    p = p_value(differences)
    assert p is not None
    assert (found[0] > 0 or found[1] < 0) == (p < 0.01)


@pytest.mark.parametrize(
  ('x', 'y', 'at'),
  [
    ([0, 1, 2], [1, 1.5, 1.5], 1.5),  # by similar triangles
    ([0, 1, 4], [0.5, 1.5, 2.0], 1.6),
    ([4, 0, 1], [2.0, 0.5, 1.5], 1.6),  # in any order
    ([0, 1, 2], [0, 1, 2], math.inf),  # copies are nowhere below
    ([0, 1, 2], [1, 2, 3], math.inf),
    ([0, 1, 2], [0, 1, 1.5], 1.0),  # it leaves the diagonal there
    ([1, 2], [0.5, 3], -math.inf),
    ([0, 1, 2, 3], [1, 0.5, 3, 1], 2 / 3),  # the first of several
  ],
)
def test_where_a_curve_crosses(x, y, at):
  found = first_crossings(np.array([x, x[::-1]], float), np.array([y, y[::-1]], float))
  assert found.tolist() == [pytest.approx(at)] * 2


def curve(rng, n, w=0.4, sizes=(0.0, 0.5, 1.0, 2.0, 3.0), own_size=1.5):
  """Losses of guesses, and of answers `w·guess + (1 − w)·own`, for the same prompts.

  The errors are independent, so that the answers' is w²σ² + (1 − w)²τ², which meets the
  guesses' σ² at σ² = (1 − w)τ²/(1 + w).
  """
  noise, own = rng.normal(size=n), own_size * rng.normal(size=n)
  guess = np.array([size * noise for size in sizes])
  return guess**2, (w * guess + (1 - w) * own) ** 2, 0.6 * own_size**2 / 1.4


def test_the_crossing_of_a_mixture_is_where_the_equation_has_it():
  guess, answer, true = curve(np.random.default_rng(7), 4000)
  found = crossing(guess, answer, 0)
  # Between sizes the curve is a straight line in σ²; 4000 prompts leave some percent.
  assert found.low < found.at < found.high
  assert found.at == pytest.approx(true, rel=0.1)
  assert found.high - found.low < 0.2 * true
  assert found.share == 1.0
  few = guess[:, :50], answer[:, :50]
  assert crossing(*few, 0) == crossing(*few, 0)


@pytest.mark.slow
def test_the_interval_of_a_crossing_covers_it():
  rng = np.random.default_rng(8)
  hits = 0
  for seed in range(40):
    guess, answer, true = curve(rng, 40)
    found = crossing(guess, answer, seed)
    hits += found.low <= true <= found.high
  # 38 of 40 are due, with a standard deviation of 1.4.
  assert abs(hits - 38) < 4 * math.sqrt(40 * 0.95 * 0.05)


def test_a_curve_without_a_crossing_says_on_which_side_it_is():
  rng = np.random.default_rng(9)
  guess, answer, _ = curve(rng, 50)
  above = crossing(guess, guess + 1.0, 0)
  assert above == (math.inf, math.inf, math.inf, 0.0)
  below = crossing(guess + 2.0, guess, 0)
  assert below == (-math.inf, -math.inf, -math.inf, 0.0)
  # Missing answers are left out with their guesses.
  missing = answer.copy()
  missing[:, 40:] = math.nan
  assert crossing(guess, missing, 0).at == crossing(guess[:, :40], answer[:, :40], 0).at
  nothing = crossing(guess, np.full_like(answer, math.nan), 0)
  assert nothing.at == math.inf
