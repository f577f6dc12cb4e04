"""Linear-state mixers that erase: the delta rule, with and without a gate."""

from __future__ import annotations

import jax
from flax import nnx
from jaxtyping import Array, Float

from zoo.core.registry import mixers
from zoo.mixers.decay import Rate
from zoo.mixers.linear_state import HeadState, Inputs, State, normalize
from zoo.mixers.mixer import Init, project, widen


@mixers.register('delta')
class Delta(HeadState):
  """The delta rule (Schlag et al., arXiv 2102.11174; as in Yang et al., 2406.06484).

  S_t = S_{t−1} + β_t k_tᵀ (v_t − k_t S_{t−1}), with β_t = sigmoid(W_β x_t) for each
  head: a step of gradient descent on |k_t S − v_t|²/2. q, k and v go through a short
  convolution and SiLU; q and k are scaled to length 1; out(norm(o_t)), with the RMS
  norm of each head.
  """

  gated = False

  def __init__(
    self,
    width: int,
    num_heads: int,
    init: Init = Init(),  # noqa: B008, it is frozen
    *,
    rngs: nnx.Rngs,
  ):
    """Raises UserError if `width` is not a multiple of `num_heads`."""
    super().__init__(
      width,
      num_heads,
      init,
      convolved=('query', 'key', 'value'),
      norm=True,
      gate=self.gated,
      rngs=rngs,
    )
    self.strength = project(width, num_heads, init, use_bias=False, rngs=rngs)

  def inputs(
    self, tokens: Float[Array, 'b n w'], state: State
  ) -> tuple[Inputs, tuple[Array, ...]]:
    (query, key, value), past = self.heads(tokens, state)
    beta = jax.nn.sigmoid(widen(self.strength(tokens)))
    return Inputs(normalize(query), normalize(key), value, None, beta, beta), past


@mixers.register('gated_delta')
class GatedDelta(Delta):
  """The gated delta rule (Yang et al., arXiv 2412.06464).

  S_t = S'_t + β_t k_tᵀ (v_t − k_t S'_t), S'_t = e^(g_t) S_{t−1},
  g_t = −e^A softplus(W x_t + b) for each head; the rest as in the delta rule, but with
  a gate: out(norm(o_t) ∘ silu(W_g x_t)). The authors' values are twice as wide, and e^A
  starts in [0, 16], not in [1, 16].
  """

  gated = True

  def __init__(
    self,
    width: int,
    num_heads: int,
    init: Init = Init(),  # noqa: B008, it is frozen
    *,
    rngs: nnx.Rngs,
  ):
    """Raises UserError if `width` is not a multiple of `num_heads`."""
    super().__init__(width, num_heads, init, rngs=rngs)
    self.rate = Rate(width, num_heads, rngs=rngs)

  def inputs(
    self, tokens: Float[Array, 'b n w'], state: State
  ) -> tuple[Inputs, tuple[Array, ...]]:
    inputs, past = super().inputs(tokens, state)
    return inputs._replace(log_decay=self.rate(tokens)[1]), past
