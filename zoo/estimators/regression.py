"""Baselines for regression that need no parameters of a task."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from zoo.estimators.baseline import Baseline, zeroed


@dataclasses.dataclass(frozen=True)
class Zero(Baseline):
  """Predicts 0: the mean of a centred task, or equal probabilities of all classes."""

  def predict(
    self,
    x: Float[Array, 'c d'],
    y: Float[Array, ' c *k'],
    seen: Bool[Array, ' c'],
    x_query: Float[Array, ' d'],
  ) -> Float[Array, '*k']:
    return jnp.zeros(y.shape[1:], y.dtype)


@dataclasses.dataclass(frozen=True)
class NearestNeighbours(Baseline):
  """The mean label of the examples nearest to the query; 0 before the first."""

  num_neighbours: int = 3

  def predict(
    self,
    x: Float[Array, 'c d'],
    y: Float[Array, ' c'],
    seen: Bool[Array, ' c'],
    x_query: Float[Array, ' d'],
  ) -> Float[Array, '']:
    distances = jnp.sum(jnp.square(x - x_query[None]), axis=-1)
    distances = jnp.where(seen, distances, jnp.inf)
    nearest = jnp.argsort(distances)[: self.num_neighbours]
    weights = seen[nearest].astype(y.dtype)
    return jnp.sum(weights * y[nearest]) / jnp.maximum(jnp.sum(weights), 1)


@dataclasses.dataclass(frozen=True)
class Averaging(Baseline):
  """Predicts `w·x_q` with `w = (1/k) Σ_i y_i x_i` (Garg et al., arXiv 2208.01066)."""

  def predict(
    self,
    x: Float[Array, 'c d'],
    y: Float[Array, ' c'],
    seen: Bool[Array, ' c'],
    x_query: Float[Array, ' d'],
  ) -> Float[Array, '']:
    x, y = zeroed(x, y, seen)
    count = jnp.maximum(jnp.sum(seen), 1).astype(y.dtype)
    return jnp.dot(x_query, y @ x) / count


@dataclasses.dataclass(frozen=True)
class LeastSquares(Baseline):
  """Ridge regression; a penalty of 0 is least squares with weights of least norm.

  `squares` fits weights of the squared features instead. With `center`, one number for
  each weight, the norm is that of the weights minus `center`.
  """

  penalty: float = 0.0
  squares: bool = False
  center: tuple[float, ...] | None = None

  def predict(
    self,
    x: Float[Array, 'c d'],
    y: Float[Array, ' c'],
    seen: Bool[Array, ' c'],
    x_query: Float[Array, ' d'],
  ) -> Float[Array, '']:
    if self.squares:
      x, x_query = jnp.square(x), jnp.square(x_query)
    if self.center is not None:
      center = jnp.asarray(self.center, x.dtype)
      about = LeastSquares(self.penalty)
      return jnp.dot(x_query, center) + about.predict(x, y - x @ center, seen, x_query)
    x, y = zeroed(x, y, seen)
    # Not by the normal equations, which would square the condition number.
    u, s, vt = jnp.linalg.svd(x, full_matrices=False)
    # Below this a singular value is rounding error, as usual for a pseudo-inverse.
    noise_floor = s[0] * jnp.finfo(s.dtype).eps * max(x.shape)
    inverse = jnp.where(s > noise_floor, s / (s * s + self.penalty), 0)
    return jnp.dot(x_query, ((y @ u) * inverse) @ vt)
