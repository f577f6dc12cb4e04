"""The bound by depth for `C = d + 1`, and the steps of its proof, in fractions.

In eigenvalues λ of the density `Π |λ_i − λ_j|^2k e^{−Σλ}` the least `E f²` over the
polynomials f of degree D with f = 1 at λ_1 = 0 is 1/(D + 1) (docs/theory_depth.md;
k = 1/2 for real features).
"""

import collections
import functools
import itertools
import math
from fractions import Fraction

import pytest

from tests.settings import isotropic
from zoo.theory import deep


def _rising(x, n):
  return math.prod((x + i for i in range(n)), start=Fraction(1))


def _two(k):
  """Moments of two eigenvalues `s (1 ± u)/2`: s has a gamma law, u² a beta law."""

  @functools.cache
  def moment(powers):
    a, b = powers
    total = Fraction(0)
    for i, j in itertools.product(range(a + 1), range(b + 1)):
      if (i + j) % 2 == 0:
        term = math.comb(a, i) * math.comb(b, j) * (-1) ** j
        total += term * (2 * k + 1) / (2 * k + 1 + i + j)
    return total / 2 ** (a + b) * _rising(2 * k + 2, a + b)

  return moment


def _solve(matrix, right):
  rows = [[*row, x] for row, x in zip(matrix, right, strict=True)]
  for i, row in enumerate(rows):
    row[:] = [x / row[i] for x in row]
    for other in rows:
      if other is not row and other[i]:
        factor = other[i]
        other[:] = [x - factor * y for x, y in zip(other, row, strict=True)]
  return [row[-1] for row in rows]


def _best(moment, d, degree):
  """The least `E f²`, and the coefficients of f by powers.

  Not symmetric in λ_2, …, λ_d: the best f is so of itself.
  """
  tests = [p for p in itertools.product(range(degree), repeat=d) if sum(p) < degree]
  terms = [(p[0] + 1, *p[1:]) for p in tests]

  def product(one, two):
    return moment(tuple(a + b for a, b in zip(one, two, strict=True)))

  matrix = [[product(one, two) for two in terms] for one in terms]
  right = [moment(one) for one in terms]
  factors = _solve(matrix, right)
  risk = 1 - sum(x * y for x, y in zip(factors, right, strict=True))
  return risk, {term: -x for term, x in zip(terms, factors, strict=True)}


@pytest.mark.parametrize('k', ['1/3', '1/2', '1', '5/2'])
def test_the_least_is_one_over_degree_and_one(k):
  k, d = Fraction(k), 2
  moment = _two(k)
  found = [_best(moment, d, degree) for degree in (1, 2, 3, 4)]
  assert [risk for risk, _ in found] == [Fraction(1, n + 2) for n in range(len(found))]
  # The best f is Σ_m (−1)^m binom(D, m)/(m + 1) φ_m, with the same φ_m for all D.
  parts = []
  for degree, (_, best) in enumerate(found, start=1):
    scaled = {}
    for term, x in best.items():
      m = sum(term)
      scaled.setdefault(m, {})[term] = x * (-1) ** m * (m + 1) / math.comb(degree, m)
    parts.append(scaled)
  for scaled in parts:
    for m, part in scaled.items():
      assert part == parts[-1][m]
      assert sum(x * moment(term) for term, x in part.items()) == 1
  # As in the proof, the Dunkl operator maps each φ_m to the one before.
  parts[-1][0] = {(0,) * d: Fraction(1)}
  for m in range(1, len(found) + 1):
    lower = {term: x for term, x in parts[-1][m - 1].items() if x}
    assert _lowered(parts[-1][m], k) == lower


def _lowered(polynomial, k):
  """`∂_1 h + k Σ_j (h − s_j h)/(λ_1 − λ_j)`, s_j exchanging λ_1 and λ_j."""
  found = collections.defaultdict(Fraction)
  for powers, x in polynomial.items():
    first, *others = powers
    if first:
      found[first - 1, *others] += first * x
    for place, other in enumerate(others):
      low, high = sorted((first, other))
      for i in range(high - low):
        rest = others.copy()
        rest[place] = low + i
        found[high - 1 - i, *rest] += k * x * (1 if first > other else -1)
  return {powers: x for powers, x in found.items() if x}


@pytest.mark.parametrize('degree', [1, 2, 3, 4])
def test_it_is_the_bound_for_one_example_more_than_features(degree):
  for d in (1, 2, 5):
    assert deep.lower_bound(isotropic(d, d + 1), degree) == Fraction(d, degree + 1)
