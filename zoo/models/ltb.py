"""The linear transformer block: linear attention followed by a linear MLP."""

from typing import Annotated

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from zoo.core.errors import check_count
from zoo.core.registry import models
from zoo.core.values import size
from zoo.models.arguments import InitScale, NumHeads
from zoo.models.linear_attention import LinearAttention

Hidden = Annotated[
  int | None, size(about='Width f of the MLP, at least d + 1; None: d + 1.')
]


@models.register('ltb')
class LTB(LinearAttention):
  """LTB (Zhang, Wu & Bartlett, arXiv 2402.14951; arXiv 2512.04268, eq. 30).

  f = [W_2ᵀ W_1 (E + (1/C) Σ_h W_P W_V E W_M Eᵀ W_Kᵀ W_Q E)]_(-1,-1),  y_q = 0

  Parameters: `w_k, w_q, w_v, w_p [h, e, e]`, `w_1, w_2 [f, e]`.
  """

  def __init__(
    self,
    num_features: int,
    num_heads: NumHeads = 1,
    hidden_features: Hidden = None,
    init_scale: InitScale = 0.1,
    *,
    rngs: nnx.Rngs,
  ):
    """All six matrices start from N(0, init_scale²)."""
    super().__init__(num_features, num_heads, init_scale, rngs=rngs)
    e = num_features + 1
    f = (
      e
      if hidden_features is None
      else check_count('hidden_features', hidden_features, minimum=e)
    )
    self.hidden_features = f
    self.w_1 = nnx.Param(init_scale * jax.random.normal(rngs.params(), (f, e)))
    self.w_2 = nnx.Param(init_scale * jax.random.normal(rngs.params(), (f, e)))

  def initial_guess(self) -> tuple[Float[Array, ' d'], Float[Array, '']]:
    dtype = self.w_k.dtype
    return jnp.zeros(self.num_features, dtype), jnp.zeros((), dtype)

  def forward_tokens(self, tokens: Float[Array, 'b t e']) -> Float[Array, 'b t e']:
    block = super().forward_tokens(tokens)
    return jnp.einsum('fi,fj,btj->bti', self.w_2[...], self.w_1[...], block)

  def readout(self) -> Float[Array, ' e']:
    """The last row of `W_2ᵀ W_1`."""
    return self.w_2[:, -1] @ self.w_1[...]
