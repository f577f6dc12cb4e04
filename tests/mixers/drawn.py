"""Mixers with random weights, and tokens for them."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from zoo.core import registry
from zoo.mixers import Slot

B, N, W, H = 2, 7, 8, 2
EXACT = 1e-10  # float64: some thousand roundings of 1e-16, little cancellation


def warm(name: str, dtype: Any = 'float64', width: int = W, heads: int = H, **options):
  """A mixer whose parameters are random, so that none is 0 or 1."""

  def build():
    slot = Slot(width, heads)
    return registry.create_mixer(name, slot=slot, rngs=nnx.Rngs(0), **options)

  rng = np.random.default_rng(0)

  def draw(leaf):
    # Roots of the number of inputs keep features of order 1.
    scale = 0.5 if leaf.ndim == 1 else leaf.shape[-2] ** -0.5
    drawn = scale * rng.normal(size=leaf.shape)
    # Converted in NumPy: JAX would compile a program for each shape.
    return jnp.asarray(drawn.astype(jnp.dtype(dtype)), dtype)

  graph, parameters = nnx.split(nnx.eval_shape(build))
  return nnx.merge(graph, jax.tree.map(draw, parameters))


@nnx.jit
def call(mixer, x):
  """The outputs of a mixer, compiled: one by one its operations would take longer."""
  return mixer(x)


def tokens(n: int = N, dtype: Any = 'float64', width: int = W):
  drawn = np.random.default_rng(1).normal(size=(B, n, width))
  return jnp.asarray(drawn.astype(jnp.dtype(dtype)), dtype)


def parameters(module) -> dict[str, np.ndarray]:
  """By path, such as 'query.kernel', the parameters of a module."""
  flat = nnx.to_flat_state(nnx.state(module, nnx.Param))
  return {'.'.join(map(str, path)): np.asarray(leaf[...]) for path, leaf in flat}
