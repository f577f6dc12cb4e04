"""Roots and ranks of covariances, in float64 on the host."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

# Eigenvalues of a covariance below this fraction of the largest are rounding errors.
RANK_TOLERANCE = 1e-12


def symmetric_root(covariance: Float[np.ndarray, 'd d']) -> Float[np.ndarray, 'd d']:
  """Returns the symmetric R with R R = covariance, which may be singular."""
  scales, vectors = scales_and_axes(covariance)
  return (vectors * scales) @ vectors.T


def scales_and_axes(
  covariance: Float[np.ndarray, 'd d'],
) -> tuple[Float[np.ndarray, ' d'], Float[np.ndarray, 'd d']]:
  """Returns the roots of a covariance's eigenvalues, and the eigenvectors as columns.

  Where an eigenvalue is a rounding error, as in a singular covariance, its root is 0.
  """
  eigenvalues, vectors = np.linalg.eigh(covariance)
  seen = eigenvalues > RANK_TOLERANCE * eigenvalues[-1]
  return np.sqrt(np.where(seen, eigenvalues, 0)), vectors


def is_scalar(matrix: Float[np.ndarray, 'd d']) -> bool:
  """Says whether a matrix is a multiple of the identity, up to rounding."""
  identity = matrix[0, 0] * np.eye(len(matrix))
  return np.allclose(matrix, identity, rtol=0, atol=1e-12 * abs(matrix[0, 0]))
