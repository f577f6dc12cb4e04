"""A short causal convolution of each channel, which can also run token by token."""

from __future__ import annotations

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from zoo.mixers.mixer import PLAIN, split

KERNEL = 4  # An output depends on this many tokens.
PAST = KERNEL - 1  # This many of them came before the output's own token.


class ShortConvolution(nnx.Module):
  """A causal convolution of each channel over four tokens.

    y_t = Σ_{j=0}^{3} a_j ∘ x_{t−3+j} + b

  x is 0 before the first token, as in H3 (arXiv 2212.14052) and Mamba (2312.00752).
  """

  roles = {'kernel': 'vector'}

  def __init__(self, channels: int, *, rngs: nnx.Rngs):
    # The kernel starts from N(0, 1/4) at any scale of a model's projections, so that
    # the outputs have the scale of the inputs.
    kernel = PLAIN.kernel()(rngs.params(), (KERNEL, channels))
    self.kernel = nnx.Param(kernel, **split(None, 'model'))
    self.bias = nnx.Param(jnp.zeros(channels), **split('model'))

  def __call__(
    self, features: Float[Array, 'b n c'], past: Float[Array, 'b p c']
  ) -> tuple[Float[Array, 'b n c'], Float[Array, 'b p c']]:
    """Returns the outputs, and the last three inputs.

    These inputs are the `past` of the next token.
    """
    n = features.shape[1]
    inputs = jnp.concatenate([past, features], axis=1)
    kernel, outputs = self.kernel[...], self.bias[...][None, None]
    for j in range(KERNEL):
      outputs = outputs + kernel[None, None, j] * inputs[:, j : j + n]
    return outputs, inputs[:, n:]
