"""RWKV-7: a state that decays, is erased and is written to at separate keys."""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from zoo.core.registry import register_mixer
from zoo.core.taps import Tap
from zoo.mixers.linear_state import LinearState, Past, State, normalize
from zoo.mixers.mixer import (
  LowRank,
  Memory,
  Read,
  Slot,
  Tokens,
  merge_heads,
  project,
  project_back,
  split,
  split_heads,
  widen,
)
from zoo.mixers.recurrence import Inputs, recurrence

_FASTEST = math.exp(-0.5)  # The fastest decay is e to minus this.
# μ of channel n of w starts at 1 − (n/w)^p. These are the powers p.
_SHIFTS = {
  'receptance': 0.2,
  'decay': 0.9,
  'key': 0.7,
  'value': 0.7,
  'rate': 0.9,
  'gate': 0.2,
}


class _Inputs(NamedTuple):
  """The inputs of the recurrence, and the gate of the output."""

  recurrence: Inputs
  gate: Float[Array, 'b n w']

  @property
  def value(self) -> Array:
    """The values that the tokens write."""
    return self.recurrence.value


@register_mixer('rwkv7')
class RWKV7(LinearState):
  """The time mixing of RWKV-7.

    r_t = W_r x^r_t,  p_t = W_p x^p_t,  v_t = W_v x^v_t
    log w_t = −e^(−1/2) sigmoid(B_w tanh(A_w x^w_t) + b_w)
    a_t = sigmoid(B_a A_a x^a_t + b_a)
    g_t = B_g sigmoid(A_g x^g_t)
    κ_t = unit(ξ ∘ p_t),  k_t = p_t ∘ (1 + (a_t − 1) ∘ α)
    S_t = diag(w_t) S_{t−1} − (a_t ∘ κ_t)ᵀ (κ_t S_{t−1}) + k_tᵀ v_t
    y_t = W_o (g_t ∘ (LN(r_t S_t) + (r_t · (ρ ∘ k_t)) v_t))

  x are the tokens, and x_0 = 0. The inputs of the maps are x^r_t, x^p_t and so on. Each
  is x_t + μ ∘ (x_{t−1} − x_t), and has its own learned vector μ. r is the query, and p
  is the key before its entries are scaled. w is the decay, a the rate of erasing and g
  the gate. The matrices A are narrow. `unit` scales a vector of a head to length 1, LN
  is the layer norm of each head, and ξ, α and ρ are learned vectors. r has no scale, as
  in the paper and in the code of flash-linear-attention.

  The state is a `State` with S `[b, h, s, s]`, s = width / num_heads. Its `past` is the
  last token.

  Differences from the paper: all weights start as in the first of many layers. In its
  other layers the paper adds the values of the first layer to v, which a mixer here
  cannot see.

  The NumPy loop that defines it is `tests/mixers/reference/rwkv7.py`.

  Args:
    slot: Width of the tokens, number of heads, and initialisation.
    rngs: Random keys of the initial weights.

  Raises:
    UserError: If `slot.num_heads` is not a positive integer or does not divide the
      width.

  Example:
    >>> slot = zoo.mixers.Slot(width=8, num_heads=2)
    >>> mixer = zoo.mixers.RWKV7(slot, rngs=nnx.Rngs(0))
    >>> mixer.initial_state(1).past[0].shape
    (1, 1, 8)

  References:
    Peng et al., arXiv 2503.14456, section 4.
  """

  def __init__(self, slot: Slot, *, rngs: nnx.Rngs):
    width, size, init = slot.width, slot.head_size, slot.init
    super().__init__(slot.num_heads, size, size)
    self.shifts = nnx.Dict(
      {
        name: nnx.Param(
          _array(1 - (np.arange(width) / width) ** power), **split('model')
        )
        for name, power in _SHIFTS.items()
      }
    )
    self.receptance, self.key, self.value = (
      project(width, width, init, use_bias=False, rngs=rngs) for _ in range(3)
    )
    self.out = project_back(width, width, init, use_bias=False, rngs=rngs)
    rank, gate_rank = (min(width, _rank(c, width)) for c in (2.5, 5.0))
    self.decay = LowRank(width, rank, width, init, between=jnp.tanh, rngs=rngs)
    self.rate = LowRank(width, rank, width, init, rngs=rngs)
    self.gate = LowRank(
      width,
      gate_rank,
      width,
      init,
      between=jax.nn.sigmoid,
      use_bias=False,
      rngs=rngs,
    )
    ramp = np.arange(width) / max(width - 1, 1)
    zigzag = (2 * (np.arange(width) % size) + 1 - size) / max(size - 1, 1)
    zigzag *= np.abs(zigzag)
    _set_bias(self.decay, -5.5 + 6 * ramp + 2.5 * zigzag)
    _set_bias(self.rate, -0.19 + 0.3 * zigzag + 0.4 * (ramp - 0.5))
    self.query_tap, self.key_tap, self.erase_tap, self.decay_tap = (
      Tap(axes='b n h k', kind=kind) for kind in ('query', 'key', 'strength', 'decay')
    )
    self.value_tap = Tap(axes='b n h v', kind='value')
    self.gate_tap = Tap(axes='b n w', kind='gate')
    starts = {
      'erased': 0.71 - 0.1 * (ramp - 0.5),  # ξ
      'mixed': np.full(width, 1.02),  # α
      'bonus': np.full(width, -0.04),  # ρ
      # The layer norm has these two.
      'scale': np.ones(width),
      'bias': np.zeros(width),
    }
    self.numbers = nnx.Dict(
      {
        name: nnx.Param(_array(start), **split('model'))
        for name, start in starts.items()
      }
    )

  def initial_state(self, batch: int) -> State:
    """Returns the state before the first token.

    The token before the first is taken as 0.

    Args:
      batch: Number b of sequences.
    """
    dtype, width = self.out.kernel[...].dtype, self.out.kernel[...].shape[0]
    return (
      super().initial_state(batch)._replace(past=(jnp.zeros((batch, 1, width), dtype),))
    )

  def inputs(self, tokens: Tokens, state: State) -> tuple[_Inputs, Past]:
    """Returns the inputs of the recurrence with the gate, and the next `state.past`."""
    before = jnp.concatenate([state.past[0], tokens], axis=1)
    change = before[:, :-1] - tokens
    # The loop goes over names, because a Dict whose values are captured has more items.
    mixed = {
      name: tokens + self.shifts[name][...][None, None] * change for name in _SHIFTS
    }
    key = widen(self.key(mixed['key']))
    rate = jax.nn.sigmoid(widen(self.rate(mixed['rate'])))
    log_decay = -_FASTEST * jax.nn.sigmoid(widen(self.decay(mixed['decay'])))
    erased = self._of_heads(key * self._number('erased'))
    key *= 1 + (rate - 1) * self._number('mixed')
    erased, rate = normalize(erased), self.erase_tap(self._of_heads(rate))
    recurrence = Inputs(
      query=self.query_tap(self._of_heads(self.receptance(mixed['receptance']))),
      key=self.key_tap(self._of_heads(key)),
      value=self.value_tap(self._of_heads(self.value(mixed['value']))),
      log_decay=self.decay_tap(self._of_heads(log_decay)),
      erase=erased,
      erase_key=rate * erased,
    )
    gate = self.gate_tap(self.gate(mixed['gate']))
    return _Inputs(recurrence, gate), (before[:, -1:],)

  def recur(self, inputs: _Inputs, memory: Memory) -> tuple[Read, Memory]:
    """Runs the recurrence."""
    return recurrence(inputs.recurrence, memory)

  def with_values(self, inputs: _Inputs, values: Read) -> _Inputs:
    """Returns the inputs with other values."""
    return inputs._replace(recurrence=inputs.recurrence._replace(value=values))

  def outputs(self, read: Read, inputs: _Inputs, tokens: Tokens) -> Tokens:
    """Returns the output for each token, after the norm, the bonus and the gate."""
    read -= read.mean(axis=-1, keepdims=True)
    variance = jnp.square(read).mean(axis=-1, keepdims=True)
    normed = merge_heads(read * jax.lax.rsqrt(variance + 1e-5 * read.shape[-1]))
    normed = normed * self._number('scale') + self._number('bias')
    recurrence = inputs.recurrence
    bonus = recurrence.query * recurrence.key * self._of_heads(self._number('bonus'))
    bonus = merge_heads(bonus.sum(axis=-1, keepdims=True) * recurrence.value)
    heads = self.heads_tap(self._of_heads(inputs.gate * (normed + bonus)))
    return self.out(merge_heads(heads).astype(tokens.dtype))

  def _of_heads(self, features: Float[Array, 'b n w']) -> Float[Array, 'b n h k']:
    return split_heads(features, self.num_heads)

  def _number(self, name: str) -> Float[Array, '1 1 w']:
    return widen(self.numbers[name][...])[None, None]


def _rank(factor: float, width: int) -> int:
  """Returns the rank of a projection, a multiple of 32."""
  return max(32, round(factor * width**0.5 / 32) * 32)


def _array(numbers: Float[np.ndarray, ' w']) -> Float[Array, ' w']:
  return jnp.asarray(numbers, float)


def _set_bias(layer: LowRank, bias: Float[np.ndarray, ' w']) -> None:
  assert layer.up.bias is not None
  layer.up.bias[...] = jnp.asarray(bias, layer.up.bias[...].dtype)
