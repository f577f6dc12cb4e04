"""RWKV-7: a state that decays, is erased and is written to at keys of their own."""

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

_FASTEST = math.exp(-0.5)  # −log of the fastest decay
# How much of the token before a channel n of w starts with: 1 − (n/w)^p.
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
    return self.recurrence.value


@register_mixer('rwkv7')
class RWKV7(LinearState):
  """The time mixing of RWKV-7 (Peng et al., arXiv 2503.14456, section 4).

  S_t = diag(w_t) S_{t−1} − (a_t ∘ κ_t)ᵀ (κ_t S_{t−1}) + k_tᵀ v_t, with a key κ of
  length 1 where the state is read to be erased, the rates a_t = sigmoid(…), vectors,
  k_t = k ∘ (1 + (a_t − 1) ∘ α), and log w_t = −e^(−1/2) sigmoid(…). Each of r, w, k, v,
  a and the gate g is a function of x_t + μ ∘ (x_{t−1} − x_t) with its own μ; w, a and g
  are of low rank. The output is out(g_t ∘ (LN(r_t S_t) + (r_t · (ρ ∘ k_t)) v_t)), with
  the layer norm of each head. r, which is the query, has no scale, as in the paper and
  in the code of flash-linear-attention.

  Numbers start as in the first of many layers. The paper adds to v in other layers the
  values of the first, which a mixer does not see.

  The loop that defines it: `tests/mixers/reference/rwkv7.py`.
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
      'erased': 0.71 - 0.1 * (ramp - 0.5),  # κ is this times k, scaled to length 1
      'mixed': np.full(width, 1.02),  # α
      'bonus': np.full(width, -0.04),  # ρ
      'scale': np.ones(width),  # of the norm
      'bias': np.zeros(width),
    }
    self.numbers = nnx.Dict(
      {
        name: nnx.Param(_array(start), **split('model'))
        for name, start in starts.items()
      }
    )

  def initial_state(self, batch: int) -> State:
    """The state before the first token, which comes after a token 0."""
    dtype, width = self.out.kernel[...].dtype, self.out.kernel[...].shape[0]
    return (
      super().initial_state(batch)._replace(past=(jnp.zeros((batch, 1, width), dtype),))
    )

  def inputs(self, tokens: Tokens, state: State) -> tuple[_Inputs, Past]:
    before = jnp.concatenate([state.past[0], tokens], axis=1)
    change = before[:, :-1] - tokens
    # By name: where values are captured, a Dict has more items than these.
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
    return recurrence(inputs.recurrence, memory)

  def with_values(self, inputs: _Inputs, values: Read) -> _Inputs:
    return inputs._replace(recurrence=inputs.recurrence._replace(value=values))

  def outputs(self, read: Read, inputs: _Inputs, tokens: Tokens) -> Tokens:
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
  """The rank of a projection, a multiple of 32."""
  return max(32, round(factor * width**0.5 / 32) * 32)


def _array(numbers: Float[np.ndarray, ' w']) -> Float[Array, ' w']:
  return jnp.asarray(numbers, float)


def _set_bias(layer: LowRank, bias: Float[np.ndarray, ' w']) -> None:
  assert layer.up.bias is not None
  layer.up.bias[...] = jnp.asarray(bias, layer.up.bias[...].dtype)
