"""Single-head linear self-attention, the subject of most of the theory."""

from flax import nnx

from zoo.core.registry import models
from zoo.models.arguments import InitialBias, InitialGuess, InitScale
from zoo.models.multi_head_lsa import MultiHeadLSA


@models.register('lsa')
class LSA(MultiHeadLSA):
  """LSA (arXiv 2512.04268, eq. 3): multi-head LSA with one head.

  f = [E + (1/C) W_P W_V E W_M Eᵀ W_Kᵀ W_Q E]_(-1,-1),  y_q = g·x_q + β fixed
  """

  def __init__(
    self,
    num_features: int,
    initial_guess: InitialGuess = 0.0,
    initial_bias: InitialBias = 0.0,
    init_scale: InitScale = 0.1,
    *,
    rngs: nnx.Rngs,
  ):
    """Takes the arguments of MultiHeadLSA except `num_heads`."""
    super().__init__(
      num_features, 1, initial_guess, initial_bias, init_scale, rngs=rngs
    )
