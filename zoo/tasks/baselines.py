"""Baselines that predict one prompt at a time, at every length of its context."""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from zoo.core.prompt import Prompt
from zoo.core.values import Vector, leaf, value


class Baseline(abc.ABC):
  """An untrained predictor, defined by `predict` for one prompt.

  A subclass is decorated with `zoo.core.values.value`: its numbers are then arguments
  of compiled programs, which baselines of the same class and sizes share.
  """

  # Whether prompts are predicted one after another, because each needs much memory.
  one_by_one: ClassVar[bool] = False
  # Whether a comparison gives it fewer prompts, because each takes a millisecond.
  is_slow: ClassVar[bool] = False

  @abc.abstractmethod
  def predict(
    self,
    x: Float[Array, 'c d'],
    y: Float[Array, ' c *k'],
    seen: Bool[Array, ' c'],
    x_query: Float[Array, ' d'],
  ) -> Float[Array, '*k']:
    """The prediction at a query from the seen examples, which come first."""

  def __call__(self, prompt: Prompt) -> Float[Array, ' b *k']:
    """The prediction for each prompt's query."""
    c, x, y = prompt.x.shape[1], prompt.x, prompt.y
    if c == 0:  # one unseen example, so that `predict` needs no case for c = 0
      x, y = (jnp.zeros((len(a), 1, *a.shape[2:]), a.dtype) for a in (x, y))
    seen = jnp.arange(x.shape[1]) < c
    return self._predict_each(x, y, seen, prompt.x_query)

  def predictions(self, prompt: Prompt) -> Float[Array, 'b t *k']:
    """The prediction for each example from those before it, that for the query last."""
    return at_every_length(prompt, self._predict_each)

  def _predict_each(
    self,
    x: Float[Array, 'b c d'],
    y: Float[Array, 'b c *k'],
    seen: Bool[Array, ' c'],
    x_query: Float[Array, 'b d'],
  ) -> Float[Array, ' b *k']:
    if not self.one_by_one:
      return jax.vmap(self.predict, (0, 0, None, 0))(x, y, seen, x_query)

    # The gradient computes a prompt again instead of keeping its intermediate values.
    @functools.partial(jax.checkpoint, prevent_cse=False)
    def predict(one: tuple[Array, Array, Array]) -> Array:
      return self.predict(*one[:2], seen, one[2])

    return jax.lax.map(predict, (x, y, x_query))


class HostBaseline(abc.ABC):
  """A predictor that fits a model of another library to each prompt, on the host.

  It cannot be compiled, and is so slow that a comparison gives it fewer prompts.
  """

  @abc.abstractmethod
  def fit_and_predict(
    self,
    x: Float[np.ndarray, 'k d'],
    y: Float[np.ndarray, ' k'],
    x_query: Float[np.ndarray, ' d'],
  ) -> float:
    """The prediction at a query from k ≥ 0 examples."""

  def __call__(self, prompt: Prompt) -> Float[Array, ' b']:
    """The prediction for each prompt's query."""
    arrays = (np.asarray(array) for array in (prompt.x, prompt.y, prompt.x_query))
    found = [self.fit_and_predict(*one) for one in zip(*arrays, strict=True)]
    return jnp.asarray(found, prompt.x.dtype)


def at_every_length(
  prompt: Prompt, predict: Callable[[Array, Array, Array, Array], Array]
) -> Float[Array, 'b t *k']:
  """The predictions of `predict(x, y, seen, x_query)` from 0, 1, …, c examples."""
  c = prompt.x.shape[1]
  queries = prompt.features

  def at(k: Array) -> Array:
    return predict(prompt.x, prompt.y, jnp.arange(c) < k, queries[:, k])

  return jnp.moveaxis(jax.lax.map(at, jnp.arange(c + 1)), 0, 1)


def zeroed(
  x: Float[Array, 'c d'], y: Float[Array, ' c *k'], seen: Bool[Array, ' c']
) -> tuple[Float[Array, 'c d'], Float[Array, ' c *k']]:
  """The examples, with zeros in place of those that are not seen."""
  along = seen.reshape(-1, *(1,) * (y.ndim - 1))
  return jnp.where(seen[:, None], x, 0), jnp.where(along, y, 0)


@value
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


@value
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


@value
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


@value
class LeastSquares(Baseline):
  """Ridge regression; a penalty of 0 is least squares with weights of least norm.

  `squares` fits weights of the squared features instead. With `center`, one number for
  each weight, the norm is that of the weights minus `center`.
  """

  penalty: float = 0.0
  squares: bool = False
  center: Vector | None = leaf(default=None)

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
