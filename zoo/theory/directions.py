"""Averages over a prior of weights `ŵ = uθ`, with length u and direction θ."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import special

_POINTS = 12  # of each Gauss–Legendre rule


class Prior(NamedTuple):
  """A distribution of weights, represented by the averages that are needed of it.

  `average(values, k)` is `E s(u) θ⊗…⊗θ` with k ≤ 3 factors θ, for a function s with the
  given values at the lengths.
  """

  lengths: Float[np.ndarray, ' n']
  average: Callable[[Float[np.ndarray, ' n'], int], np.ndarray]


def pool_prior(weights: Float[np.ndarray, 'n d']) -> Prior:
  """The uniform distribution over given weights."""
  lengths = np.linalg.norm(weights, axis=1)
  # Weights of length 0 have no direction; every term with a direction is 0 there.
  directions = weights / np.where(lengths > 0, lengths, 1)[:, None]

  def average(values: Float[np.ndarray, ' n'], order: int) -> np.ndarray:
    operands = [directions] * order
    indices = [f'n{letter}' for letter in 'ijk'[:order]]
    subscripts = ','.join(['n', *indices]) + '->' + 'ijk'[:order]
    total = np.einsum(subscripts, values, *operands, optimize=True)
    return np.asarray(total / len(lengths))

  return Prior(lengths, average)


def normal_prior(mean: Float[np.ndarray, ' d']) -> Prior:
  """`ŵ ~ N(mean, I)`, integrated over u by Gauss–Legendre rules on short intervals.

  Given the length u, θ has a von Mises–Fisher distribution about the mean (Mardia &
  Jupp, Directional Statistics, section 9.3), whose moments are known.
  """
  d = mean.size
  norm = float(np.linalg.norm(mean))
  axis = mean / norm if norm > 0 else np.eye(d)[0]
  lengths, probability = _lengths(d, norm)
  cosine, across, mixed = _direction_moments(d, lengths * norm)
  eye = np.eye(d)
  sides = np.einsum('i,jk->ijk', axis, eye)
  sides = sides + sides.transpose(1, 0, 2) + sides.transpose(2, 1, 0)
  cube = np.einsum('i,j,k->ijk', axis, axis, axis)

  def average(values: Float[np.ndarray, ' n'], order: int) -> np.ndarray:
    weighted = values * probability
    if order == 0:
      return np.asarray(weighted.sum())
    if order == 1:
      return (weighted @ cosine) * axis
    if order == 2:
      along = 1 - d * across  # E c² − p
      return (weighted @ across) * eye + (weighted @ along) * np.outer(axis, axis)
    along = cosine - (d + 2) * mixed  # E c³ − 3 q
    return (weighted @ mixed) * sides + (weighted @ along) * cube

  return Prior(lengths, average)


def panels(
  edges: Float[np.ndarray, ' k'], num_points: int
) -> tuple[Float[np.ndarray, ' n'], Float[np.ndarray, ' n']]:
  """Points and weights of a Gauss–Legendre rule between each pair of adjacent edges."""
  nodes, weights = np.polynomial.legendre.leggauss(num_points)
  middle, half = (edges[1:] + edges[:-1]) / 2, np.diff(edges) / 2
  return (
    (middle[:, None] + half[:, None] * nodes).ravel(),
    (half[:, None] * weights).ravel(),
  )


def _lengths(
  d: int, norm: float
) -> tuple[Float[np.ndarray, ' n'], Float[np.ndarray, ' n']]:
  """Points, and weights that sum to 1, for the length of `N(w, I)` with |w| = norm.

  Its density is `∝ u^(d−1) exp(−(u² + |w|²)/2) 0F1(; d/2; u²|w|²/4)`.
  """
  # The length is 1-Lipschitz in ŵ, so it is farther than 12 from its mean with a
  # probability below 2 exp(−72), and its mean is within 1 below `center`.
  center = math.sqrt(norm**2 + d)
  low, high = max(0.0, center - 13), center + 12
  edges = np.linspace(low, high, math.ceil(high - low) + 1)
  if low == 0:  # with label noise, moments may change quickly near length 0
    edges = np.append(0.0, np.unique(np.append(edges[1:], 0.5 ** np.arange(12))))
  u, weights = panels(edges, _POINTS)
  kappa, order = u * norm, d / 2 - 1
  small = kappa < 1e-3  # where two terms of the series are enough
  safe = np.where(small, 1, kappa)
  bessel = np.log(special.ive(order, safe)) + safe - order * np.log(safe / 2)
  series = np.log1p(kappa**2 / (2 * d))
  log_density = np.where(small, series, bessel + special.gammaln(d / 2))
  log_density += (d - 1) * np.log(u) - (u**2 + norm**2) / 2
  density = weights * np.exp(log_density - log_density.max())
  return u, density / density.sum()


def _direction_moments(
  d: int, kappa: Float[np.ndarray, ' n']
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """`E c`, `p = E (1 − c²)/(d − 1)`, `q = E c (1 − c²)/(d − 1)` of a cosine c.

  The density of c is `∝ exp(κc) (1 − c²)^((d−3)/2)`. With
  `s_ν = I_{ν+1}(κ) / (κ I_ν(κ))` and `ν = d/2 − 1` the moments are `κ s_ν`, `s_ν` and
  `κ s_ν s_{ν+1}`, which avoids a division by d − 1 or κ;
  `s_ν = 1/(2ν + 2 + κ² s_{ν+1})`.
  """
  # An error at the order ν + n is reduced by a factor exp(−n²/κ) at ν.
  steps = 40 + math.ceil(math.sqrt(40 * kappa.max()))
  start = d / 2 + steps
  ratio = following = 1 / (start + np.sqrt(start**2 + kappa**2))
  for step in reversed(range(steps)):
    following = ratio
    ratio = 1 / (d + 2 * step + kappa**2 * following)
  return kappa * ratio, ratio, kappa * ratio * following
