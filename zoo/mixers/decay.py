"""Linear-state mixers without erasing, most of which decay."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from zoo.core.errors import UserError, check_count
from zoo.core.registry import register_mixer
from zoo.core.taps import Tap
from zoo.mixers.attention import check_rotary, context_mask, rotate
from zoo.mixers.linear_state import HeadState, LinearState, Past, State
from zoo.mixers.mixer import (
  Linear,
  LowRank,
  Read,
  RMSNorm,
  Slot,
  Tokens,
  in_heads,
  merge_heads,
  project,
  project_back,
  split,
  split_heads,
  unsplit,
  widen,
)
from zoo.mixers.recurrence import Inputs
from zoo.mixers.short_convolution import ShortConvolution


@register_mixer('linear')
class LinearMixer(HeadState):
  """Linear attention (arXiv 2512.04268, eq. 3).

  o_t = (1/n_t) q_t Σ_i k_iᵀ v_i over the n_t tokens i ≤ t if causal, else over the n_t
  tokens of the context; there is no other scale. Katharopoulos et al. (arXiv
  2006.16236) have a feature map and a normaliser too.

  The loop that defines it: `tests/mixers/reference/linear.py`.
  """

  def __init__(self, slot: Slot, causal: bool = True, *, rngs: nnx.Rngs):
    super().__init__(slot, norm=False, rngs=rngs)
    self.causal = causal

  def inputs(self, tokens: Tokens, state: State) -> tuple[Inputs, Past]:
    (query, key, value), past = self.heads(tokens, state)
    query, key, value = self.tapped(widen(query), key, value)
    seen = (state.position + 1 + jnp.arange(tokens.shape[1])).astype(query.dtype)
    return Inputs(query / seen[None, :, None, None], key, value), past

  def __call__(self, tokens: Tokens) -> Tokens:
    if self.causal:
      return super().__call__(tokens)
    query, key, value = widen(
      in_heads(tokens, (self.query, self.key, self.value), self.num_heads)
    )
    query, key, value = self.tapped(query, key, value)
    context = tokens.shape[1] - 1
    memory = jnp.einsum('bnhk,bnhv->bhkv', key[:, :context], value[:, :context])
    read = jnp.einsum('bnhk,bhkv->bnhv', query, memory / max(context, 1))
    return self.outputs(self.read_tap(read), None, tokens)

  def attention(self, tokens: Tokens) -> Float[Array, 'b h n n']:
    if self.causal:
      return super().attention(tokens)
    query, key = in_heads(tokens, (self.query, self.key), self.num_heads)
    n = tokens.shape[1]
    seen = jnp.asarray(context_mask(n) / max(n - 1, 1), query.dtype)
    return jnp.einsum('bqhs,bkhs->bhqk', query, key) * seen[None, None]

  def initial_state(self, batch: int) -> State:
    """The state before the first token; raises UserError if not causal."""
    if not self.causal:
      raise UserError('causal is False; only a causal mixer takes tokens one by one')
    return super().initial_state(batch)


@register_mixer('retention')
class Retention(HeadState):
  """Multi-scale retention (Sun et al., arXiv 2307.08621, section 2).

  S_t = γ_h S_{t−1} + k_tᵀ v_t / √k, γ_h = 1 − 2^(−5−h) for head h = 0, 1, …;
  out(norm(o_t) ∘ silu(W_g x_t)), with the RMS norm of each head. The paper also rotates
  q and k by e^(inθ), which `rotary` does here; without it this is linear attention with
  decay. The paper's values are twice as wide, and its norm has no learned scale.

  The loop that defines it: `tests/mixers/reference/retention.py`.
  """

  def __init__(self, slot: Slot, rotary: bool = False, *, rngs: nnx.Rngs):
    """`rotary` rotates queries and keys by their positions, with GPT-NeoX's angles.

    Raises UserError unless the heads share the width evenly.
    """
    if rotary:
      check_rotary(slot.head_size)
    super().__init__(slot, gate=jax.nn.silu, rngs=rngs)
    self.rotary = rotary

  def inputs(self, tokens: Tokens, state: State) -> tuple[Inputs, Past]:
    (query, key, value), past = self.heads(tokens, state)
    if self.rotary:
      positions = state.position + jnp.arange(tokens.shape[1])
      query, key = rotate(query, positions), rotate(key, positions)
    query, key, value = self.tapped(query, key, value)
    decay = np.log1p(-(2.0 ** (-5.0 - np.arange(self.num_heads))))
    key = widen(key)
    decay = jnp.asarray(decay, key.dtype)[None, None, :, None]
    decay = jnp.broadcast_to(decay, (*key.shape[:3], 1))
    return Inputs(query, key / math.sqrt(key.shape[-1]), value, decay), past


@register_mixer('gla')
class GatedLinearAttention(HeadState):
  """Gated linear attention (Yang et al., arXiv 2312.06635, section 4).

  S_t = diag(α_t) S_{t−1} + k_tᵀ v_t, log α_t = logsigmoid(W_2 W_1 x_t + b)/16, W_1 of
  rank 16 at most; o_t = q_t S_t / √k; out(norm(o_t) ∘ silu(W_g x_t)), with the RMS norm
  of each head. The authors' keys have half the width, and their norm is a layer norm.

  The loop that defines it: `tests/mixers/reference/gla.py`.
  """

  def __init__(self, slot: Slot, *, rngs: nnx.Rngs):
    super().__init__(slot, gate=jax.nn.silu, rngs=rngs)
    width, init = slot.width, slot.init
    self.decay_tap = Tap(axes='b n h k', kind='decay')
    rank = min(16, width)
    self.decay_in = unsplit(width, rank, init, rngs=rngs)
    self.decay = project(rank, width, init, rngs=rngs)

  def inputs(self, tokens: Tokens, state: State) -> tuple[Inputs, Past]:
    (query, key, value), past = self.heads(tokens, state)
    decay = jax.nn.log_sigmoid(widen(self.decay(self.decay_in(tokens)))) / 16
    decay = self.decay_tap(split_heads(decay, self.num_heads))
    query, key, value = self.tapped(widen(query), key, value)
    return Inputs(query / math.sqrt(query.shape[-1]), key, value, decay), past


class Mamba2Block(LinearState):
  """The block of Mamba-2, with 2 · width inner channels.

  x, B and C go through a short convolution and SiLU; B and C, of `state_size` features,
  are the keys and queries of all heads. Δ_t and the log decay −Δ_t e^A are those of
  `Rate`; y_t = o_t + D x_t; out(norm(y_t ∘ silu(z_t))), with an RMS norm.
  """

  def __init__(
    self, slot: Slot, state_size: int, *, num_states: int = 1, rngs: nnx.Rngs
  ):
    """`num_states` per head; raises UserError unless the heads share the width."""
    check_count('state_size', state_size)
    width, num_heads, init = slot.width, slot.num_heads, slot.init
    inner, size = 2 * width, 2 * slot.head_size
    super().__init__(num_heads, num_states * state_size, size, [inner, 2 * state_size])
    self.value = project(width, inner, init, rngs=rngs)
    self.gate = project(width, inner, init, rngs=rngs)
    self.key_query = Linear(width, 2 * state_size, kernel_init=init.kernel(), rngs=rngs)
    self.convolve_value = ShortConvolution(inner, rngs=rngs)
    self.convolve_key_query = ShortConvolution(2 * state_size, rngs=rngs)
    self.rate = Rate(slot, rngs=rngs)
    self.skip = nnx.Param(jnp.ones(num_heads), **split('model'))
    self.norm = RMSNorm(inner)
    self.out = project_back(inner, width, init, rngs=rngs)
    self.query_tap = Tap(axes='b n k', kind='query')
    self.key_tap = Tap(axes='b n k', kind='key')
    self.value_tap = Tap(axes='b n h v', kind='value')
    self.decay_tap = Tap(axes='b n h g', kind='decay')
    self.strength_tap = Tap(axes='b n h', kind='strength')
    self.gate_tap = Tap(axes='b n c', kind='gate')

  def features(self, tokens: Tokens, state: State) -> tuple[Inputs, Past]:
    """What one state per head takes, and the next `state.past`."""
    past_values, past_keys = state.past
    value, past_values = self.convolve_value(self.value(tokens), past_values)
    key_query, past_keys = self.convolve_key_query(self.key_query(tokens), past_keys)
    key, query = jnp.split(jax.nn.silu(key_query), 2, axis=-1)
    key, query = self.key_tap(key), self.query_tap(query)
    shape = *tokens.shape[:2], self.num_heads, key.shape[-1]
    key, query = (jnp.broadcast_to(array[:, :, None], shape) for array in (key, query))
    value = self.value_tap(split_heads(jax.nn.silu(value), self.num_heads))
    delta, log_decay = self.rate(tokens)
    delta, log_decay = self.strength_tap(delta), self.decay_tap(log_decay)
    return Inputs(query, key, value, log_decay, delta), (past_values, past_keys)

  def outputs(self, read: Read, inputs: Any, tokens: Tokens) -> Tokens:
    read += widen(self.skip[...])[None, None, :, None] * inputs.value
    gate = self.gate_tap(jax.nn.silu(widen(self.gate(tokens))))
    gated = self.norm(merge_heads(read) * gate)
    heads = self.heads_tap(split_heads(gated, self.num_heads))
    return self.out(merge_heads(heads).astype(tokens.dtype))


@register_mixer('mamba2')
class Mamba2(Mamba2Block):
  """Mamba-2 (Dao & Gu, arXiv 2405.21060, section 7), with 2 · width inner channels.

  S_t = e^(−Δ_t e^A) S_{t−1} + Δ_t B_tᵀ x_t, with Δ_t = softplus(W_Δ u_t + b) for each
  head, A and b learned; y_t = C_t S_t + D x_t; out(norm(y_t ∘ silu(z_t))), with an RMS
  norm. x, B and C go through a short convolution and SiLU; B and C, of `state_size`
  features, are shared by all heads. The authors' heads have 64 channels whatever the
  width.

  The loop that defines it: `tests/mixers/reference/mamba2.py`.
  """

  def __init__(self, slot: Slot, state_size: int = 64, *, rngs: nnx.Rngs):
    """
    Args:
      slot: the width of the tokens, the heads, and how kernels start.
      state_size: numbers of the state N of each channel, ≥ 1.
      rngs: the keys of the initial weights.

    Raises UserError for an argument that is out of its range.
    """
    super().__init__(slot, state_size, rngs=rngs)

  def inputs(self, tokens: Tokens, state: State) -> tuple[Inputs, Past]:
    return self.features(tokens, state)


class Rate(nnx.Module):
  """The rate Δ = softplus(W x + b) of each head, and the log decay −Δ e^A."""

  def __init__(self, slot: Slot, *, rngs: nnx.Rngs):
    # Independent of the slot's `init`, so that Δ and e^A start as in the papers.
    num_heads = slot.num_heads
    self.linear = unsplit(slot.width, num_heads, rngs=rngs)
    self.bias = nnx.Param(rate_bias(num_heads, rngs), **split('model'))
    self.log_a = nnx.Param(_log_scales(num_heads, rngs), **split('model'))

  def __call__(
    self, tokens: Tokens
  ) -> tuple[Float[Array, 'b n h'], Float[Array, 'b n h 1']]:
    rate, bias, log_a = widen((self.linear(tokens), self.bias[...], self.log_a[...]))
    delta = jax.nn.softplus(rate + bias[None, None])
    return delta, -(delta * jnp.exp(log_a)[None, None])[..., None]


class KeyRates(nnx.Module):
  """The log decay −e^A softplus(W_2 W_1 x + b) of each entry of a key; A is by head.

  W_1 has as many outputs as a key has entries (Kimi Linear, arXiv 2510.26692).
  """

  def __init__(self, slot: Slot, *, rngs: nnx.Rngs):
    # Independent of the slot's `init`, as for `Rate`.
    width, size = slot.width, slot.head_size
    self.linear = LowRank(width, size, width, use_bias=False, rngs=rngs)
    self.bias = nnx.Param(rate_bias(width, rngs), **split('model'))
    self.log_a = nnx.Param(_log_scales(slot.num_heads, rngs), **split('model'))

  def __call__(self, tokens: Tokens) -> Float[Array, 'b n h k']:
    rate, bias, log_a = widen((self.linear(tokens), self.bias[...], self.log_a[...]))
    rates = split_heads(jax.nn.softplus(rate + bias[None, None]), len(log_a))
    return -rates * jnp.exp(log_a)[None, None, :, None]


def _log_scales(num_heads: int, rngs: nnx.Rngs) -> Float[Array, ' h']:
  """Samples A so that e^A is uniform from 1 to 16."""
  return jnp.log(
    jax.random.uniform(rngs.params(), (num_heads,), minval=1.0, maxval=16.0)
  )


def rate_bias(size: int, rngs: nnx.Rngs) -> Float[Array, ' h']:
  """Samples b so that softplus(b) is log-uniform from 0.001 to 0.1."""
  rate = jnp.exp(log_rates(size, rngs))
  return rate + jnp.log(-jnp.expm1(-rate))


def log_rates(size: int, rngs: nnx.Rngs) -> Float[Array, ' h']:
  """Samples uniform logarithms of rates from 0.001 to 0.1, as S4D and Mamba start."""
  return jax.random.uniform(
    rngs.params(), (size,), minval=math.log(0.001), maxval=math.log(0.1)
  )
