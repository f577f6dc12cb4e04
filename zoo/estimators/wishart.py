"""The expected spectrum of a sample covariance, exactly.

Several estimators are polynomials in `S = XᵀX/C`, so that with isotropic features their
risk is an average of a polynomial over the eigenvalues of S.
"""

import functools
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
from jaxtyping import Float


@functools.cache
def moment(num_features: int, context_length: int, order: int) -> Fraction:
  """`E tr Wᵏ` for `W = XᵀX`, X being `[context_length, num_features]` standard normal.

  The power sum is expanded in zonal polynomials, whose Wishart averages are known
  (Muirhead, Aspects of Multivariate Statistical Theory, theorem 7.2.7; the coefficients
  are those of Jack polynomials at α = 2, Macdonald VI.10).
  """
  if order == 0:
    return Fraction(num_features)
  total = Fraction(0)
  for shape in _shapes(order):
    columns = [sum(row > j for row in shape) for j in range(shape[0])]
    numerator, denominator = 2 * order, 1
    for i, row in enumerate(shape):
      for j in range(row):
        content = 2 * j - i
        arm, leg = row - j - 1, columns[j] - i - 1
        numerator *= (num_features + content) * (context_length + content)
        numerator *= content if (i, j) != (0, 0) else 1
        denominator *= (2 * arm + leg + 1) * (2 * arm + leg + 2)
    total += Fraction(numerator, denominator)
  return total


def _shapes(order: int) -> Iterator[list[int]]:
  """The partitions of `order` without a box in row 3, column 2, whose content is 0."""
  for first in range(1, order + 1):
    if first == 1:
      yield [1] * order
    else:
      for second in range(min(first, order - first) + 1):
        rest = order - first - second
        if second or not rest:
          yield [first, *([second] if second else []), *([1] * rest)]


@functools.cache
def jacobi(
  num_features: int, context_length: int, size: int, power: int = 0
) -> tuple[Float[np.ndarray, ' n'], Float[np.ndarray, ' n-1']]:
  """The recurrence of the orthogonal polynomials of the expected spectrum of `S`.

  `(a, b)` in `b_j π_{j+1}(x) = (x − a_j) π_j(x) − b_{j−1} π_{j−1}(x)`, for polynomials
  that are orthonormal under the average `E tr Sᵖ f(S) / E tr Sᵖ`, p being `power`.
  """
  moments = [
    moment(num_features, context_length, order) / context_length**order
    for order in range(power, power + 2 * size)
  ]
  # Chebyshev's algorithm in rational numbers: in floating point all digits are lost.
  diagonal, squares = [moments[1] / moments[0]], []
  before, row = [Fraction(0)] * len(moments), moments
  for k in range(1, size):
    square = squares[-1] if squares else Fraction(0)
    after = [Fraction(0)] * len(moments)
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
  """The orthonormal polynomials `π_0, …, π_{n−1}` of a recurrence at some points."""
  values = [np.ones_like(points)]
  for j, b in enumerate(off_diagonal):
    last = off_diagonal[j - 1] * values[j - 1] if j else 0.0
    values.append(((points - diagonal[j]) * values[j] - last) / b)
  return np.stack(values)


@functools.cache
def spectrum(
  num_features: int, context_length: int, num_points: int, power: int = 0
) -> tuple[Float[np.ndarray, ' n'], Float[np.ndarray, ' n']]:
  """Points and weights of the Gauss quadrature of the expected spectrum of `S`.

  `E tr Sᵖ f(S) / E tr Sᵖ = Σ_i weight_i f(point_i)`, p being `power`, for every
  polynomial f of a degree below `2 num_points`: a sum of positive terms, where the
  moments themselves would alternate and cancel.
  """
  diagonal, off_diagonal = jacobi(num_features, context_length, num_points, power)
  matrix = np.diag(diagonal) + np.diag(off_diagonal, 1) + np.diag(off_diagonal, -1)
  points = np.linalg.eigvalsh(matrix)
  # Not from the eigenvectors, whose small entries in the far tail are rounding errors.
  weights = 1 / np.sum(np.square(polynomials(diagonal, off_diagonal, points)), axis=0)
  return points, weights
