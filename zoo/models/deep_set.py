"""Deep sets: a network applied to the mean of an embedding of each example."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, ArrayLike, Float

from zoo.core.errors import check_count
from zoo.core.registry import register_model
from zoo.mixers.mixer import widen
from zoo.models.mlp import GELULayers
from zoo.models.token_model import MAX_LAYERS, TokenModel


@register_model('deep_set')
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
    num_layers: int = 2,
    width: int = 64,
    guess: str = 'zero',
    guess_weights: ArrayLike | Sequence[float] = 0.0,
    guess_bias: float = 0.0,
    head: str = 'point',
    edges: ArrayLike | Sequence[float] | None = None,
    *,
    rngs: nnx.Rngs,
  ):
    """
    Args:
      num_features: d ≥ 1.
      num_outputs: numbers that a prediction has, k ≥ 1.
      num_layers: layers of each network, from 1 to 1000.
      width: entries of each hidden vector, ≥ 1.
      guess: the initial guess of each label, one of GUESSES.
      guess_weights: g of the guess 'fixed', g·x + β; a number or `[d]`.
      guess_bias: β of that guess, in the units of the labels.
      head: what the readout says of a label that is a number, one of HEADS of
        zoo/models/heads.py.
      edges: the edges of the bars of the head 'bars', increasing, `[n + 1]`; in a run
        they are `zoo.models.quantile_edges(task)`.
      rngs: the keys of the initial weights.

    Raises UserError for an argument that is out of its range.
    """
    check_count('num_layers', num_layers, maximum=MAX_LAYERS)
    check_count('width', width, maximum=2**20)  # XLA aborts for sizes beyond 2⁶³
    # A shifted token has the features of an example and the label of the one before it.
    super().__init__(
      num_features,
      num_outputs,
      'shifted',
      guess,
      guess_weights,
      guess_bias,
      head=head,
      edges=edges,
      rngs=rngs,
    )
    d, k = num_features, num_outputs
    self.phi = GELULayers(d + k, width, num_layers, rngs=rngs)
    self.rho = GELULayers(width + d + k, width, num_layers, rngs=rngs)
    self.read_out = nnx.Linear(width, self.num_reads, rngs=rngs)

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
