"""Linear-state mixers that do not erase; most of them decay."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from zoo.core.errors import UserError, check_count, check_truth
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
  """Linear attention, causal or over the context.

    S_t = S_{t−1} + k_tᵀ v_t
    o_t = (1/n_t) q_t S_t
    y_t = W_o o_t + b_o

  If `causal`, n_t = t is the number of tokens so far. Otherwise each token reads the
  same state, the sum of k_iᵀ v_i over the n_t tokens of the context, which are all
  tokens but the last. There is no other scale.

  The state is a `State` with S `[b, h, s, s]`, s = width / num_heads.

  Differences from the papers: q, k, v and the output have biases. Katharopoulos et al.
  (arXiv 2006.16236) also have a feature map of q and k, and a normaliser.

  The NumPy loop that defines it is `tests/mixers/reference/linear.py`.

  Args:
    slot: Width of the tokens, number of heads, and initialisation.
    causal: Whether a token reads itself and the tokens before it; True by default.
    rngs: Random keys of the initial weights.

  Raises:
    UserError: If `slot.num_heads` is not a positive integer or does not divide the
      width.

  Example:
    >>> slot = zoo.mixers.Slot(width=8, num_heads=2)
    >>> mixer = zoo.mixers.LinearMixer(slot, causal=False, rngs=nnx.Rngs(0))
    >>> print(np.round(mixer(jnp.ones((1, 5, 8)))[0, :, 0], 2))
    [1.69 1.69 1.69 1.69 1.69]

  References:
    arXiv 2512.04268, eq. 3.
  """

  def __init__(self, slot: Slot, causal: bool = True, *, rngs: nnx.Rngs):
    super().__init__(slot, norm=False, rngs=rngs)
    self.causal = check_truth('causal', causal)

  def inputs(self, tokens: Tokens, state: State) -> tuple[Inputs, Past]:
    """Returns the inputs of the recurrence, with queries divided by n_t."""
    (query, key, value), past = self.heads(tokens, state)
    query, key, value = self.tapped(widen(query), key, value)
    seen = (state.position + 1 + jnp.arange(tokens.shape[1])).astype(query.dtype)
    return Inputs(query / seen[None, :, None, None], key, value), past

  def __call__(self, tokens: Tokens) -> Tokens:
    """Returns the output for each token."""
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
    """Returns the attention weights `q_t·k_i / n_t`, query by key."""
    if self.causal:
      return super().attention(tokens)
    query, key = in_heads(tokens, (self.query, self.key), self.num_heads)
    n = tokens.shape[1]
    seen = jnp.asarray(context_mask(n) / max(n - 1, 1), query.dtype)
    return jnp.einsum('bqhs,bkhs->bhqk', query, key) * seen[None, None]

  def initial_state(self, batch: int) -> State:
    """Returns the state before the first token.

    Args:
      batch: Number b of sequences.

    Raises:
      UserError: If the mixer is not causal.
    """
    if not self.causal:
      raise UserError('causal is False; only a causal mixer takes tokens one by one')
    return super().initial_state(batch)


@register_mixer('retention')
class Retention(HeadState):
  """Multi-scale retention, the mixer of RetNet.

    S_t = γ_h S_{t−1} + k_tᵀ v_t / √s,   γ_h = 1 − 2^(−5−h)
    o_t = q_t S_t
    y_t = W_o (norm(o_t) ∘ silu(W_g x_t))

  The heads h = 0, 1, … have s = width / num_heads features, and norm is the RMS norm of
  each head.

  The state is a `State` with S `[b, h, s, s]`.

  Differences from the paper: it always rotates q and k by e^(inθ), which here is the
  option `rotary`. Without it this is linear attention with a fixed decay. The values of
  the paper are twice as wide, and its norm has no learned scale.

  The NumPy loop that defines it is `tests/mixers/reference/retention.py`.

  Args:
    slot: Width of the tokens, number of heads, and initialisation.
    rotary: Whether queries and keys are rotated by their positions, with the angles of
      GPT-NeoX; False by default. The heads then need an even number of features.
    rngs: Random keys of the initial weights.

  Raises:
    UserError: If `slot.num_heads` is not a positive integer or does not divide the
      width, if `rotary` is not True or False, or if it is True and the number of
      features of a head is odd.

  Example:
    >>> slot = zoo.mixers.Slot(width=8, num_heads=2)
    >>> mixer = zoo.mixers.Retention(slot, rngs=nnx.Rngs(0))
    >>> mixer.initial_state(1).memory.shape
    (1, 2, 4, 4)

  References:
    Sun et al., arXiv 2307.08621, section 2.
  """

  def __init__(self, slot: Slot, rotary: bool = False, *, rngs: nnx.Rngs):
    if rotary:
      check_rotary(slot.head_size)
    super().__init__(slot, gate=jax.nn.silu, rngs=rngs)
    self.rotary = check_truth('rotary', rotary)

  def inputs(self, tokens: Tokens, state: State) -> tuple[Inputs, Past]:
    """Returns the inputs of the recurrence, with γ_h as the decay."""
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
  """Gated linear attention (GLA): linear attention with a decay for each key entry.

    log α_t = logsigmoid(W_2 W_1 x_t + b) / 16
    S_t = diag(α_t) S_{t−1} + k_tᵀ v_t
    o_t = q_t S_t / √s
    y_t = W_o (norm(o_t) ∘ silu(W_g x_t))

  Each head has s = width / num_heads features. W_1 has rank min(16, width), and norm is
  the RMS norm of each head.

  The state is a `State` with S `[b, h, s, s]`.

  Differences from the authors' code: its keys have half the width, and its norm is a
  layer norm.

  The NumPy loop that defines it is `tests/mixers/reference/gla.py`.

  Args:
    slot: Width of the tokens, number of heads, and initialisation.
    rngs: Random keys of the initial weights.

  Raises:
    UserError: If `slot.num_heads` is not a positive integer or does not divide the
      width.

  Example:
    >>> slot = zoo.mixers.Slot(width=8, num_heads=2)
    >>> mixer = zoo.mixers.GatedLinearAttention(slot, rngs=nnx.Rngs(0))
    >>> mixer.initial_state(1).memory.shape
    (1, 2, 4, 4)

  References:
    Yang et al., arXiv 2312.06635, section 4.
  """

  def __init__(self, slot: Slot, *, rngs: nnx.Rngs):
    super().__init__(slot, gate=jax.nn.silu, rngs=rngs)
    width, init = slot.width, slot.init
    self.decay_tap = Tap(axes='b n h k', kind='decay')
    rank = min(16, width)
    self.decay_in = unsplit(width, rank, init, rngs=rngs)
    self.decay = project(rank, width, init, rngs=rngs)

  def inputs(self, tokens: Tokens, state: State) -> tuple[Inputs, Past]:
    """Returns the inputs of the recurrence, with log α as the decay."""
    (query, key, value), past = self.heads(tokens, state)
    decay = jax.nn.log_sigmoid(widen(self.decay(self.decay_in(tokens)))) / 16
    decay = self.decay_tap(split_heads(decay, self.num_heads))
    query, key, value = self.tapped(widen(query), key, value)
    return Inputs(query / math.sqrt(query.shape[-1]), key, value, decay), past


class Mamba2Block(LinearState):
  """The block of Mamba-2, with 2 · width inner channels; base of two mixers.

  x, B and C go through a short convolution and SiLU. B and C, of `state_size` features,
  are the keys and queries of all heads. `Rate` gives Δ_t and the log decay −Δ_t e^A.
  The output is W_o norm(y_t ∘ silu(z_t)) with y_t = o_t + D x_t and an RMS norm.

  Each head has `num_states` states. The constructor raises UserError if `state_size` is
  not a positive integer or if the heads do not share the width evenly.
  """

  def __init__(
    self, slot: Slot, state_size: int, *, num_states: int = 1, rngs: nnx.Rngs
  ):
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
    """Returns the inputs of a recurrence with one state per head, and `state.past`.

    The second result is the `past` of the next state.
    """
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
    """Returns the output for each token, after the skip, the gate and the norm."""
    read += widen(self.skip[...])[None, None, :, None] * inputs.value
    gate = self.gate_tap(jax.nn.silu(widen(self.gate(tokens))))
    gated = self.norm(merge_heads(read) * gate)
    heads = self.heads_tap(split_heads(gated, self.num_heads))
    return self.out(merge_heads(heads).astype(tokens.dtype))


@register_mixer('mamba2')
class Mamba2(Mamba2Block):
  """Mamba-2, with one decay per head and 2 · width inner channels.

    Δ_t = softplus(W_Δ u_t + b),  α_t = e^(−Δ_t e^A)       numbers for each head
    S_t = α_t S_{t−1} + Δ_t B_tᵀ x_t
    o_t = C_t S_t + D x_t
    y_t = W_o norm(o_t ∘ silu(W_z u_t))

  Here u are the tokens. x, B and C are linear in u, and then go through a causal
  convolution over four tokens and SiLU. B and C, of N = `state_size` features, are the
  same in all heads. A head has 2 · width / num_heads entries of x; A, b and D are
  learned numbers for each head; norm is an RMS norm over all inner channels.

  The state is a `State` with S `[b, h, N, 2 · width / h]`, and the last three inputs of
  the two convolutions.

  Differences from the authors' code: its heads have 64 channels, whatever the width.

  The NumPy loop that defines it is `tests/mixers/reference/mamba2.py`.

  Args:
    slot: Width of the tokens, number of heads, and initialisation.
    state_size: Number N of rows of a state, ≥ 1; 64 by default.
    rngs: Random keys of the initial weights.

  Raises:
    UserError: If `state_size` or `slot.num_heads` is not a positive integer, or if
      `slot.num_heads` does not divide the width.

  Example:
    >>> slot = zoo.mixers.Slot(width=8, num_heads=2)
    >>> mixer = zoo.mixers.Mamba2(slot, state_size=6, rngs=nnx.Rngs(0))
    >>> mixer.initial_state(1).memory.shape
    (1, 2, 6, 8)

  References:
    Dao & Gu, arXiv 2405.21060, section 7.
  """

  def __init__(self, slot: Slot, state_size: int = 64, *, rngs: nnx.Rngs):
    super().__init__(slot, state_size, rngs=rngs)

  def inputs(self, tokens: Tokens, state: State) -> tuple[Inputs, Past]:
    """Returns the inputs of the recurrence, with C, B and x as q, k and v."""
    return self.features(tokens, state)


class Rate(nnx.Module):
  """The rate Δ = softplus(W x + b) of each head, and its log decay −Δ e^A."""

  def __init__(self, slot: Slot, *, rngs: nnx.Rngs):
    # The slot's `init` has no effect here, so that Δ and e^A start as in the papers.
    num_heads = slot.num_heads
    self.linear = unsplit(slot.width, num_heads, rngs=rngs)
    self.bias = nnx.Param(rate_bias(num_heads, rngs), **split('model'))
    self.log_a = nnx.Param(_log_scales(num_heads, rngs), **split('model'))

  def __call__(
    self, tokens: Tokens
  ) -> tuple[Float[Array, 'b n h'], Float[Array, 'b n h 1']]:
    """Returns Δ and the log decay."""
    rate, bias, log_a = widen((self.linear(tokens), self.bias[...], self.log_a[...]))
    delta = jax.nn.softplus(rate + bias[None, None])
    return delta, -(delta * jnp.exp(log_a)[None, None])[..., None]


class KeyRates(nnx.Module):
  """The log decay −e^A softplus(W_2 W_1 x + b) of each entry of a key.

  A is a number for each head. W_1 has as many outputs as a key has entries (Kimi
  Linear, arXiv 2510.26692).
  """

  def __init__(self, slot: Slot, *, rngs: nnx.Rngs):
    # The slot's `init` has no effect here, so that the decays start as in the paper.
    width, size = slot.width, slot.head_size
    self.linear = LowRank(width, size, width, use_bias=False, rngs=rngs)
    self.bias = nnx.Param(rate_bias(width, rngs), **split('model'))
    self.log_a = nnx.Param(_log_scales(slot.num_heads, rngs), **split('model'))

  def __call__(self, tokens: Tokens) -> Float[Array, 'b n h k']:
    """Returns the log decays."""
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
