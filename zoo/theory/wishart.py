"""The expected spectrum of a sample covariance, to float64.

Several estimators are polynomials in `S = XᵀX/C`, so that with isotropic features their
risk is an average of a polynomial over the eigenvalues of S.
"""

import decimal
import functools
import itertools
import math
import operator
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
from jaxtyping import Float


@functools.cache
def moment(num_features: int, context_length: int, order: int) -> Fraction:
  """Returns `E tr Wᵏ`, k = `order`, for `W = XᵀX` with X standard normal.

  X has the shape `[context_length, num_features]`. The power sum is expanded in zonal
  polynomials, whose Wishart averages are known (Muirhead, Aspects of Multivariate
  Statistical Theory, theorem 7.2.7). The coefficients are those of Jack polynomials at
  α = 2 (Macdonald, VI.10).
  """
  if order == 0:
    return Fraction(num_features)
  d, c = num_features, context_length
  # The factors of the boxes of the first row, of the second, and of the column below.
  top = _products(d, c, range(0, 2 * order, 2), 2 * order)
  middle = _products(d, c, range(-1, order, 2))
  column = _products(d, c, range(-2, -order, -1))
  total = Fraction(0)
  for first, second, below in _shapes(order, min(num_features, context_length)):
    numerator = top[first] * middle[second] * column[below]
    total += Fraction(numerator, _hooks(first, second, below))
  return total


def _products(
  num_features: int, context_length: int, contents: range, first: int = 1
) -> list[int]:
  """Returns `first` times the factors of 0, 1, 2, … boxes of these contents.

  The factor of a box of content k is `(d + k)(C + k) k`, and `d C` for content 0.
  """
  factors = [
    (num_features + content) * (context_length + content) * (content or 1)
    for content in contents
  ]
  return list(itertools.accumulate(factors, operator.mul, initial=first))


def _shapes(order: int, max_rows: int) -> Iterator[tuple[int, int, int]]:
  """Yields the partitions `(first, second, 1, …, 1)` of `order`: two rows and the ones.

  Other partitions have a box in row 3, column 2, whose content is 0. With more rows
  than there are features or examples the Wishart average is 0.
  """
  for first in range(1, order + 1):
    for second in range(min(first, order - first) + 1):
      below = order - first - second
      if below <= max_rows - 2 if second else not below:
        yield first, second, below


def _hooks(first: int, second: int, below: int) -> Fraction:
  """Returns `Π (2 arm + leg + 1)(2 arm + leg + 2)` over the boxes of a partition."""
  if second == 0:
    return Fraction(math.factorial(2 * first))
  corners = (2 * first + below) * (2 * first + below + 1)
  corners *= (2 * second + below - 1) * (2 * second + below)
  rows = math.factorial(2 * first - 1) * math.factorial(2 * second - 2)
  column = math.factorial(below) * math.factorial(below + 1)
  # Boxes of the first row above the second have the leg 1, those beyond it 0.
  return Fraction(corners * rows * column, 2 * (first - second) + 1)


@functools.cache
def jacobi(
  num_features: int, context_length: int, size: int, power: int = 0
) -> tuple[Float[np.ndarray, ' n'], Float[np.ndarray, ' n-1']]:
  """Returns the recurrence of the orthogonal polynomials of the spectrum of `S`.

  The polynomials are orthonormal under the average `E tr Sᵖ f(S) / E tr Sᵖ`, where p is
  `power`. The result is the pair (a, b) of coefficients in
  `b_j π_{j+1}(x) = (x − a_j) π_j(x) − b_{j−1} π_{j−1}(x)`.
  """
  moments = [
    moment(num_features, context_length, order) / context_length**order
    for order in range(power, power + 2 * size)
  ]
  # Chebyshev's algorithm loses one or two digits per polynomial, too many for float64.
  with decimal.localcontext(prec=4 * size + 50):
    row = [decimal.Decimal(moment.numerator) / moment.denominator for moment in moments]
    diagonal, squares = [row[1] / row[0]], []
    before = [decimal.Decimal(0)] * len(row)
    for k in range(1, size):
      square = squares[-1] if squares else 0
      after = [decimal.Decimal(0)] * len(row)
      for j in range(k, 2 * size - k):
        after[j] = row[j + 1] - diagonal[-1] * row[j] - square * before[j]
      squares.append(after[k] / row[k - 1])
      diagonal.append(after[k + 1] / after[k] - row[k] / row[k - 1])
      before, row = row, after
  return np.array(diagonal, float), np.sqrt(np.array(squares, float))


def polynomials(
  diagonal: Float[np.ndarray, ' n'],
  off_diagonal: Float[np.ndarray, ' n-1'],
  points: Float[np.ndarray, ' m'],
) -> Float[np.ndarray, 'n m']:
  """Returns the orthonormal polynomials `π_0, …, π_{n−1}` of a recurrence at points."""
  values = [np.ones_like(points)]
  for j, b in enumerate(off_diagonal):
    last = off_diagonal[j - 1] * values[j - 1] if j else 0.0
    values.append(((points - diagonal[j]) * values[j] - last) / b)
  return np.stack(values)


@functools.cache
def spectrum(
  num_features: int, context_length: int, num_points: int, power: int = 0
) -> tuple[Float[np.ndarray, ' n'], Float[np.ndarray, ' n']]:
  """Returns points and weights of the Gauss quadrature of the expected spectrum of `S`.

  `E tr Sᵖ f(S) / E tr Sᵖ = Σ_i weight_i f(point_i)`, where p is `power`, for every
  polynomial f of a degree below `2 num_points`. All terms of the sum are positive,
  while a sum of moments would alternate in sign and cancel.
  """
  diagonal, off_diagonal = jacobi(num_features, context_length, num_points, power)
  matrix = np.diag(diagonal) + np.diag(off_diagonal, 1) + np.diag(off_diagonal, -1)
  points = np.linalg.eigvalsh(matrix)
  # The small entries of eigenvectors are mere rounding errors in the tail, so the
  # weights are computed from the polynomials.
  weights = 1 / np.sum(np.square(polynomials(diagonal, off_diagonal, points)), axis=0)
  return points, weights


def spectrum_with_zero(
  num_features: int, context_length: int, num_points: int
) -> tuple[Float[np.ndarray, ' m'], Float[np.ndarray, ' m']]:
  """Returns a quadrature like `spectrum`, with the point 0 besides `num_points` others.

  This is a Gauss–Radau rule. It is exact for polynomials of a degree up to
  `2 num_points`. If the derivatives of a function alternate in sign, as those of
  `1/(s + λ)` do, its average lies between the results of `spectrum` and of this rule.
  The reason is that the error of a Gauss rule has the sign of an even derivative, and
  the error of a Gauss–Radau rule whose smallest point is given has the sign of an odd
  one (Golub & Meurant, Matrices, Moments and Quadrature, section 6).
  """
  points, weights = spectrum(num_features, context_length, num_points, power=1)
  weights = weights / points  # This holds since E tr S = E tr S⁰.
  return np.append(0.0, points), np.append(1 - weights.sum(), weights)
