from fractions import Fraction

import pytest

from tests.marks import mostly_slow
from zoo.theory import wishart


@pytest.mark.parametrize(('d', 'c'), [(1, 1), (2, 5), (3, 2), (10, 10)])
def test_first_moments(d, c):
  """As in Letac and Massam, All invariant moments of the Wishart distribution."""
  assert wishart.moment(d, c, 0) == d
  assert wishart.moment(d, c, 1) == c * d
  assert wishart.moment(d, c, 2) == c * d * (c + d + 1)
  cubic = c * d * (c**2 + d**2 + 3 * c * d + 3 * c + 3 * d + 4)
  assert wishart.moment(d, c, 3) == cubic


@pytest.mark.parametrize('c', [1, 2, 7])
def test_moments_of_one_feature_are_those_of_chi_squared(c):
  product = Fraction(1)
  for k in range(1, 9):
    product *= c + 2 * (k - 1)
    assert wishart.moment(1, c, k) == product


@pytest.mark.parametrize(
  ('d', 'c', 'n', 'power'),
  mostly_slow([(3, 4, 6, 0), (10, 4, 8, 1), (1, 1, 3, 0)], [(10, 10, 64, 0)]),
)
def test_quadrature_reproduces_the_moments(d, c, n, power):
  # With 64 points the high moments come from weights as small as 1e-91.
  points, weights = wishart.spectrum(d, c, n, power)
  assert len(points) == n
  assert (weights > 0).all()
  first = wishart.moment(d, c, power)
  for k in range(2 * n):
    expected = wishart.moment(d, c, power + k) / first / c**k
    assert weights @ points**k == pytest.approx(float(expected), rel=1e-10)
