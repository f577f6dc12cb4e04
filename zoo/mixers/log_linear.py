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
from zoo.mixers.recurrence import LEAST_LOG_DECAY, Inputs, over_tokens


class _Inputs(NamedTuple):
  """The inputs for one state per head, the scales of levels, and which levels merge."""

  recurrence: Inputs
  scales: Float[Array, 'b n h l']
  # The number of binary zeros at the end of a token's number; the first token is 0.
  zeros: Float[Array, 'b n']

  @property
  def value(self) -> Array:
    """The values that the tokens write."""
    return self.recurrence.value


@register_mixer('log_linear')
class LogLinear(Mamba2Block):
  """Log-linear Mamba-2: the states of Mamba-2 on a logarithmic number of time scales.

    o_t = Σ_{i ≤ t} λ_{t,l(t,i)} e^(G_t − G_i) (C_t·B_i) Δ_i x_i
    λ_t = softplus(L ∘ W_λ u_t)                     a number for each head and level
    y_t = W_o norm((o_t + D x_t) ∘ silu(W_z u_t))

  Here u are the tokens. x, B, C, Δ, D, the log decays and the norm are those of
  `Mamba2`, and G_t is the sum of the log decays up to t. The level l(t, i) is the
  number of binary digits of t XOR i. Level 0 is the token itself, and level l ≥ 1 has
  up to 2^(l−1) tokens before it: these are the buckets of a Fenwick tree. L is learned
  and starts at 1.

  Token by token, each level has a state. The `State` has their rows one below the
  other, `[b, h, num_levels · state_size, 2 · width / h]`, and the last three inputs of
  two convolutions. All tokens at once are computed by the matrix of all pairs of
  tokens.

  Differences from the paper: this is one of its two models. e^A starts in [1, 16], and
  in the authors' code at 1 to h.

  Limit: for all tokens at once, G is a sum over the whole sequence in float32, and its
  roundings grow with it: a weight is off by a share of about 6e-8 · `|G|`, which is
  0.06 % for `|G|` = 10⁴. Token by token, with `step`, there is no such sum.

  The NumPy loop that defines it is `tests/mixers/reference/log_linear.py`.

  Args:
    slot: Width of the tokens, number of heads, and initialisation.
    state_size: Number N of rows of the state of a level, ≥ 1; 64 by default.
    num_levels: Number of levels, from 2 to 31; 12 by default. From 2^(num_levels − 1)
      tokens on, the last level takes all older tokens.
    rngs: Random keys of the initial weights.

  Raises:
    UserError: If `state_size` or `slot.num_heads` is not a positive integer, if
      `num_levels` is not an integer from 2 to 31, or if `slot.num_heads` does not
      divide the width.

  Example:
    >>> slot = zoo.mixers.Slot(width=8, num_heads=2)
    >>> mixer = zoo.mixers.LogLinear(slot, state_size=6, num_levels=4, rngs=nnx.Rngs(0))
    >>> mixer.initial_state(1).memory.shape
    (1, 2, 24, 8)

  References:
    Guo et al., arXiv 2506.04761, section 3.
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
    check_count('num_levels', num_levels, minimum=2, maximum=31)
    super().__init__(slot, state_size, num_states=num_levels, rngs=rngs)
    num_heads, levels = slot.num_heads, slot.num_heads * num_levels
    self.num_levels = num_levels
    self.levels = project(slot.width, levels, slot.init, use_bias=False, rngs=rngs)
    scale = jnp.ones((num_heads, num_levels))
    self.level_scale = nnx.Param(scale, **split('model', None))

  def inputs(self, tokens: Tokens, state: State) -> tuple[_Inputs, Past]:
    """Returns the inputs of the recurrence, and the next `state.past`."""
    recurrence, past = self.features(tokens, state)
    logits = split_heads(widen(self.levels(tokens)), self.num_heads)
    scales = jax.nn.softplus(widen(self.level_scale[...])[None, None] * logits)
    number = state.position + jnp.arange(tokens.shape[1])
    zeros = jax.lax.population_count((number & -number) - 1).astype(scales.dtype)
    zeros = jnp.broadcast_to(zeros[None], tokens.shape[:2])
    return _Inputs(recurrence, scales, zeros), past

  def __call__(self, tokens: Tokens) -> Tokens:
    """Returns the output for each token, by the matrix of all pairs."""
    inputs, _ = self.inputs(tokens, self.initial_state(len(tokens)))
    inputs = widen(inputs)
    weights = pair_weights(inputs.recurrence, inputs.scales)
    read = jnp.einsum('bhti,bihv->bthv', weights, inputs.value)
    return self.outputs(self.read_tap(read), inputs, tokens)

  def attention(self, tokens: Tokens) -> Float[Array, 'b h n n']:
    """Returns the weight of each value in what the heads read, query by key."""
    inputs, _ = self.inputs(tokens, self.initial_state(len(tokens)))
    inputs = widen(inputs)
    return pair_weights(inputs.recurrence, inputs.scales)

  def recur(self, inputs: _Inputs, memory: Memory) -> tuple[Read, Memory]:
    """Runs the recurrence token by token."""
    return over_tokens(_step, inputs, memory)


def pair_weights(
  inputs: Inputs, scales: Float[Array, 'b n h l']
) -> Float[Array, 'b h n n']:
  """Returns the weight of each value in each output."""
  query, key, _, log_decay, write, *_ = inputs
  assert log_decay is not None
  assert write is not None
  n, last = query.shape[1], scales.shape[-1] - 1
  t = np.arange(n)
  digits = np.ceil(np.log2((t[:, None] ^ t[None]) + 1)).astype(int)
  of_pairs = jnp.take_along_axis(
    jnp.moveaxis(scales, 1, 2), np.minimum(digits, last)[None, None], axis=-1
  )
  # Sums with −∞, which resets the states, would have the difference NaN.
  decays = jnp.maximum(log_decay[..., 0], LEAST_LOG_DECAY)
  total = jnp.moveaxis(jnp.cumsum(decays, axis=1), 1, 2)
  between = total[..., :, None] - total[..., None, :]
  decay = jnp.exp(jnp.where(np.tri(n, dtype=bool)[None, None], between, -jnp.inf))
  scores = jnp.einsum('bthk,bihk->bhti', query, write[..., None] * key)
  return scores * decay * of_pairs


def _step(
  inputs: _Inputs, memory: Float[Array, 'b h m v']
) -> tuple[Float[Array, 'b h v'], Float[Array, 'b h m v']]:
  """Returns the output of one token, and the states of all levels.

  The rows of the states are one below the other.
  """
  query, key, value, log_decay, write, *_ = inputs.recurrence
  assert log_decay is not None
  assert write is not None
  levels = inputs.scales.shape[-1]
  b, h, _, v = memory.shape
  states = jnp.exp(log_decay)[..., None, None] * memory.reshape(b, h, levels, -1, v)
  # A token with p zeros at the end of its number merges the levels up to p. Their
  # tokens are then at the level p + 1, or at the last level if there is no such level.
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
