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

_LEAST = 1e-4  # −A is at least this.


class Trapezoid(NamedTuple):
  """The inputs of the recurrence of Mamba-3.

  Each token first writes the token before it, then reads, and then writes itself.

  Attributes:
    before: The inputs of the first write. Each key and value belongs to the token
      before.
    key: The token's own key, `[b, n, h, k]`.
    value: The token's own value, `[b, n, h, v]`.
    write: The strength λ Δ of the second write, `[b, n, h]`.
  """

  before: Inputs
  key: Float[Array, 'b n h k']
  value: Float[Array, 'b n h v']
  write: Float[Array, 'b n h']


@register_mixer('mamba3')
class Mamba3(LinearState):
  """Mamba-3 with one input and one output (SISO) and 2 · width inner channels.

    Δ_t = softplus(W_Δ u_t + b),  α_t = e^(−Δ_t a(W_A u_t)),  λ_t = sigmoid(W_λ u_t)
    θ_t = θ_{t−1} + π tanh(W_θ u_t) Δ_t
    k_t = turn(norm(B_t) + b_k, θ_t),  q_t = turn(norm(C_t) + b_q, θ_t)
    S_t = α_t S_{t−1} + (1 − λ_t) Δ_t α_t k_{t−1}ᵀ x_{t−1} + λ_t Δ_t k_tᵀ x_t
    o_t = q_t S_t + D x_t
    y_t = W_o (o_t ∘ silu(W_z u_t))

  This is the trapezoidal rule of integration. Here u are the tokens, x, B and C are
  linear in them, and a(z) = 1 + z for z ≥ 0, else 1/(1 − z), but at least 10⁻⁴. Δ, α, λ
  and D are numbers for each head. B and C have N = `state_size` features, which all
  heads share; the biases b_k and b_q of each head start at 1. `turn` rotates the first
  2⌊N/4⌋ entries, pair by pair, by the angles θ. There is no convolution, and no
  linear map has a bias.

  The state is a `State` with S `[b, h, N, 2 · width / h]`. Its `past` has the angles
  and the last key and value.

  Differences from the authors' code: its heads have 64 channels, whatever the width,
  and N = 128.

  The NumPy loop that defines it is `tests/mixers/reference/mamba3.py`.

  Args:
    slot: Width of the tokens, number of heads, and initialisation.
    state_size: Number N of entries of the key B and the query C, ≥ 4; 64 by default.
      Half of them are rotated if N is a multiple of 4, and fewer otherwise.
    rngs: Random keys of the initial weights.

  Raises:
    UserError: If `state_size` is not an integer ≥ 4, if `slot.num_heads` is not a
      positive integer, or if it does not divide the width.

  Example:
    >>> slot = zoo.mixers.Slot(width=8, num_heads=2)
    >>> mixer = zoo.mixers.Mamba3(slot, state_size=8, rngs=nnx.Rngs(0))
    >>> mixer.initial_state(1).memory.shape
    (1, 2, 8, 8)

  References:
    Mamba-3, arXiv 2603.15569.
  """

  roles = {'key_bias': 'vector', 'query_bias': 'vector'}

  def __init__(self, slot: Slot, state_size: int = 64, *, rngs: nnx.Rngs):
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
    """Returns the state before the first token.

    Its `past` has the angles, the last key and the last value, all of which are 0.

    Args:
      batch: Number b of sequences.
    """
    state = super().initial_state(batch)
    key_size, value_size = self.sizes
    shapes = (self.num_angles,), (key_size,), (value_size,)
    zeros = (
      jnp.zeros((batch, 1, self.num_heads, *shape), state.memory.dtype)
      for shape in shapes
    )
    return state._replace(past=tuple(zeros))

  def inputs(self, tokens: Tokens, state: State) -> tuple[Trapezoid, Past]:
    """Returns the inputs of the recurrence, and the next `state.past`."""
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
    """Runs the recurrence."""
    return write_and_read(inputs, memory)

  def with_values(self, inputs: Trapezoid, values: Read) -> Trapezoid:
    """Returns the inputs with other values, and none before the first token."""
    delayed = _delayed(values, jnp.zeros_like(values[:, :1]))
    return inputs._replace(before=inputs.before._replace(value=delayed), value=values)

  def outputs(self, read: Read, inputs: Trapezoid, tokens: Tokens) -> Tokens:
    """Returns the output for each token, after the skip and the gate."""
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
  """Returns the inputs in which a token writes the one before it only once.

  At token t the token before it has in all the weight
  e^(log_decay) (λ_{t−1} Δ_{t−1} + (1 − λ_t) Δ_t) of k_{t−1}ᵀ x_{t−1}. The memory
  already holds the share λ Δ of the token `last`, which comes before the first of these
  tokens.
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
  """Returns the outputs of all tokens, and the memory after the last."""
  read, memory = recurrence(inputs.before, memory)
  own = inputs.write * jnp.sum(inputs.before.query * inputs.key, axis=-1)
  last = inputs.write[:, -1, :, None] * inputs.key[:, -1]
  memory += last[..., None] * inputs.value[:, -1, :, None]
  return read + own[..., None] * inputs.value, memory


def turn(
  features: Float[Array, 'b n #h k'], angle: Float[Array, 'b n h a']
) -> Float[Array, 'b n h k']:
  """Turns the pairs of entries (2 j, 2 j + 1) by the angles j.

  If there are fewer angles than pairs, the last pairs are not turned.

  Returns:
    The turned features `[b, n, h, k]`.
  """
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
  """Returns 1 + z for z ≥ 0, else 1/(1 − z)."""
  return jnp.maximum(z, 0) + 1 / (1 - jnp.minimum(z, 0))


def _delayed(
  array: Float[Array, 'b n *f'], last: Float[Array, 'b 1 *f']
) -> Float[Array, 'b n *f']:
  """Returns at each token the entry of the token before it."""
  return jnp.concatenate([last, array[:, :-1]], axis=1)
