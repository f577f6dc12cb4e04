"""Deep sets: a network applied to the mean of an embedding of each example."""

from __future__ import annotations

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from zoo.core.registry import models
from zoo.mixers.mixer import widen
from zoo.models.arguments import NumLayers, Width
from zoo.models.initial_guess import Guess, GuessBias, GuessWeights
from zoo.models.mlp import GELULayers
from zoo.models.token_model import TokenModel


@models.register('deep_set')
class DeepSet(TokenModel):
  """Deep set (Zaheer et al., arXiv 1703.06114, Theorem 2; a mean replaces the sum).

  ŷ = ρ(mean_i φ([x_i; y_i]), x_q, guess)   (in context: Ahuja & Lopez-Paz, 2305.16704)

  φ and ρ each have `num_layers` layers gelu(W z + b), and ρ a final linear layer. The
  mean over no examples is 0.
  """

  order_invariant = True
  roles = {'read_out': 'embedding'}

  def __init__(
    self,
    num_features: int,
    num_outputs: int = 1,
    num_layers: NumLayers = 2,
    width: Width = 64,
    guess: Guess = 'zero',
    guess_weights: GuessWeights = 0.0,
    guess_bias: GuessBias = 0.0,
    *,
    rngs: nnx.Rngs,
  ):
    # A shifted token has the features of an example and the label of the one before it.
    super().__init__(
      num_features, num_outputs, 'shifted', guess, guess_weights, guess_bias, rngs=rngs
    )
    d, k = num_features, num_outputs
    self.phi = GELULayers(d + k, width, num_layers, rngs=rngs)
    self.rho = GELULayers(width + d + k, width, num_layers, rngs=rngs)
    self.read_out = nnx.Linear(width, k, rngs=rngs)

  def body(self, tokens: Float[Array, 'b n m'], at: slice) -> Float[Array, 'b t k']:
    x, y_before, guess = jnp.split(
      tokens, (self.num_features, self.num_features + self.num_outputs), axis=-1
    )
    examples = jnp.concatenate([x[:, :-1], y_before[:, 1:]], axis=-1)
    sums = jnp.cumsum(widen(self.phi(examples)), axis=1)
    counts = jnp.arange(1, x.shape[1], dtype=sums.dtype)
    means = (sums / counts[None, :, None]).astype(x.dtype)
    means = jnp.pad(means, ((0, 0), (1, 0), (0, 0)))
    asked = jnp.concatenate([means, x, guess], axis=-1)
    return self.read_out(self.rho(asked[:, at]))
