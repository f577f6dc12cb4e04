"""The mesa layer: ridge regression on the tokens so far, solved at each token."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from zoo.core.registry import register_mixer
from zoo.core.taps import Tap
from zoo.mixers.linear_state import HeadState, Past, State, normalize
from zoo.mixers.mixer import Memory, Read, Slot, Tokens, project, split, widen
from zoo.mixers.recurrence import Inputs, over_tokens, recurrence, update

_LEAST = 0.25  # Λ is at least this, as in the authors' code.


@register_mixer('mesa')
class Mesa(HeadState):
  """The layer of MesaNet: ridge regression on the tokens so far.

    H_t = γ_t H_{t−1} + β_t k_tᵀ k_t
    G_t = γ_t G_{t−1} + β_t k_tᵀ v_t
    o_t = q_t (H_t + Λ)⁻¹ G_t
    y_t = W_o norm(o_t)

  β_t and γ_t are sigmoids of a linear map of the token, a number for each head. Λ is
  diagonal and learned; its entries are at least 1/4 and start at 1. q and k are linear
  in the tokens, go through a causal convolution over four tokens and SiLU, and are then
  scaled to length 1. v is linear in the tokens, and norm is the RMS norm of each head.

  The state is a `State` with H and G side by side, `[b, h, s, 2 s]`, s = width /
  num_heads, and the last three inputs of the convolutions of q and k.

  Differences from the sources: the system is solved by Cholesky decomposition, where
  the authors take 30 steps of conjugate gradients. The mesa layer of arXiv 2309.05858
  has no decay, norm or convolution. q has no other scale, as in the code of
  flash-linear-attention.

  The NumPy loop that defines it is `tests/mixers/reference/mesa.py`.

  Args:
    slot: Width of the tokens, number of heads, and initialisation.
    rngs: Random keys of the initial weights.

  Raises:
    UserError: If `slot.num_heads` is not a positive integer or does not divide the
      width.

  Example:
    >>> slot = zoo.mixers.Slot(width=8, num_heads=2)
    >>> mixer = zoo.mixers.Mesa(slot, rngs=nnx.Rngs(0))
    >>> mixer.initial_state(1).memory.shape
    (1, 2, 4, 8)

  References:
    von Oswald et al., arXiv 2506.05233.
  """

  roles = {'ridge': 'vector'}

  def __init__(self, slot: Slot, *, rngs: nnx.Rngs):
    super().__init__(slot, convolved=('query', 'key'), rngs=rngs)
    num_heads, size = slot.num_heads, slot.head_size
    self.sizes = size, 2 * size  # H and G side by side
    self.strength, self.decay = (
      project(slot.width, num_heads, slot.init, rngs=rngs) for _ in range(2)
    )
    self.decay_tap = Tap(axes='b n h g', kind='decay')
    self.strength_tap = Tap(axes='b n h', kind='strength')
    start = jnp.log(jnp.expm1(jnp.full((num_heads, size), 1 - _LEAST)))  # Λ = 1
    self.ridge = nnx.Param(start, **split('model', None))

  def inputs(self, tokens: Tokens, state: State) -> tuple[Inputs, Past]:
    """Returns the inputs of the recurrence, whose values are [k, v]."""
    (query, key, value), past = self.heads(tokens, state)
    query, key, value = self.tapped(normalize(query), normalize(key), widen(value))
    log_decay = jax.nn.log_sigmoid(widen(self.decay(tokens)))[..., None]
    log_decay = self.decay_tap(log_decay)
    beta = self.strength_tap(jax.nn.sigmoid(widen(self.strength(tokens))))
    inputs = Inputs(query, key, value, log_decay, beta)
    return self.with_values(inputs, value), past

  def with_values(self, inputs: Inputs, values: Read) -> Inputs:
    """Returns the inputs with other values v, beside the keys."""
    return inputs._replace(value=jnp.concatenate([inputs.key, values], axis=-1))

  def recur(
    self, inputs: Inputs, memory: Memory
  ) -> tuple[Float[Array, 'b n h s'], Memory]:
    """Solves the regression at each token; the second result is the memory [H, G]."""
    # No solver takes bfloat16, so Λ is in float32 at least.
    return regress(jax.nn.softplus(widen(self.ridge[...])) + _LEAST, inputs, memory)


def regress(
  ridge: Float[Array, 'h k'], inputs: Inputs, memory: Memory
) -> tuple[Float[Array, 'b n h s'], Memory]:
  """Returns q (H + Λ)⁻¹ G after each token, and the memory [H, G].

  The values of the inputs are [k, v]. The vectors q (H + Λ)⁻¹ are queries of linear
  attention with the state G, so only H needs a scan over tokens.
  """
  size = ridge.shape[-1]
  diagonal = ridge[:, :, None] * jnp.eye(size, dtype=ridge.dtype)[None]

  def solve(inputs: Inputs, moment: Float[Array, 'b h k k']) -> tuple[Array, Array]:
    moment = update(inputs, moment)
    matrix = moment + diagonal[None]
    factor = jnp.linalg.cholesky(jax.lax.stop_gradient(matrix), symmetrize_input=False)
    # The gradient is one more solve with the same factor. No gradient goes through the
    # factor itself.
    solved = jax.lax.custom_linear_solve(
      lambda x: matrix @ x,
      inputs.query[..., None],
      lambda _, x: jax.scipy.linalg.cho_solve((factor, True), x),
      symmetric=True,
    )
    return solved[..., 0], moment

  keys, values = inputs.value[..., :size], inputs.value[..., size:]
  start = memory[..., :size]
  query, moment = over_tokens(solve, inputs._replace(value=keys), start)
  inputs = inputs._replace(query=query, value=values)
  outputs, cross = recurrence(inputs, memory[..., size:])
  return outputs, jnp.concatenate([moment, cross], axis=-1)
