"""Hyena, and causal convolution with long kernels."""

from __future__ import annotations

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from zoo.core.errors import check_number
from zoo.core.registry import register_mixer
from zoo.core.taps import Tap
from zoo.mixers.mixer import (
  Mixer,
  Slot,
  Tokens,
  project,
  project_back,
  split,
  widen,
  widened,
)
from zoo.mixers.short_convolution import PAST, ShortConvolution

_BANDS = 8  # The features of a position have this many frequencies.
_HIDDEN = 64  # The network that gives the filters has this many hidden features.


@register_mixer('hyena')
class Hyena(Mixer):
  """Hyena of order 2: gates and two long convolutions.

    v, x_1, x_2 = conv(W u)
    y = W_o (x_2 ∘ (h_2 ∗ (x_1 ∘ (h_1 ∗ v))))
    h_i(t) = exp(−α t/T) ∘ network_i(t/T) + D_i [t = 0]

  Here u are the tokens, ∗ is a causal convolution of each channel over all tokens, and
  conv is one over four tokens. Each of the two filters has a skip D for each channel.
  The rates α run from log(100)/1.5 to log(100)/0.3 over the channels. The network has
  two hidden layers of 64 sines. It reads the position t/T, and its sines and cosines at
  8 frequencies. There are no heads, so `slot.num_heads` has no effect, and no recurrent
  state: the mixer cannot take tokens one by one.

  Differences from the authors' code: at order 2 it has one long convolution,
  x_2 ∘ (h ∗ (x_1 ∘ v)), where the paper and this class have two. T is the sequence
  length there. Its short convolutions are over 3 tokens, its network has three layers
  of sines and other frequencies, and its filters have no bias.

  The NumPy loop that defines it is `tests/mixers/reference/hyena.py`.

  Args:
    slot: Width of the tokens, and initialisation.
    horizon: Length T over which the filters decay, in tokens, > 0; 128 by default. It
      is not tied to the context. At T = 128 the window of the slowest channel is 0.046
      at a lag of 128 tokens, 2e-3 at 256 and 5e-6 at 512, so that a query after 256
      interleaved examples barely sees the first ones. The authors take the sequence
      length.
    rngs: Random keys of the initial weights.

  Raises:
    UserError: If `horizon` is not a finite number above 0.

  Example:
    >>> slot = zoo.mixers.Slot(width=8, num_heads=1)
    >>> mixer = zoo.mixers.Hyena(slot, horizon=16.0, rngs=nnx.Rngs(0))
    >>> print(mixer(jnp.ones((1, 5, 8)))[0, :, 0].round(2))
    [-0.02 -0.19 -0.12 -0.14 -0.19]

  References:
    Poli et al., arXiv 2302.10866, section 3.
  """

  # The network reads positions, and the filters do not depend on the tokens.
  roles = {'network': 'embedding', 'filters': 'embedding', 'skips': 'vector'}

  def __init__(self, slot: Slot, horizon: float = 128.0, *, rngs: nnx.Rngs):
    check_number('horizon', horizon, above=0.0)
    width, init = slot.width, slot.init
    self.width, self.horizon = width, horizon
    self.projections = nnx.List(
      [project(width, width, init, rngs=rngs) for _ in range(3)]
    )
    self.convolutions = nnx.List([ShortConvolution(width, rngs=rngs) for _ in range(3)])
    sizes = 1 + 2 * _BANDS, _HIDDEN, _HIDDEN
    self.network = nnx.List(
      [nnx.Linear(*pair, rngs=rngs) for pair in itertools.pairwise(sizes)]
    )
    self.filters = project(_HIDDEN, 2 * width, rngs=rngs)
    self.out = project_back(width, width, init, rngs=rngs)
    self.value_tap = Tap(axes='b n w', kind='value')
    self.gates_taps = nnx.List(
      [Tap(f'gates.{i}', 'b n w', kind='gate') for i in range(2)]
    )
    # D starts from N(0, 1), as in the authors' code.
    skips = jax.random.normal(rngs.params(), (2, width))
    self.skips = nnx.Param(skips, **split(None, 'model'))

  def __call__(self, tokens: Tokens) -> Tokens:
    """Returns the output for each token."""
    value, first_gate, second_gate = self._features(tokens)
    first, second = self.kernels(tokens.shape[1])
    value = first_gate * causal_convolution(value, first)
    return self.out(second_gate * causal_convolution(value, second))

  def attention(self, tokens: Tokens) -> Float[Array, 'b w n n']:
    """Returns the weights a of v in each channel of what `out` reads, `Σ_i a_ti v_i`.

    They are the paper's matrix D_2 S_2 D_1 S_1, in which D are the gates and S the
    filters.
    """
    _, first_gate, second_gate = widen(self._features(tokens))
    first, second = map(toeplitz, self.kernels(tokens.shape[1]))
    return jnp.einsum('btw,wtj,bjw,wji->bwti', second_gate, second, first_gate, first)

  def _features(self, tokens: Tokens) -> list[Tokens]:
    """Returns v, x_1 and x_2."""
    past = jnp.zeros((len(tokens), PAST, self.width), tokens.dtype)
    taps = self.value_tap, *self.gates_taps
    return [
      tap(convolve(project(tokens), past)[0])
      for project, convolve, tap in zip(
        self.projections, self.convolutions, taps, strict=True
      )
    ]

  def kernels(self, n: int) -> list[Float[Array, 'n w']]:
    """Returns h_1 and h_2 at the distances 0, …, n − 1.

    Their values at a distance do not depend on n.
    """
    # The kernels are in float32 at least, because the Fourier transforms are.
    *network, filters = map(widened, (*self.network, self.filters))
    dtype = filters.kernel[...].dtype
    t = np.arange(n)[:, None] / self.horizon
    angle = 2 * np.pi * t * np.arange(1, _BANDS + 1)[None]
    features = np.concatenate([t, np.cos(angle), np.sin(angle)], axis=1)
    hidden = jnp.asarray(features, dtype)
    for layer in network:
      hidden = jnp.sin(layer(hidden))
    rates = np.linspace(math.log(100) / 1.5, math.log(100) / 0.3, self.width)
    window = jnp.asarray(np.exp(-t * rates[None]), dtype)
    first, second = jnp.split(filters(hidden), 2, axis=1)
    direct = jnp.asarray(np.arange(n)[:, None] == 0, dtype)
    skips = widen(self.skips[...])
    return [window * first + direct * skips[:1], window * second + direct * skips[1:]]


def causal_convolution(features: Tokens, kernels: Float[Array, 'n w']) -> Tokens:
  """Returns y_t = Σ_{i ≤ t} h_{t−i} x_i for one kernel h per channel.

  It is computed by the Fourier transform. Later tokens affect earlier outputs only
  through rounding errors.
  """
  n, dtype = features.shape[1], np.promote_types(features.dtype, 'float32')
  spectrum, response = (
    jnp.fft.rfft(array.astype(dtype), 2 * n, axis=-2) for array in (features, kernels)
  )
  product = jnp.fft.irfft(spectrum * response[None], 2 * n, axis=-2)
  return product[:, :n].astype(features.dtype)


def toeplitz(kernels: Float[Array, 'n w']) -> Float[Array, 'w n n']:
  """Returns the matrix of each channel's convolution: h_{t−i}, and 0 for i > t."""
  n = len(kernels)
  lags = np.arange(n)[:, None] - np.arange(n)[None]
  seen = jnp.asarray(np.tri(n), kernels.dtype)
  return kernels.T[:, np.maximum(lags, 0)] * seen[None]
