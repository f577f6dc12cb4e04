"""The installed jaxlib computes what it is asked for."""

import jax
import jax.numpy as jnp
import numpy as np


def test_sums_of_products_are_those_without_a_compiler():
  """With jaxlib 0.10.2 they were not, on CPUs (jax-ml/jax, issue 39103)."""
  count = 32769
  i = jnp.arange(count, dtype=jnp.float32)
  rows = jnp.stack([i, jnp.zeros(count), jnp.zeros(count)], axis=1)
  square = jax.jit(jax.vmap(lambda row: jnp.sum((jnp.eye(3) @ row) ** 2)))
  # Squares of integers up to 2²⁴ that are rounded once.
  expected = np.arange(count, dtype=np.float64) ** 2
  np.testing.assert_allclose(square(rows), expected, rtol=1e-6)
