"""The one-angle formula: golden values, a certificate, the search over subspaces."""

import math
from fractions import Fraction

import numpy as np
import pytest
from numpy.polynomial import Polynomial

from tests.compare import refuses
from tests.marks import mostly_full
from tests.settings import isotropic
from zoo import theory
from zoo.theory import head_limit
from zoo.theory.isotropic import least_over_angles


@pytest.mark.parametrize(
  ('d', 'c', 'distance', 'bias', 'noise'),
  mostly_full(
    [(1, 1, 1.0, 0.0, 0.0)],
    [(3, 2, 0.0, 0.0, 0.0), (3, 40, 5.0, 0.0, 0.0), (4, 3, 2.0, 0.5, 2.0)],
    slow=[(3, 4, 1.5, 0.3, 0.7)],
  ),
)
def test_it_is_what_the_search_over_all_subspaces_finds(d, c, distance, bias, noise):
  task = isotropic(
    d, c, distance / np.sqrt(d), noise**0.5, prior_covariance=4 * np.eye(d)
  )
  whitened = head_limit.whiten(theory.task_moments(task), task.prior_mean, bias)
  for heads in range(1, d + 1):
    limit = theory.head_limited_risk(task, heads, 0.0, bias)
    searched = whitened.unit * head_limit.searched_risk(whitened, heads, 4)
    # A search that ends where its slope is 1e-9 is off by the square of that.
    assert limit.lowest_found == pytest.approx(searched, rel=1e-8)


def _num_roots(polynomial):
  """The number of different real roots, by Sturm's theorem."""
  chain = [polynomial, polynomial.deriv()]
  while (rest := -(chain[-2] % chain[-1])).coef.any():
    chain.append(rest)
  lower, upper = (
    [polynomial.coef[-1] * sign ** polynomial.degree() > 0 for polynomial in chain]
    for sign in (-1, 1)
  )
  return int(np.count_nonzero(np.diff(lower))) - int(np.count_nonzero(np.diff(upper)))


def _above(case, value):
  """Numerator and denominator of the formula less a value, in t over its unit.

  The formula is that of docs/theory_heads.md, with |δ|² = `square`. The
  unit is |δ|, or 1 if that is 0, so that all coefficients are fractions.
  """
  d, c, heads, square, bias_square, noise = case
  constant = Polynomial([Fraction(1)])
  unit = square or 1
  t_square = Polynomial([Fraction(0), Fraction(0), Fraction(unit)])
  delta_t = Polynomial([Fraction(0), Fraction(square)])
  half, tau = Fraction(c, 2), d + noise
  m = 1 + Fraction(tau + 1, c)
  spread = 2 * d + Fraction(2 * (tau**2 + 2 * d - heads), c)
  seen = (tau - heads) / spread
  alpha = heads * half + (tau - heads) * seen
  mu = half * t_square + seen * (constant - t_square)
  nu = half * t_square**2 + t_square / m + (constant - t_square) ** 2 / spread
  cost = (1 + alpha) / m**2 * t_square - 2 / m * mu * delta_t
  cost += (square + bias_square) * nu
  under = (1 + alpha) * nu - mu**2
  hidden = (d - heads) * ((m - 1) * t_square + constant / c)
  seen_label = m * t_square + constant / c
  rest = heads * (m - 1) / m - value
  numerator = hidden * under + cost * seen_label + rest * under * seen_label
  return numerator.trim(), (under * seen_label).trim()


@pytest.mark.parametrize(
  'case',
  [
    *((10, 10, heads, 40, 0, 0) for heads in range(1, 11)),
    *((5, c, 1, 20, 0, 0) for c in (1, 5, 10, 20, 50, 100)),
    (10, 10, 9, 40, 0, 1),
    (10, 10, 10, 0, 40, 0),
  ],
)
def test_the_least_value_is_right_to_1e_10_in_fractions(case):
  d, c, heads, square, bias_square, noise = case
  infimum = Fraction(
    least_over_angles(
      d, float(c), heads, math.sqrt(square), math.sqrt(bias_square), float(noise)
    )
  )
  below, denominator = _above(case, infimum - Fraction(1, 10**10))
  assert denominator(0) > 0
  assert _num_roots(denominator) == 0
  assert below(0) > 0
  assert _num_roots(below) == 0
  above, _ = _above(case, infimum + Fraction(1, 10**10))
  assert _num_roots(above) > 0


@pytest.mark.parametrize('noise', [0.0, 1.0, 4.0])
def test_with_one_head_the_cost_of_the_guess_falls_no_faster_than_the_risk(noise):
  c, d, square = 1e7, 5, 20.0
  ratio = least_over_angles(d, c, 1, square**0.5, 0.0, noise)
  ratio /= d * (d + 1 + noise) / (c + d + 1 + noise)
  limit = 1 + (d + 1) * square / (d * (d + 1 + noise))
  assert ratio == pytest.approx(limit, rel=1e-4)


def test_with_long_contexts_no_digits_are_lost():
  # C times the limit tends to (d + 1)(d + |w*|²), and is below by a term in 1/C.
  gaps = []
  for c in (10**6, 10**8):
    gaps.append(1 - theory.isotropic_head_limit(4, c, 1, 2.0) * c / (5 * 8))
  assert gaps[0] == pytest.approx(1e-5, rel=0.05)
  assert gaps[1] == pytest.approx(gaps[0] / 100, rel=0.05)


def test_bad_input_is_named(unchecked):
  for arguments, said in (
    ((0, 1, 1, 1.0), 'num_features is 0'),
    ((1, 0, 1, 1.0), 'context_length is 0'),
    ((1, 1, 0, 1.0), 'num_heads is 0'),
    ((1, 1, 1, -1.0), 'distance is -1'),
  ):
    with refuses(said):
      theory.isotropic_head_limit(*arguments)
