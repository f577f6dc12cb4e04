"""Titans: a memory trained by gradient descent with momentum, which forgets."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from zoo.core.registry import register_mixer
from zoo.core.taps import Tap
from zoo.mixers.linear_state import QKV, HeadState, Past, State, normalize
from zoo.mixers.mixer import Memory, Read, Slot, Tokens, project, widen
from zoo.mixers.recurrence import over_tokens

# ∇ with respect to k M, from k M, the key and the value.
Gradient = Callable[
  [Float[Array, 'b h v'], Float[Array, 'b h k'], Float[Array, 'b h v']],
  Float[Array, 'b h v'],
]


class Descent(NamedTuple):
  """What the memory is trained on; the arrays of one token lack the axis n."""

  query: Float[Array, 'b n h k']
  key: Float[Array, 'b n h k']
  value: Float[Array, 'b n h v']
  rate: Float[Array, 'b n h']  # θ
  momentum: Float[Array, 'b n h']  # η
  forget: Float[Array, 'b n h']  # α


@register_mixer('titans')
class Titans(HeadState):
  """The neural memory of Titans (Behrouz et al., arXiv 2501.00663, section 3), linear.

  Z_t = η_t Z_{t−1} − θ_t ∇_t and M_t = (1 − α_t) M_{t−1} + Z_t with the gradient
  ∇_t = 2 k_tᵀ (k_t M_{t−1} − v_t) of |k_t M − v_t|²; o_t = q_t M_t. θ_t, η_t and α_t
  are sigmoids of a linear map of the token, one each per head. q, k and v go through a
  short convolution and SiLU; q and k are scaled to length 1; out(norm(o_t) ∘
  silu(W_g x_t)), with the RMS norm of each head. q has no other scale, as in the paper
  and in the code of flash-linear-attention.

  The paper's memory may be a deep network, and its architectures have attention and
  persistent tokens beside it; it takes all gradients of a chunk at the same memory, as
  `ttt` does, where here each is at the memory of its own token. In the code of
  flash-linear-attention a layer norm follows k_t M, and the target is v_t − k_t.

  The loop that defines it: `tests/mixers/reference/titans.py`.
  """

  def __init__(self, slot: Slot, *, rngs: nnx.Rngs):
    super().__init__(slot, convolved=QKV, gate=jax.nn.silu, rngs=rngs)
    key_size, value_size = self.sizes
    self.sizes = 2 * key_size, value_size  # M, and Z below it
    self.rate, self.momentum, self.forget = (
      project(slot.width, slot.num_heads, slot.init, rngs=rngs) for _ in range(3)
    )
    self.rate_tap = Tap(axes='b n h', kind='strength')
    self.momentum_tap = Tap(axes='b n h', kind='decay')
    self.forget_tap = Tap(axes='b n h', kind='decay')

  def inputs(self, tokens: Tokens, state: State) -> tuple[Descent, Past]:
    (query, key, value), past = self.heads(tokens, state)
    numbers = (
      tap(jax.nn.sigmoid(widen(layer(tokens))))
      for layer, tap in (
        (self.rate, self.rate_tap),
        (self.momentum, self.momentum_tap),
        (self.forget, self.forget_tap),
      )
    )
    query, key, value = self.tapped(normalize(query), normalize(key), value)
    return Descent(query, key, value, *numbers), past

  def recur(self, inputs: Descent, memory: Memory) -> tuple[Read, Memory]:
    return over_tokens(functools.partial(descend, gradient=squared), inputs, memory)


def squared(
  read: Float[Array, 'b h v'], key: Float[Array, 'b h k'], value: Float[Array, 'b h v']
) -> Float[Array, 'b h v']:
  """The gradient of |k M − v|² with respect to k M."""
  return 2 * (read - value)


def descend(
  inputs: Descent, memory: Float[Array, 'b h m v'], gradient: Gradient
) -> tuple[Float[Array, 'b h v'], Float[Array, 'b h m v']]:
  """The output of one token, and the next memory [M; Z]."""
  query, key, value, rate, momentum, forget = inputs
  weights, change = jnp.split(memory, 2, axis=2)
  read = jnp.einsum('bhk,bhkv->bhv', key, weights)
  down = rate[..., None] * gradient(read, key, value)
  change = momentum[..., None, None] * change - key[..., None] * down[..., None, :]
  weights = (1 - forget)[..., None, None] * weights + change
  read = jnp.einsum('bhk,bhkv->bhv', query, weights)
  return read, jnp.concatenate([weights, change], axis=2)
