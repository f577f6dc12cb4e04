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

_BANDS = 8  # frequencies of the features of a position
_HIDDEN = 64  # hidden features of the network that gives the filters


@register_mixer('hyena')
class Hyena(Mixer):
  """Hyena of order 2 (Poli et al., arXiv 2302.10866, section 3).

  v, x_1, x_2 = short_convolution(W u); out(x_2 ∘ (h_2 ∗ (x_1 ∘ (h_1 ∗ v)))),
  h(t) = e^(−α t/T) ∘ network(t/T) + D [t = 0], with a skip D per channel and filter. α
  runs from log(100)/1.5 to log(100)/0.3 over the channels. The network has two hidden
  layers of sines and takes the position and its sines and cosines at 8 frequencies.
  There are no heads: `num_heads` has no effect.

  The authors' code at order 2 has one long convolution, x_2 ∘ (h ∗ (x_1 ∘ v)); T is the
  sequence length there. It has short convolutions of 3 tokens, not 4, three layers of
  sines, other frequencies, and no bias of the filters.

  The loop that defines it: `tests/mixers/reference/hyena.py`.
  """

  # The network reads positions, and the filters do not depend on the tokens.
  roles = {'network': 'embedding', 'filters': 'embedding', 'skips': 'vector'}

  def __init__(self, slot: Slot, horizon: float = 128.0, *, rngs: nnx.Rngs):
    """
    Args:
      slot: the width of the tokens, the heads, and how kernels start.
      horizon: T > 0, in tokens; the sequence length in the code of the authors.
      rngs: the keys of the initial weights.

    Raises UserError for an argument that is out of its range.
    """
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
    skips = jax.random.normal(rngs.params(), (2, width))  # as in the authors' code
    self.skips = nnx.Param(skips, **split(None, 'model'))

  def __call__(self, tokens: Tokens) -> Tokens:
    value, first_gate, second_gate = self._features(tokens)
    first, second = self.kernels(tokens.shape[1])
    value = first_gate * causal_convolution(value, first)
    return self.out(second_gate * causal_convolution(value, second))

  def attention(self, tokens: Tokens) -> Float[Array, 'b w n n']:
    """The weights a of v in each channel of what `out` reads, `Σ_i a_ti v_i`.

    The paper's matrix D_2 S_2 D_1 S_1, in which D are the gates and S the filters.
    """
    _, first_gate, second_gate = widen(self._features(tokens))
    first, second = map(toeplitz, self.kernels(tokens.shape[1]))
    return jnp.einsum('btw,wtj,bjw,wji->bwti', second_gate, second, first_gate, first)

  def _features(self, tokens: Tokens) -> list[Tokens]:
    """v, x_1 and x_2."""
    past = jnp.zeros((len(tokens), PAST, self.width), tokens.dtype)
    taps = self.value_tap, *self.gates_taps
    return [
      tap(convolve(project(tokens), past)[0])
      for project, convolve, tap in zip(
        self.projections, self.convolutions, taps, strict=True
      )
    ]

  def kernels(self, n: int) -> list[Float[Array, 'n w']]:
    """h_1 and h_2 at the distances 0, …, n − 1; their values do not depend on n."""
    # In float32 at least, as the Fourier transforms are; once for all prompts.
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
  """y_t = Σ_{i ≤ t} h_{t−i} x_i, one kernel per channel, by the Fourier transform.

  Later tokens affect earlier outputs only through rounding errors.
  """
  n, dtype = features.shape[1], np.promote_types(features.dtype, 'float32')
  spectrum, response = (
    jnp.fft.rfft(array.astype(dtype), 2 * n, axis=-2) for array in (features, kernels)
  )
  product = jnp.fft.irfft(spectrum * response[None], 2 * n, axis=-2)
  return product[:, :n].astype(features.dtype)


def toeplitz(kernels: Float[Array, 'n w']) -> Float[Array, 'w n n']:
  """The matrix of each channel's causal convolution: h_{t−i}, and 0 where i > t."""
  n = len(kernels)
  lags = np.arange(n)[:, None] - np.arange(n)[None]
  seen = jnp.asarray(np.tri(n), kernels.dtype)
  return kernels.T[:, np.maximum(lags, 0)] * seen[None]
