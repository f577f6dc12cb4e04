"""Linear-state mixers that erase: the delta rule, with and without a gate."""

from __future__ import annotations

import abc

import jax
from flax import nnx
from jaxtyping import Array, Float

from zoo.core.registry import mixers
from zoo.mixers.decay import Rate
from zoo.mixers.linear_state import HeadState, Inputs, State, normalize
from zoo.mixers.mixer import Init, project, widen


class _DeltaRule(HeadState):
  """S_t = S'_t + β_t k_tᵀ (v_t − k_t S'_t), where S'_t is S_{t−1} after a decay."""

  def __init__(
    self, width: int, num_heads: int, init: Init, *, gate: bool, rngs: nnx.Rngs
  ):
    """Raises UserError if `width` is not a multiple of `num_heads`."""
    super().__init__(
      width,
      num_heads,
      init,
      convolved=('query', 'key', 'value'),
      norm=True,
      gate=gate,
      rngs=rngs,
    )
    self.strength = project(width, num_heads, init, use_bias=False, rngs=rngs)

  @abc.abstractmethod
  def log_decay(self, tokens: Float[Array, 'b n w']) -> Float[Array, 'b n h 1'] | None:
    """The logarithm of the decay before each token; None: no decay."""

  def inputs(
    self, tokens: Float[Array, 'b n w'], state: State
  ) -> tuple[Inputs, tuple[Array, ...]]:
    (query, key, value), past = self.heads(tokens, state)
    beta, decay = jax.nn.sigmoid(widen(self.strength(tokens))), self.log_decay(tokens)
    return Inputs(normalize(query), normalize(key), value, decay, beta, beta), past


@mixers.register('delta')
class Delta(_DeltaRule):
  """The delta rule (Schlag et al., arXiv 2102.11174; as in Yang et al., 2406.06484).

  S_t = S_{t−1} + β_t k_tᵀ (v_t − k_t S_{t−1}), with β_t = sigmoid(W_β x_t) for each
  head: a step of gradient descent on |k_t S − v_t|²/2. q, k and v go through a short
  convolution and SiLU; q and k are scaled to length 1; out(norm(o_t)), with the RMS
  norm of each head.
  """

  def __init__(
    self,
    width: int,
    num_heads: int,
    init: Init = Init(),  # noqa: B008, it is frozen
    *,
    rngs: nnx.Rngs,
  ):
    """Raises UserError if `width` is not a multiple of `num_heads`."""
    super().__init__(width, num_heads, init, gate=False, rngs=rngs)

  def log_decay(self, tokens: Float[Array, 'b n w']) -> None:
    return None


@mixers.register('gated_delta')
class GatedDelta(_DeltaRule):
  """The gated delta rule (Yang et al., arXiv 2412.06464).

  S_t = S'_t + β_t k_tᵀ (v_t − k_t S'_t), S'_t = e^(g_t) S_{t−1},
  g_t = −e^A softplus(W x_t + b) for each head; the rest as in the delta rule, but with
  a gate: out(norm(o_t) ∘ silu(W_g x_t)). The authors' values are twice as wide, and e^A
  starts in [0, 16], not in [1, 16].
  """

  def __init__(
    self,
    width: int,
    num_heads: int,
    init: Init = Init(),  # noqa: B008, it is frozen
    *,
    rngs: nnx.Rngs,
  ):
    """Raises UserError if `width` is not a multiple of `num_heads`."""
    super().__init__(width, num_heads, init, gate=True, rngs=rngs)
    self.rate = Rate(width, num_heads, rngs=rngs)

  def log_decay(self, tokens: Float[Array, 'b n w']) -> Float[Array, 'b n h 1']:
    return self.rate(tokens)[1]
