"""Iterative solvers of least squares, on the spectrum of each prompt's features.

Let `S = XᵀX/C = V diag(s) Vᵀ`, `r = Xᵀy/C` and w_0 a start, so that the residual of the
normal equations is `g = r − S w_0`. All solvers here except conjugate gradients are a
filter φ_k(s) that is the same for all prompts: w_k = w_0 + V φ_k(s) Vᵀ g. Hence a
prediction is `w_0·x_q + Σ_i φ_k(s_i) (Vᵀ x_q)_i (Vᵀ g)_i`, and least squares has the
filter φ(s) = 1/s.

Filters take eigenvalues of any shape, and are computed step by step. The formula
`(1 − ρ_k)/s`, with the residual polynomial ρ_k, would divide by eigenvalues that are 0.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from zoo.core.matrices import RANK_TOLERANCE

Spectrum = Float[np.ndarray, 'p d']


class Spectra(NamedTuple):
  """The normal equations of prompts, in the eigenvectors of their features.

  Attributes:
    values: The eigenvalues s of S.
    residual: Vᵀ g.
    query: Vᵀ x_q.
    start: w_0·x_q.
  """

  values: Spectrum
  residual: Spectrum
  query: Spectrum
  start: Float[np.ndarray, ' p']

  def predict(self, filtered: Spectrum) -> Float[np.ndarray, ' p']:
    """Returns the predictions of a filter φ(s)."""
    return self.start + np.sum(filtered * self.residual * self.query, axis=1)


def spectra(
  x: Float[np.ndarray, 'p c d'],
  y: Float[np.ndarray, 'p c'],
  x_query: Float[np.ndarray, 'p d'],
  start: Float[np.ndarray, ' d'],
  root: Float[np.ndarray, 'd d'] | None = None,
) -> Spectra:
  """Returns the normal equations of prompts with examples, from a start w_0.

  With a symmetric root R they are those of the features R x, where a step of descent is
  a step that is preconditioned by R R.
  """
  labels, answer = y - x @ start, x_query @ start
  if root is not None:
    x, x_query = x @ root, x_query @ root
  features = np.matmul(np.swapaxes(x, 1, 2), x) / x.shape[1]
  values, vectors = np.linalg.eigh(features)
  residual = np.einsum('pci,pc->pi', x, labels) / x.shape[1]
  residual = np.einsum('pij,pi->pj', vectors, residual)
  # Where S is singular, g is 0 as well; conjugate gradients would follow its rounding
  # errors.
  seen = values > RANK_TOLERANCE * values[:, -1:]
  return Spectra(
    np.where(seen, values, 0),
    np.where(seen, residual, 0),
    np.einsum('pij,pi->pj', vectors, x_query),
    answer,
  )


def gradient_descent(values: Spectrum, num_steps: int, step: float) -> Spectrum:
  """Returns the filter of k steps of one size: ρ_k = (1 − ηs)^k."""
  return richardson(values, [step] * num_steps)


def richardson(values: Spectrum, steps: list[float]) -> Spectrum:
  """Returns the filter of steps of different sizes: ρ_k = Π_j (1 − η_j s)."""
  filtered, left = np.zeros_like(values), np.ones_like(values)
  for step in steps:
    filtered = filtered + step * left
    left = left * (1 - step * values)
  return filtered


def chebyshev_steps(num_steps: int, low: float, high: float) -> list[float]:
  """Returns the k step sizes with the least worst case of |ρ_k| on an interval of s.

  They are one over the zeros of the k-th Chebyshev polynomial of that interval (Young,
  J. Math. Phys. 32, 1953; Saad, Iterative Methods for Sparse Linear Systems, 12.3.2).
  """
  angles = np.pi * (np.arange(num_steps) + 0.5) / max(num_steps, 1)
  zeros = (high + low) / 2 + (high - low) / 2 * np.cos(angles)
  return (1 / zeros).tolist()


def chebyshev(values: Spectrum, num_steps: int, low: float, high: float) -> Spectrum:
  """Returns the filter of Richardson's iteration with `chebyshev_steps`."""
  return richardson(values, chebyshev_steps(num_steps, low, high))


def gd_plus_plus(
  values: Spectrum, num_steps: int, step: float, contraction: float
) -> Spectrum:
  """Returns the filter of GD++ (von Oswald et al., arXiv 2212.07677).

  It is gradient descent on features that contract. Each step of size η is followed by
  `x ← (I − γ S_j) x` for all features, where S_j is their second moment, with
  eigenvalues s a_j². Hence ρ_{j+1} = (1 − η s a_j²) ρ_j and a_{j+1} = (1 − γ s a_j²)
  a_j.
  """
  filtered, left = np.zeros_like(values), np.ones_like(values)
  square = np.ones_like(values)  # this is a_j²
  for _ in range(num_steps):
    filtered = filtered + step * square * left
    left = left * (1 - step * square * values)
    square = square * (1 - contraction * square * values) ** 2
  return filtered


def newton(values: Spectrum, num_steps: int) -> Spectrum:
  """Returns the filter of iterative Newton (Fu et al., arXiv 2310.17086).

  The iteration M_{j+1} = 2 M_j − M_j S M_j starts at M_0 = α S, which counts as 0
  steps. With α = 1/|S|², in the spectral norm, the error `1 − s m_j` starts within [0,
  1], and is squared in each step. With half of that α the iteration would be one step
  behind, for small eigenvalues.
  """
  largest = values.max(axis=-1, keepdims=True)
  inverse = values / np.where(largest > 0, largest, 1) ** 2
  for _ in range(num_steps):
    inverse = (2 - values * inverse) * inverse
  return inverse


def conjugate_gradients(spectra: Spectra, num_steps: int) -> Float[np.ndarray, ' p']:
  """Returns the predictions after k steps (Hestenes & Stiefel, J. Res. NBS 49, 1952).

  A prompt whose residual is 0, up to rounding, stops.
  """
  values, left = spectra.values, spectra.residual
  moved, direction = np.zeros_like(left), left
  square = np.sum(left**2, axis=1)
  least = np.finfo(np.float64).eps ** 2 * square
  for _ in range(num_steps):
    curvature = np.sum(values * direction**2, axis=1)
    goes_on = (square > least) & (curvature > 0)
    step = np.divide(square, curvature, out=np.zeros_like(square), where=goes_on)
    moved = moved + step[:, None] * direction
    left = left - step[:, None] * values * direction
    before, square = square, np.sum(left**2, axis=1)
    turn = np.divide(square, before, out=np.zeros_like(square), where=goes_on)
    direction = np.where(goes_on[:, None], left + turn[:, None] * direction, 0)
  return spectra.start + np.sum(moved * spectra.query, axis=1)
