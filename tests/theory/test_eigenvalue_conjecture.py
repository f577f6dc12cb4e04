"""The bound by depth for `C = d + 1`: what is proved, and what is only seen.

In eigenvalues λ of the density `Π |λ_i − λ_j|^2k e^{−Σλ}` the least `E f²` over the
polynomials f of degree D with f = 1 at λ_1 = 0 is 1/(D + 1) (docs/theory.md, section 8;
k = 1/2 for real features). Everything is a fraction.
"""

import functools
import itertools
import math
from fractions import Fraction

import pytest

from tests.marks import FULL
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


def _three(k):
  """Moments of three, for integers k, from the expansion of the density."""
  density = {(0, 0, 0): 1}
  for i, j in [(0, 1), (0, 2), (1, 2)] * (2 * k):
    after: dict = {}
    for powers, x in density.items():
      for place, sign in ((i, 1), (j, -1)):
        raised = tuple(p + (n == place) for n, p in enumerate(powers))
        after[raised] = after.get(raised, 0) + sign * x
    density = after

  @functools.cache
  def whole(powers):
    return sum(
      x * math.prod(math.factorial(a + b) for a, b in zip(powers, more, strict=True))
      for more, x in density.items()
    )

  return lambda powers: Fraction(whole(powers), whole((0, 0, 0)))


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


_CASES = [
  *((2, Fraction(k)) for k in ('0', '1/3', '1/2', '1', '5/2')),
  *((3, k) for k in (1, 2)),
]


@pytest.mark.parametrize(('d', 'k'), _CASES)
def test_the_least_is_one_over_degree_and_one(d, k):
  moment = _two(k) if d == 2 else _three(k)
  found = [_best(moment, d, degree) for degree in (1, 2, 3, 4)[: 6 - d]]
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
  if d == 2:
    factor = 1 / ((1 + k) * (2 + k))
    assert parts[-1][2] == {(2, 0): factor, (1, 1): -k * factor}


@pytest.mark.parametrize('degree', [1, 2, 3])
def test_it_is_the_bound_of_two_real_features(degree):

  risk, _ = _best(_two(Fraction(1, 2)), 2, degree)
  assert deep.lower_bound(isotropic(2, 3), degree) == 2 * risk


def determinant_degree(degree):
  """At most this is the degree in d of the bordered Gram determinant of the bound."""
  return 1 + sum(
    2 * (power + sum(traces) + len(traces)) + 3
    for order in range(degree)
    for power in range(order + 1)
    for traces in partitions(order - power)
  )


def partitions(total, largest=None):
  """All ways to write a number as a sum, largest part first."""
  if total == 0:
    return [()]
  return [
    (part, *rest)
    for part in range(min(total, largest or total), 0, -1)
    for rest in partitions(total - part, part)
  ]


@pytest.mark.parametrize('degree', [1, 2, 3, pytest.param(4, marks=FULL)])
def test_bound_is_proved_for_one_example_more_than_features(degree):
  """A polynomial with more zeros than its degree is 0 (docs/theory_depth.md)."""
  degrees = {1: 4, 2: 16, 3: 52, 4: 135}
  assert determinant_degree(degree) == degrees[degree]
  for d in range(1, degree + degrees[degree] + 1):
    assert deep.lower_bound(isotropic(d, d + 1), degree) == Fraction(d, degree + 1)
