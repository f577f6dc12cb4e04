"""Mamba-3: a state-space model whose state turns."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from zoo.core.errors import check_count
from zoo.core.registry import register_mixer
from zoo.core.taps import Tap
from zoo.mixers.decay import rate_bias
from zoo.mixers.linear_state import LinearState, Past, State
from zoo.mixers.mixer import (
  Memory,
  Read,
  RMSNorm,
  Slot,
  Tokens,
  merge_heads,
  project,
  project_back,
  split,
  split_heads,
  unsplit,
  widen,
)
from zoo.mixers.recurrence import Inputs, recurrence

_LEAST = 1e-4  # the least −A


class Trapezoid(NamedTuple):
  """Tokens that write the one before them, read, and then write themselves."""

  before: Inputs  # in which each key and value is that of the token before
  key: Float[Array, 'b n h k']
  value: Float[Array, 'b n h v']
  write: Float[Array, 'b n h']


@register_mixer('mamba3')
class Mamba3(LinearState):
  """Mamba-3 with one input and output (arXiv 2603.15569), 2 · width inner channels.

  S_t = α_t S_{t−1} + (1 − λ_t) Δ_t α_t k_{t−1}ᵀ x_{t−1} + λ_t Δ_t k_tᵀ x_t, the
  trapezoidal rule, with Δ_t = softplus(W_Δ u_t + b), α_t = e^(−Δ_t a(W_A u_t)),
  a(z) = 1 + z for z ≥ 0, else 1/(1 − z), and λ_t = sigmoid(W_λ u_t) for each head.
  k_t and q_t are norm(B_t) and norm(C_t) plus a bias of each head, which starts at 1,
  and the first half of their entries is turned, pair by pair, by the angles
  θ_t = θ_{t−1} + π tanh(W_θ u_t) Δ_t. y_t = q_t S_t + D x_t; out(y_t ∘ silu(z_t)).
  B and C, of `state_size` features, are shared by all heads. There is no convolution,
  and no layer has a bias. The authors' heads have 64 channels whatever the width, and
  128 features of B and C.

  The loop that defines it: `tests/mixers/reference/mamba3.py`.
  """

  roles = {'key_bias': 'vector', 'query_bias': 'vector'}

  def __init__(self, slot: Slot, state_size: int = 64, *, rngs: nnx.Rngs):
    """
    Args:
      slot: the width of the tokens, the heads, and how kernels start.
      state_size: N, the entries of B and C, ≥ 4; half of them turn.
      rngs: the keys of the initial weights.

    Raises UserError for an argument that is out of its range.
    """
    check_count('state_size', state_size, minimum=4)
    width, num_heads, init = slot.width, slot.num_heads, slot.init
    inner, self.num_angles = 2 * width, state_size // 4
    super().__init__(num_heads, state_size, 2 * slot.head_size)
    self.value = project(width, inner, init, use_bias=False, rngs=rngs)
    self.gate = project(width, inner, init, use_bias=False, rngs=rngs)
    sizes = state_size, state_size, self.num_angles, *[num_heads] * 3
    self.key, self.query, self.angle, self.rate, self.decay, self.weight = (
      unsplit(width, size, init, rngs=rngs) for size in sizes
    )
    self.rate_bias = nnx.Param(rate_bias(num_heads, rngs), **split('model'))
    self.key_norm, self.query_norm = RMSNorm(state_size), RMSNorm(state_size)
    self.key_bias, self.query_bias = (
      nnx.Param(jnp.ones((num_heads, state_size)), **split('model', None))
      for _ in range(2)
    )
    self.query_tap, self.key_tap = (
      Tap(axes='b n h k', kind=kind) for kind in ('query', 'key')
    )
    self.value_tap = Tap(axes='b n h v', kind='value')
    self.decay_tap = Tap(axes='b n h', kind='decay')
    self.rate_tap, self.weight_tap = (
      Tap(axes='b n h', kind='strength') for _ in range(2)
    )
    self.gate_tap = Tap(axes='b n h v', kind='gate')
    self.skip = nnx.Param(jnp.ones(num_heads), **split('model'))
    self.out = project_back(inner, width, init, use_bias=False, rngs=rngs)

  def initial_state(self, batch: int) -> State:
    """The state before the first token: the angles, and the last key and value."""
    state = super().initial_state(batch)
    key_size, value_size = self.sizes
    shapes = (self.num_angles,), (key_size,), (value_size,)
    zeros = (
      jnp.zeros((batch, 1, self.num_heads, *shape), state.memory.dtype)
      for shape in shapes
    )
    return state._replace(past=tuple(zeros))

  def inputs(self, tokens: Tokens, state: State) -> tuple[Trapezoid, Past]:
    angle, last_key, last_value = state.past
    rate, decay, weight = widen(
      (self.rate(tokens), self.decay(tokens), self.weight(tokens))
    )
    delta = jax.nn.softplus(rate + widen(self.rate_bias[...])[None, None])
    log_decay = -delta * jnp.maximum(_heavy_tail(decay), _LEAST)
    turned = np.pi * jnp.tanh(widen(self.angle(tokens)))[:, :, None]
    angle = jnp.mod(angle + jnp.cumsum(delta[..., None] * turned, axis=1), 2 * np.pi)
    key, query = (
      turn(widen(norm(layer(tokens)))[:, :, None] + widen(bias[...])[None, None], angle)
      for layer, norm, bias in (
        (self.key, self.key_norm, self.key_bias),
        (self.query, self.query_norm, self.query_bias),
      )
    )
    query, key = self.query_tap(query), self.key_tap(key)
    value = widen(split_heads(self.value(tokens), self.num_heads))
    value = self.value_tap(value)
    inputs = trapezoid(
      query,
      key,
      value,
      self.decay_tap(log_decay),
      self.rate_tap(delta),
      self.weight_tap(jax.nn.sigmoid(weight)),
      last=(last_key, last_value),
    )
    return inputs, (angle[:, -1:], key[:, -1:], value[:, -1:])

  def recur(self, inputs: Trapezoid, memory: Memory) -> tuple[Read, Memory]:
    return write_and_read(inputs, memory)

  def with_values(self, inputs: Trapezoid, values: Read) -> Trapezoid:
    """The inputs with other values, and none before them."""
    delayed = _delayed(values, jnp.zeros_like(values[:, :1]))
    return inputs._replace(before=inputs.before._replace(value=delayed), value=values)

  def outputs(self, read: Read, inputs: Trapezoid, tokens: Tokens) -> Tokens:
    read += widen(self.skip[...])[None, None, :, None] * inputs.value
    gate = split_heads(jax.nn.silu(widen(self.gate(tokens))), self.num_heads)
    gate = self.gate_tap(gate)
    return self.out(merge_heads(self.heads_tap(read * gate)).astype(tokens.dtype))


def trapezoid(
  query: Float[Array, 'b n h k'],
  key: Float[Array, 'b n h k'],
  value: Float[Array, 'b n h v'],
  log_decay: Float[Array, 'b n h'],
  delta: Float[Array, 'b n h'],
  weight: Float[Array, 'b n h'],
  *,
  last: tuple[Float[Array, 'b 1 h k'], Float[Array, 'b 1 h v']],
) -> Trapezoid:
  """The inputs in which a token writes the one before it only once.

  e^(log_decay) (λ_{t−1} Δ_{t−1} + (1 − λ_t) Δ_t) k_{t−1}ᵀ x_{t−1} is all that is left
  of the token before at token t; `last` is in the memory with its own share already.
  """
  write = weight * delta
  share = _delayed(write, jnp.zeros_like(write[:, :1])) + (1 - weight) * delta
  before = Inputs(
    query,
    _delayed(key, last[0]),
    _delayed(value, last[1]),
    log_decay[..., None],
    jnp.exp(log_decay) * share,
  )
  return Trapezoid(before, key, value, write)


def write_and_read(inputs: Trapezoid, memory: Memory) -> tuple[Read, Memory]:
  """The outputs of all tokens, and the memory after the last."""
  read, memory = recurrence(inputs.before, memory)
  own = inputs.write * jnp.sum(inputs.before.query * inputs.key, axis=-1)
  last = inputs.write[:, -1, :, None] * inputs.key[:, -1]
  memory += last[..., None] * inputs.value[:, -1, :, None]
  return read + own[..., None] * inputs.value, memory


def turn(
  features: Float[Array, 'b n #h k'], angle: Float[Array, 'b n h a']
) -> Float[Array, 'b n h k']:
  """Turns the pairs (2 j, 2 j + 1) by the angles j, of which there may be fewer."""
  b, n, h, num_angles = angle.shape
  features = jnp.broadcast_to(features, (b, n, h, features.shape[-1]))
  pairs, rest = features[..., : 2 * num_angles], features[..., 2 * num_angles :]
  first, second = pairs[..., ::2], pairs[..., 1::2]
  cosine, sine = jnp.cos(angle), jnp.sin(angle)
  turned = jnp.stack(
    [first * cosine - second * sine, first * sine + second * cosine], -1
  )
  return jnp.concatenate([turned.reshape(pairs.shape), rest], axis=-1)


def _heavy_tail(z: Float[Array, '*n']) -> Float[Array, '*n']:
  """1 + z for z ≥ 0, else 1/(1 − z)."""
  return jnp.maximum(z, 0) + 1 / (1 - jnp.minimum(z, 0))


def _delayed(
  array: Float[Array, 'b n *f'], last: Float[Array, 'b 1 *f']
) -> Float[Array, 'b n *f']:
  """Each token has the entry of the token before it."""
  return jnp.concatenate([last, array[:, :-1]], axis=1)
