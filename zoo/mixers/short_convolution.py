"""A short causal convolution of each channel, which can also run token by token."""

from __future__ import annotations

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from zoo.mixers.mixer import PLAIN, split

KERNEL = 4  # tokens that an output depends on
PAST = KERNEL - 1  # how many of these came before the output's own token


class ShortConvolution(nnx.Module):
  """y_t = Σ_{j=0}^{3} a_j ∘ x_{t−3+j} + b, one kernel per channel.

  x is 0 before the first token, as in H3 (arXiv 2212.14052) and Mamba (2312.00752).
  """

  roles = {'kernel': 'vector'}

  def __init__(self, channels: int, *, rngs: nnx.Rngs):
    # From N(0, 1/4) whatever the scale of a model's projections, so that the outputs
    # have the scale of the inputs.
    kernel = PLAIN.kernel()(rngs.params(), (KERNEL, channels))
    self.kernel = nnx.Param(kernel, **split(None, 'model'))
    self.bias = nnx.Param(jnp.zeros(channels), **split('model'))

  def __call__(
    self, features: Float[Array, 'b n c'], past: Float[Array, 'b p c']
  ) -> tuple[Float[Array, 'b n c'], Float[Array, 'b p c']]:
    """The outputs, and the last three inputs, which are the past of the next token."""
    n = features.shape[1]
    inputs = jnp.concatenate([past, features], axis=1)
    kernel, outputs = self.kernel[...], self.bias[...][None, None]
    for j in range(KERNEL):
      outputs = outputs + kernel[None, None, j] * inputs[:, j : j + n]
    return outputs, inputs[:, n:]
