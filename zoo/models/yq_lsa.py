"""yq-LSA: linear self-attention that learns its initial guess."""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from zoo.core.registry import models
from zoo.models.arguments import InitScale, NumHeads
from zoo.models.linear_attention import LinearAttention


@models.register('yq_lsa')
class YqLSA(LinearAttention):
  """yq-LSA (arXiv 2512.04268, Definition 3): the initial guess `w` is trained.

  f = [E + (1/C) Σ_h W_P W_V E W_M Eᵀ W_Kᵀ W_Q E]_(-1,-1),  y_q = w·x_q

  Parameters: `w_k, w_q, w_v, w_p [h, e, e]`, and `w [d]`, which starts at 0. The paper
  has one head; more heads do not lower the least risk.
  """

  def __init__(
    self,
    num_features: int,
    num_heads: NumHeads = 1,
    init_scale: InitScale = 0.1,
    *,
    rngs: nnx.Rngs,
  ):
    super().__init__(num_features, num_heads, init_scale, rngs=rngs)
    self.w = nnx.Param(jnp.zeros(num_features, self.w_k.dtype))

  def initial_guess(self) -> tuple[Float[Array, ' d'], Float[Array, '']]:
    return self.w[...], jnp.zeros((), self.w.dtype)
