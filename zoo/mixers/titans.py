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

# A function that returns the gradient with respect to k M, from k M, k and v.
Gradient = Callable[
  [Float[Array, 'b h v'], Float[Array, 'b h k'], Float[Array, 'b h v']],
  Float[Array, 'b h v'],
]


class Descent(NamedTuple):
  """The data and the rates on which the memory is trained.

  The arrays of one token lack the axis n.

  Attributes:
    query: q, which reads the memory, `[b, n, h, k]`.
    key: k, `[b, n, h, k]`.
    value: v, `[b, n, h, v]`.
    rate: The step size θ in (0, 1), `[b, n, h]`.
    momentum: η in (0, 1), `[b, n, h]`.
    forget: α in (0, 1), the part of the memory that is forgotten, `[b, n, h]`.
  """

  query: Float[Array, 'b n h k']
  key: Float[Array, 'b n h k']
  value: Float[Array, 'b n h v']
  rate: Float[Array, 'b n h']
  momentum: Float[Array, 'b n h']
  forget: Float[Array, 'b n h']


@register_mixer('titans')
class Titans(HeadState):
  """The linear neural memory of Titans: gradient descent with momentum and forgetting.

    ∇_t = 2 k_tᵀ (k_t M_{t−1} − v_t)                the gradient of |k_t M − v_t|²
    Z_t = η_t Z_{t−1} − θ_t ∇_t
    M_t = (1 − α_t) M_{t−1} + Z_t
    o_t = q_t M_t
    y_t = W_o (norm(o_t) ∘ silu(W_g x_t))

  The rate θ_t, the momentum η_t and the forgetting α_t are sigmoids of a linear map of
  the token, a number for each head. q, k and v are linear in the tokens x, and then go
  through a causal convolution over four tokens and SiLU; q and k are then scaled to
  length 1. q has no other scale, as in the paper and in the code of
  flash-linear-attention. norm is the RMS norm of each head.

  The state is a `State` with M above Z, `[b, h, 2 s, s]`, s = width / num_heads, and
  the last three inputs of the convolutions of q, k and v.

  Differences from the sources: the memory of the paper may be a deep network, and its
  architectures have attention and persistent tokens beside it. The paper takes all
  gradients of a chunk at the same memory, as `ttt` does; here each gradient is taken at
  the memory before its own token. In the code of flash-linear-attention a layer norm
  follows k_t M, and the target is v_t − k_t.

  The NumPy loop that defines it is `tests/mixers/reference/titans.py`.

  Args:
    slot: Width of the tokens, number of heads, and initialisation.
    rngs: Random keys of the initial weights.

  Raises:
    UserError: If `slot.num_heads` is not a positive integer or does not divide the
      width.

  Example:
    >>> slot = zoo.mixers.Slot(width=8, num_heads=2)
    >>> mixer = zoo.mixers.Titans(slot, rngs=nnx.Rngs(0))
    >>> mixer.initial_state(1).memory.shape
    (1, 2, 8, 4)

  References:
    Behrouz et al., arXiv 2501.00663, section 3.1, eqs. 12 to 14.
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
    """Returns the data and the rates of the descent, and the next `state.past`."""
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
    """Trains the memory token by token, and returns what the queries read."""
    return over_tokens(functools.partial(descend, gradient=squared), inputs, memory)


def squared(
  read: Float[Array, 'b h v'], key: Float[Array, 'b h k'], value: Float[Array, 'b h v']
) -> Float[Array, 'b h v']:
  """Returns the gradient of |k M − v|² with respect to k M."""
  return 2 * (read - value)


def descend(
  inputs: Descent, memory: Float[Array, 'b h m v'], gradient: Gradient
) -> tuple[Float[Array, 'b h v'], Float[Array, 'b h m v']]:
  """Returns the output of one token, and the next memory [M; Z]."""
  query, key, value, rate, momentum, forget = inputs
  weights, change = jnp.split(memory, 2, axis=2)
  read = jnp.einsum('bhk,bhkv->bhv', key, weights)
  down = rate[..., None] * gradient(read, key, value)
  change = momentum[..., None, None] * change - key[..., None] * down[..., None, :]
  weights = (1 - forget)[..., None, None] * weights + change
  read = jnp.einsum('bhk,bhkv->bhv', query, weights)
  return read, jnp.concatenate([weights, change], axis=2)
