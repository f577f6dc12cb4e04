"""How tokens become vectors of the width: one linear layer, or convolutions first."""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from zoo.core.errors import UserError, check_name
from zoo.mixers.mixer import Init, Linear
from zoo.models.tokens import at_examples

READ_INS = 'flat', 'convolutional'
_CHANNELS = 16, 32


class ConvolutionalReadIn(nnx.Module):
  """Convolutions of an example's features as a grey image, and linear layers.

    W_x pool(f(K_2 ∗ pool(f(K_1 ∗ x)))) + W_y y + b

  f is GELU. The kernels K are 3 × 3, to 16 and to 32 channels. `pool` takes means over
  2 × 2 pixels, and y is the rest of a token, without the features. The constructor
  raises UserError if `num_features` is not a square.
  """

  def __init__(
    self,
    num_features: int,
    token_width: int,
    layout: str,
    width: int,
    init: Init,
    *,
    rngs: nnx.Rngs,
  ):
    self.size, self.layout = math.isqrt(num_features), layout
    self.out_features = width  # nnx.Linear has this attribute, too.
    if self.size**2 != num_features:
      raise UserError(
        f"read_in is 'convolutional', and num_features {num_features}; it must be the "
        'square of the size of an image'
      )
    read = functools.partial(Linear, kernel_init=init.kernel(), rngs=rngs)
    first, second = _CHANNELS
    self.convolve_1 = read(9, first, use_bias=False)
    self.convolve_2 = read(9 * first, second, use_bias=False)
    outputs = second * math.ceil(math.ceil(self.size / 2) / 2) ** 2
    self.read_image = read(outputs, width, use_bias=False)
    self.read_rest = read(token_width - num_features, width)

  def __call__(self, tokens: Float[Array, 'b n m']) -> Float[Array, 'b n w']:
    """Returns the vectors `[b, n, w]` of tokens `[b, n, m]`."""
    at = at_examples(self.layout)  # These tokens have features.
    x, rest = tokens[:, at, : self.size**2], tokens[..., self.size**2 :]
    images = x.reshape(-1, self.size, self.size, 1)
    for convolve in (self.convolve_1, self.convolve_2):
      images = _halved(jax.nn.gelu(convolve(_neighbours(images))))
    read = self.read_image(images.reshape(*x.shape[:2], -1))
    return self.read_rest(rest).at[:, at].add(read)


def make_read_in(
  name: str,
  num_features: int,
  token_width: int,
  layout: str,
  width: int,
  init: Init,
  *,
  rngs: nnx.Rngs,
) -> Linear | ConvolutionalReadIn:
  """Returns the module that reads tokens, one of READ_INS.

  Raises:
    UserError: If the name is unknown, or if convolutions are asked for and the number
      of features is not a square.
  """
  if check_name('read_in', name, READ_INS) == 'flat':
    return Linear(token_width, width, kernel_init=init.kernel(), rngs=rngs)
  return ConvolutionalReadIn(num_features, token_width, layout, width, init, rngs=rngs)


def _neighbours(images: Float[Array, 'n h w c']) -> Float[Array, 'n h w k']:
  """Returns the 3 × 3 pixels around each pixel, for a convolution; 0 beyond the edge.

  In the loop of training, XLA:CPU takes 20 times as long for its own convolutions.
  """
  _, height, width, _ = images.shape
  padded = jnp.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)))
  shifted = [
    padded[:, i : i + height, j : j + width] for i in range(3) for j in range(3)
  ]
  return jnp.concatenate(shifted, axis=-1)


def _halved(images: Float[Array, 'n h w c']) -> Float[Array, 'n i j c']:
  """Returns means over 2 × 2 pixels.

  At the end of an odd size, the mean is over those pixels that there are.
  """
  return nnx.avg_pool(
    images, (2, 2), strides=(2, 2), padding='SAME', count_include_pad=False
  )
