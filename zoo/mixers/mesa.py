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

_LEAST = 0.25  # the least Λ, as in the authors' code


@register_mixer('mesa')
class Mesa(HeadState):
  """The layer of MesaNet (von Oswald et al., arXiv 2506.05233).

  H_t = γ_t H_{t−1} + β_t k_tᵀ k_t, G_t = γ_t G_{t−1} + β_t k_tᵀ v_t,
  o_t = q_t (H_t + Λ)⁻¹ G_t, solved exactly, by Cholesky, where the authors take 30
  conjugate-gradient steps. β_t and γ_t are sigmoids of a linear map of the token, one
  each per head; Λ ≥ 1/4 is diagonal and learned. q and k go through a short convolution
  and SiLU and are scaled to length 1; out(norm(o_t)), with the RMS norm of each head.
  q has no other scale, as in the code of flash-linear-attention.
  The mesa layer of arXiv 2309.05858 has no decay, norm or convolution.

  The loop that defines it: `tests/mixers/reference/mesa.py`.
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
    (query, key, value), past = self.heads(tokens, state)
    query, key, value = self.tapped(normalize(query), normalize(key), widen(value))
    log_decay = jax.nn.log_sigmoid(widen(self.decay(tokens)))[..., None]
    log_decay = self.decay_tap(log_decay)
    beta = self.strength_tap(jax.nn.sigmoid(widen(self.strength(tokens))))
    inputs = Inputs(query, key, value, log_decay, beta)
    return self.with_values(inputs, value), past

  def with_values(self, inputs: Inputs, values: Read) -> Inputs:
    return inputs._replace(value=jnp.concatenate([inputs.key, values], axis=-1))

  def recur(
    self, inputs: Inputs, memory: Memory
  ) -> tuple[Float[Array, 'b n h s'], Memory]:
    # In float32 at least: no solver takes bfloat16.
    return regress(jax.nn.softplus(widen(self.ridge[...])) + _LEAST, inputs, memory)


def regress(
  ridge: Float[Array, 'h k'], inputs: Inputs, memory: Memory
) -> tuple[Float[Array, 'b n h s'], Memory]:
  """q (H + Λ)⁻¹ G after each token, and the memory [H, G], for the values [k, v].

  q (H + Λ)⁻¹ are queries of linear attention with the state G, so that only H
  needs a scan over tokens.
  """
  size = ridge.shape[-1]
  diagonal = ridge[:, :, None] * jnp.eye(size, dtype=ridge.dtype)[None]

  def solve(inputs: Inputs, moment: Float[Array, 'b h k k']) -> tuple[Array, Array]:
    moment = update(inputs, moment)
    matrix = moment + diagonal[None]
    factor = jnp.linalg.cholesky(jax.lax.stop_gradient(matrix), symmetrize_input=False)
    # The gradient is one more solve with this factor, which is not differentiated.
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
