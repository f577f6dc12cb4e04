"""Log-linear attention: as many states as the number of tokens has binary digits."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from zoo.core.errors import check_count
from zoo.core.registry import register_mixer
from zoo.mixers.decay import Mamba2Block
from zoo.mixers.linear_state import Past, State
from zoo.mixers.mixer import (
  Memory,
  Read,
  Slot,
  Tokens,
  project,
  split,
  split_heads,
  widen,
)
from zoo.mixers.recurrence import Inputs, over_tokens


class _Inputs(NamedTuple):
  """Those of one state per head, a scale of each level, and which levels merge."""

  recurrence: Inputs
  scales: Float[Array, 'b n h l']
  zeros: Float[Array, 'b n']  # at the end of a token's number; the first token is 0

  @property
  def value(self) -> Array:
    return self.recurrence.value


@register_mixer('log_linear')
class LogLinear(Mamba2Block):
  """Log-linear Mamba-2 (Guo et al., arXiv 2506.04761, section 3).

  o_t = Σ_i λ_{t,l(t,i)} e^(G_t − G_i) (C_t·B_i) Δ_i x_i in the block of Mamba-2, with
  G the sum of the log decays and l(t, i) the number of binary digits of t XOR i: level
  0 is the token itself, and level l up to 2^(l−1) tokens before it, the buckets of a
  Fenwick tree. λ_t = softplus(L ∘ W_λ u_t) ≥ 0 for each head and level; L starts at 1.
  Token by token each level has a state of its own. All tokens at once are one product
  with the matrix of all pairs.

  The loop that defines it: `tests/mixers/reference/log_linear.py`.
  """

  roles = {'level_scale': 'vector'}

  def __init__(
    self,
    slot: Slot,
    state_size: int = 64,
    num_levels: int = 12,
    *,
    rngs: nnx.Rngs,
  ):
    """
    Args:
      slot: the width of the tokens, the heads, and how kernels start.
      state_size: numbers of the state N of each channel, ≥ 1.
      num_levels: states of a head, from 2 to 31; from 2^(levels − 1) tokens on, the
        last takes all others.
      rngs: the keys of the initial weights.

    Raises UserError for an argument that is out of its range.
    """
    check_count('num_levels', num_levels, minimum=2, maximum=31)
    super().__init__(slot, state_size, num_states=num_levels, rngs=rngs)
    num_heads, levels = slot.num_heads, slot.num_heads * num_levels
    self.num_levels = num_levels
    self.levels = project(slot.width, levels, slot.init, use_bias=False, rngs=rngs)
    scale = jnp.ones((num_heads, num_levels))
    self.level_scale = nnx.Param(scale, **split('model', None))

  def inputs(self, tokens: Tokens, state: State) -> tuple[_Inputs, Past]:
    recurrence, past = self.features(tokens, state)
    logits = split_heads(widen(self.levels(tokens)), self.num_heads)
    scales = jax.nn.softplus(widen(self.level_scale[...])[None, None] * logits)
    number = state.position + jnp.arange(tokens.shape[1])
    zeros = jax.lax.population_count((number & -number) - 1).astype(scales.dtype)
    zeros = jnp.broadcast_to(zeros[None], tokens.shape[:2])
    return _Inputs(recurrence, scales, zeros), past

  def __call__(self, tokens: Tokens) -> Tokens:
    inputs, _ = self.inputs(tokens, self.initial_state(len(tokens)))
    inputs = widen(inputs)
    weights = pair_weights(inputs.recurrence, inputs.scales)
    read = jnp.einsum('bhti,bihv->bthv', weights, inputs.value)
    return self.outputs(self.read_tap(read), inputs, tokens)

  def attention(self, tokens: Tokens) -> Float[Array, 'b h n n']:
    inputs, _ = self.inputs(tokens, self.initial_state(len(tokens)))
    inputs = widen(inputs)
    return pair_weights(inputs.recurrence, inputs.scales)

  def recur(self, inputs: _Inputs, memory: Memory) -> tuple[Read, Memory]:
    return over_tokens(_step, inputs, memory)


def pair_weights(
  inputs: Inputs, scales: Float[Array, 'b n h l']
) -> Float[Array, 'b h n n']:
  """The weight of each value in each output."""
  query, key, _, log_decay, write, *_ = inputs
  assert log_decay is not None
  assert write is not None
  n, last = query.shape[1], scales.shape[-1] - 1
  t = np.arange(n)
  digits = np.ceil(np.log2((t[:, None] ^ t[None]) + 1)).astype(int)
  of_pairs = jnp.take_along_axis(
    jnp.moveaxis(scales, 1, 2), np.minimum(digits, last)[None, None], axis=-1
  )
  total = jnp.moveaxis(jnp.cumsum(log_decay[..., 0], axis=1), 1, 2)
  between = total[..., :, None] - total[..., None, :]
  decay = jnp.exp(jnp.where(np.tri(n, dtype=bool)[None, None], between, -jnp.inf))
  scores = jnp.einsum('bthk,bihk->bhti', query, write[..., None] * key)
  return scores * decay * of_pairs


def _step(
  inputs: _Inputs, memory: Float[Array, 'b h m v']
) -> tuple[Float[Array, 'b h v'], Float[Array, 'b h m v']]:
  """The output of one token, and the states of all levels, one below the other."""
  query, key, value, log_decay, write, *_ = inputs.recurrence
  assert log_decay is not None
  assert write is not None
  levels = inputs.scales.shape[-1]
  b, h, _, v = memory.shape
  states = jnp.exp(log_decay)[..., None, None] * memory.reshape(b, h, levels, -1, v)
  # A token with p zeros at the end of its number merges the levels up to p: from now on
  # their tokens are at the level p + 1, the last level if there is none.
  zeros, level = inputs.zeros[0], jnp.arange(levels, dtype=inputs.zeros.dtype)
  target = jnp.minimum(zeros + 1, levels - 1)
  merged = (level <= zeros)[None, None, :, None, None]
  total = jnp.sum(jnp.where(merged, states, 0), axis=2, keepdims=True)
  states = jnp.where(merged, 0, states)
  states += jnp.where((level == target)[None, None, :, None, None], total, 0)
  new = (write[..., None] * key)[..., None] * value[..., None, :]
  states = states.at[:, :, 0].set(new)
  read = jnp.einsum('bhl,bhk,bhlkv->bhv', inputs.scales, query, states)
  return read, states.reshape(memory.shape)
