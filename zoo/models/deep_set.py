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
  """A deep set: a network of the mean of an embedding of the examples.

    ŷ = ρ(mean_i φ([x_i; y_i]), x_q, guess)

  φ and ρ each have `num_layers` layers gelu(W z + b), and ρ has a last linear layer.
  The mean over no examples is 0. The order of the examples has no effect. Theorem 2 of
  Zaheer et al. has the sum over the examples where this model has their mean.

  Args:
    num_features: Number d of features of an example, ≥ 1.
    num_outputs: Number k of outputs of a prediction, ≥ 1. The default, 1, is for labels
      that are numbers. Several outputs are the logits of classes.
    num_layers: Number of layers of each network, from 1 to 1000; 2 by default.
    width: Number of entries of each hidden vector, from 1 to 2²⁰; 64 by default.
    guess: Initial guess of each label, made before any example is seen: one of 'zero'
      (the default), 'fixed', 'linear', 'network', 'residual' and 'residual_network',
      which `zoo.models.initial_guess.GUESSES` explains.
    guess_weights: Slope g of the guess 'fixed', g·x + β: a number or `[d]`; 0 by
      default.
    guess_bias: Offset β of that guess, in the units of the labels; 0 by default.
    head: What the outputs say of a label that is a number: 'point' (the default) is the
      prediction, 'gaussian' the mean and the log variance of a normal distribution, and
      'bars' the logits of a histogram.
    edges: Edges of the bars of the head 'bars', increasing, `[n + 1]` with n ≥ 2, such
      as `zoo.models.quantile_edges(task)`; None, the default, for other heads.
    rngs: Random keys of the initial weights.

  Raises:
    UserError: If an argument is out of its range, if `guess_weights` or `guess_bias` is
      not 0 with a guess other than 'fixed', if `head` is not 'point' with several
      outputs, or if `edges` is missing for the head 'bars' or given for another one.

  Example:
    >>> task = zoo.create_task('linear_regression', num_features=2, context_length=4)
    >>> model = zoo.models.DeepSet(2, num_layers=1, width=8, rngs=nnx.Rngs(0))
    >>> print(model.predictions(task.sample(jax.random.key(0), 1)).round(2))
    [[-0.09 -0.02 -0.11  0.13  0.02]]

  References:
    Zaheer et al., arXiv 1703.06114, Theorem 2.
    In context: Ahuja & Lopez-Paz, arXiv 2305.16704.
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
    check_count('num_layers', num_layers, maximum=MAX_LAYERS)
    check_count('width', width, maximum=2**20)  # XLA aborts for sizes beyond 2⁶³.
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
    """Returns the outputs for some examples, from the running means of φ."""
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
