"""Trains GPT-2 on in-context linear regression in plain Flax.

This is the program of benchmarks/gpt2_pytorch.py, written as in Flax's tutorials: the
layers are those of Flax, and a Python loop calls one step that is compiled by
`nnx.jit`. It needs jax, flax and optax, but not this library.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from flax import nnx


class Block(nnx.Module):
  """A layer of GPT-2: attention and a network, each after a layer norm."""

  def __init__(self, width: int, num_heads: int, *, rngs: nnx.Rngs):
    self.norm_1 = nnx.LayerNorm(width, epsilon=1e-5, rngs=rngs)
    self.attention = nnx.MultiHeadAttention(num_heads, width, decode=False, rngs=rngs)
    self.norm_2 = nnx.LayerNorm(width, epsilon=1e-5, rngs=rngs)
    self.up = nnx.Linear(width, 4 * width, rngs=rngs)
    self.down = nnx.Linear(4 * width, width, rngs=rngs)

  def __call__(self, tokens: jax.Array) -> jax.Array:
    mask = nnx.make_causal_mask(tokens[..., 0])
    tokens += self.attention(self.norm_1(tokens), mask=mask)
    return tokens + self.down(nnx.gelu(self.up(self.norm_2(tokens))))


class Transformer(nnx.Module):
  """GPT-2 between a linear embedding of the tokens and a linear readout."""

  def __init__(
    self,
    num_layers: int,
    width: int,
    num_heads: int,
    num_features: int,
    num_points: int,
    *,
    rngs: nnx.Rngs,
  ):
    self.read_in = nnx.Linear(num_features, width, rngs=rngs)
    positions = 0.02 * jax.random.normal(rngs.params(), (2 * num_points - 1, width))
    self.positions = nnx.Param(positions)
    blocks = (Block(width, num_heads, rngs=rngs) for _ in range(num_layers))
    self.blocks = nnx.List(blocks)
    self.norm = nnx.LayerNorm(width, epsilon=1e-5, rngs=rngs)
    self.read_out = nnx.Linear(width, 1, rngs=rngs)

  def __call__(self, x: jax.Array, y: jax.Array) -> jax.Array:
    """Returns predictions `[b, n]` at all points, for `x [b, n, d]` and `y [b, n]`."""
    labels = jnp.zeros_like(x).at[..., 0].set(y)
    b, n, d = x.shape
    tokens = jnp.stack([x, labels], axis=2).reshape(b, 2 * n, d)[:, :-1]
    tokens = self.read_in(tokens) + self.positions[...][None]
    for block in self.blocks:
      tokens = block(tokens)
    return self.read_out(self.norm(tokens[:, ::2]))[..., 0]


def make_run(
  num_layers: int,
  width: int,
  num_heads: int,
  num_features: int,
  num_points: int,
  batch_size: int,
) -> Callable[[int], object]:
  """Returns a function that takes a number of training steps and waits for them."""
  shape = batch_size, num_points, num_features
  rngs = nnx.Rngs(0)
  model = Transformer(num_layers, width, num_heads, num_features, num_points, rngs=rngs)
  adam = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(2e-3))
  optimizer = nnx.Optimizer(model, adam, wrt=nnx.Param)

  @nnx.jit
  def step(model: Transformer, optimizer: nnx.Optimizer, rngs: nnx.Rngs) -> jax.Array:
    w = jax.random.normal(rngs.prompts(), (batch_size, num_features))
    x = jax.random.normal(rngs.prompts(), shape)
    y = jnp.einsum('bnd,bd->bn', x, w)

    def loss(model: Transformer) -> jax.Array:
      return jnp.square(model(x, y) - y).mean()

    value, gradient = nnx.value_and_grad(loss)(model)
    optimizer.update(model, gradient)
    return value

  def run(steps: int) -> object:
    value = jnp.zeros(())
    for _ in range(steps):
      value = step(model, optimizer, rngs)
    return jax.block_until_ready(value)

  return run
