"""Baselines that predict one prompt at a time, at every length of its context."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from zoo.prompt import Prompt


class Baseline:
  """An untrained predictor, defined by `predict` for one prompt.

  Equal baselines share compiled programs, so a subclass must be a frozen dataclass with
  hashable fields.
  """

  # Whether prompts are predicted one after another, because each needs much memory.
  one_by_one: ClassVar[bool] = False

  def predict(
    self,
    x: Float[Array, 'c d'],
    y: Float[Array, ' c *k'],
    seen: Bool[Array, ' c'],
    x_query: Float[Array, ' d'],
  ) -> Float[Array, '*k']:
    """The prediction at a query from the seen examples, which come first."""
    raise NotImplementedError

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


class HostBaseline:
  """A predictor that fits a model of another library to each prompt, on the host.

  It cannot be compiled, and is so slow that a comparison gives it fewer prompts.
  """

  def fit_and_predict(
    self,
    x: Float[np.ndarray, 'k d'],
    y: Float[np.ndarray, ' k'],
    x_query: Float[np.ndarray, ' d'],
  ) -> float:
    """The prediction at a query from k ≥ 0 examples."""
    raise NotImplementedError

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
