"""Losses of predictions, given their targets."""

import jax.numpy as jnp
from jaxtyping import Array, Float


def squared_error(
  prediction: Float[Array, '*n'], target: Float[Array, '*n']
) -> Float[Array, '*n']:
  """`(f − y)²`, whose mean over prompts is the in-context risk (2512.04268, eq. 4)."""
  return jnp.square(prediction - target)
