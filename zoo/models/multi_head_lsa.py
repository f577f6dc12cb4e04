"""Multi-head linear self-attention with a fixed initial guess."""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from zoo.core.errors import check_vector
from zoo.core.registry import models
from zoo.models.arguments import InitialBias, InitialGuess, InitScale, NumHeads
from zoo.models.linear_attention import Constant, LinearAttention


@models.register('multi_head_lsa')
class MultiHeadLSA(LinearAttention):
  """Multi-head LSA (arXiv 2512.04268, eqs. 5 and 6).

  f = [E + (1/C) Σ_h W_P W_V E W_M Eᵀ W_Kᵀ W_Q E]_(-1,-1),  y_q = g·x_q + β fixed

  Parameters: `w_k, w_q, w_v, w_p [h, e, e]`.
  """

  def __init__(
    self,
    num_features: int,
    num_heads: NumHeads,
    initial_guess: InitialGuess = 0.0,
    initial_bias: InitialBias = 0.0,
    init_scale: InitScale = 0.1,
    *,
    rngs: nnx.Rngs,
  ):
    super().__init__(num_features, num_heads, init_scale, rngs=rngs)
    guess = check_vector('initial_guess', initial_guess, num_features)
    self.guess = Constant(jnp.asarray(guess, self.w_k.dtype))
    self.bias = Constant(jnp.asarray(initial_bias, self.w_k.dtype))

  def initial_guess(self) -> tuple[Float[Array, ' d'], Float[Array, '']]:
    return self.guess[...], self.bias[...]
