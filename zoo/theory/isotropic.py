"""The infimum of multi-head LSA for each number of heads, on isotropic tasks."""

import numpy as np
from numpy.polynomial import Polynomial

from zoo.core.errors import check_count, check_number


def isotropic_head_limit(
  num_features: int, context_length: int, num_heads: int, distance: float
) -> float:
  """Returns the infimum of the risk of multi-head LSA with H heads, for Σ = Λ = I.

  There is no label noise and no bias (σ = 0, β = 0). For `H ≥ d` the value is
  `d (d + 1) / (C + d + 1) + 2 distance² / (dC + 2)`. For fewer heads it is the least
  value of a rational function of one variable, which takes milliseconds.

  Args:
    num_features: d ≥ 1.
    context_length: C ≥ 1.
    num_heads: H ≥ 1.
    distance: `|w* − g|` ≥ 0, the distance of the fixed guess from the prior mean.

  Returns:
    The infimum, in float64.

  Raises:
    UserError: If an argument is out of its range.

  Example:
    >>> round(zoo.theory.isotropic_head_limit(10, 10, num_heads=1, distance=40**0.5), 4)
    14.4306

  References:
    docs/theory_heads.md, the part on isotropic tasks.
  """
  d = check_count('num_features', num_features)
  c = check_count('context_length', context_length)
  heads = check_count('num_heads', num_heads)
  delta = check_number('distance', distance, minimum=0.0)
  return least_over_angles(d, float(c), min(heads, d), delta, 0.0, 0.0)


def least_over_angles(
  d: int, c: float, heads: int, distance: float, bias: float, noise: float
) -> float:
  """Returns the infimum with at most d heads, for Σ = Λ = I, a bias and noise.

  `bias` is β, and `noise` is the variance σ².

  It is the least value of a rational function of t = tan θ, where θ is the angle
  between the hidden direction and the label's (docs/theory_heads.md). The candidates
  are its critical points, the real roots of a polynomial of degree 10.
  """
  others, half, tau = heads - 1, c / 2, d + noise
  m, seen = 1 + (tau + 1) / c, tau - heads
  w = 2 * d + (2 / c) * (tau**2 + 2 * d - heads)
  t = Polynomial([0, 1])
  square, label = t**2, 1 - t**2
  gamma = half * square**2 + square / m + label**2 / w
  # All terms are positive, since differences would lose digits with long contexts.
  over = (
    (half * (t / m - distance * square) ** 2 + (1 + others * half) * square / m**2)
    + ((seen * t / m - distance * label) ** 2 / w + distance**2 * square / m)
    + bias**2 * gamma
  )
  under = (
    (1 + others * half) * gamma
    + (half + seen**2 / w) * square / m
    + half / w * (seen * square - label) ** 2
  )
  hidden, spread = (m - 1) * square + 1 / c, m * square + 1 / c

  def risk(point: np.ndarray) -> np.ndarray:
    rest = (d - heads) * hidden(point) / spread(point)
    return heads * (m - 1) / m + rest + over(point) / under(point)

  slope = (over.deriv() * under - over * under.deriv()) * spread**2
  slope -= (d - heads) * (2 / c) * t * under**2
  # The last candidate, t = 1e12, is a direction of features, up to rounding.
  return float(np.min(risk(np.append(slope.roots().real, [0.0, 1e12]))))
