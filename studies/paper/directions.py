"""Averages over normal weights `ŵ = uθ`, with length u and direction θ."""

import math

import numpy as np
from jaxtyping import Float
from scipy import special

from zoo.theory.quadratic_risk import Prior

_POINTS = 12  # Each Gauss–Legendre rule has so many points.


def normal_prior(mean: Float[np.ndarray, ' d']) -> Prior:
  """Returns `ŵ ~ N(mean, I)`, in polar coordinates about the mean.

  The density of the length u, and of the cosine c of the angle between θ and the mean
  w*, is `∝ u^(d−1) exp(−(u − |w*|)²/2) · exp(−u|w*|(1 − c)) (1 − c²)^((d−3)/2)`. It is
  integrated by Gauss–Legendre rules on short intervals of u and a Gauss–Jacobi rule.
  """
  d = mean.size
  norm = float(np.linalg.norm(mean))
  axis = mean / norm if norm > 0 else np.eye(d)[0]
  # The length is 1-Lipschitz in ŵ, so it is farther than 12 from its mean with a
  # probability below 2 exp(−72), and its mean is within 1 below `center`.
  center = math.sqrt(norm**2 + d)
  low, high = max(0.0, center - 13), center + 12
  edges = np.linspace(low, high, math.ceil(high - low) + 1)
  if low == 0:  # With label noise, moments may change quickly near length 0.
    edges = np.append(0.0, np.unique(np.append(edges[1:], 0.5 ** np.arange(12))))
  nodes, weights = np.polynomial.legendre.leggauss(_POINTS)
  middle, half = (edges[1:] + edges[:-1]) / 2, np.diff(edges) / 2
  u = (middle[:, None] + half[:, None] * nodes).ravel()
  weights = (half[:, None] * weights).ravel()
  c, masses = np.array([-1.0, 1.0]), np.ones(2)
  if d > 1:
    # exp(κc) is a polynomial of a degree of about √(80 κ), up to rounding.
    size = 20 + math.ceil(math.sqrt(20 * high * norm))
    c, masses = special.roots_jacobi(size, (d - 3) / 2, (d - 3) / 2)
  log_density = (d - 1) * np.log(u) - (u - norm) ** 2 / 2
  weights = weights * np.exp(log_density - log_density.max())
  joint = weights[:, None] * masses * np.exp(-u[:, None] * norm * (1 - c))
  joint = joint / joint.sum()

  along = np.outer(axis, axis)
  across = (np.eye(d) - along) / max(d - 1, 1)  # The rest of E θ⊗θ lies across.
  sides = np.einsum('i,jk->ijk', axis, across)
  sides = sides + sides.transpose(1, 0, 2) + sides.transpose(2, 1, 0)
  cube = np.einsum('i,jk->ijk', axis, along)

  def average(values: Float[np.ndarray, ' n'], order: int) -> np.ndarray:
    def mean_of(power: Float[np.ndarray, ' m']) -> float:
      return float(values @ joint @ power)

    if order == 0:
      return np.asarray(mean_of(c**0))
    if order == 1:
      return mean_of(c) * axis
    if order == 2:
      return mean_of(c**2) * along + mean_of(1 - c**2) * across
    return mean_of(c**3) * cube + mean_of(c * (1 - c**2)) * sides

  return Prior(u, average)
