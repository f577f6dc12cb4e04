"""Baselines for the recall of values by their keys."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from zoo import losses
from zoo.estimators.baseline import Baseline, zeroed


@dataclasses.dataclass(frozen=True)
class Recall(Baseline):
  """The value that the query's key had; for a new key all values are equally likely.

  `own_values` leaves out the values of other keys, as each key has its own value.
  """

  own_values: bool

  def predict(
    self,
    x: Float[Array, 'c d'],
    y: Float[Array, 'c k'],
    seen: Bool[Array, ' c'],
    x_query: Float[Array, ' d'],
  ) -> Float[Array, ' k']:
    x, y = zeroed(x, y, seen)
    value = (x @ x_query) @ y
    free = jnp.ones_like(value)
    if self.own_values:
      free = jnp.where(jnp.sum(y, axis=0) > 0, 0, free)
    weights = jnp.where(jnp.any(value > 0), value, free)
    return losses.log_probability(weights / jnp.maximum(jnp.sum(weights), 1))
