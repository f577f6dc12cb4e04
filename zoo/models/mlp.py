"""Networks for a fixed number of tokens: an MLP of all of them, and MLP-Mixer."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, ArrayLike, Float

from zoo.core.errors import check_count
from zoo.core.registry import register_model
from zoo.mixers.mixer import Linear, project
from zoo.models.layers import FeedForward, check_normed
from zoo.models.token_model import MAX_LAYERS, TokenModel
from zoo.models.tokens import num_tokens

_norm = functools.partial(nnx.LayerNorm, epsilon=1e-5)


class GELULayers(nnx.Module):
  """Layers z ← gelu(W z + b)."""

  def __init__(self, inputs: int, width: int, num_layers: int, *, rngs: nnx.Rngs):
    sizes = [inputs] + [width] * (num_layers - 1)
    self.layers = nnx.List([project(size, width, rngs=rngs) for size in sizes])

  def __call__(self, z: Float[Array, '*n i']) -> Float[Array, '*n w']:
    """Returns the last layer, `[*n, w]`, of inputs `[*n, i]`."""
    for layer in self.layers:
      z = jax.nn.gelu(layer(z))
    return z


class _FixedLength(TokenModel):
  """Base of models of joint tokens with places for `context_length` examples."""

  context_length: int

  @property
  def places(self) -> int:
    """The number of tokens that the model takes, the query's included."""
    return num_tokens('joint', self.context_length)

  def padded(self, tokens: Float[Array, 'b n m']) -> Float[Array, 'b p m']:
    """Pads shorter prompts with tokens of zeros at the start.

    Args:
      tokens: The tokens of prompts, `[b, n, m]`.

    Returns:
      The tokens of all places, `[b, p, m]`.

    Raises:
      UserError: If there are more tokens than places.
    """
    self.check_length(tokens.shape[1], self.context_length)
    empty = self.places - tokens.shape[1]
    return jnp.pad(tokens, ((0, 0), (empty, 0), (0, 0)))


@register_model('mlp')
class MLP(_FixedLength):
  """A multilayer perceptron of the concatenated tokens of a prompt.

  The input is `[x_1; y_1; …; x_C; y_C; x_q; guess]`. It goes through `num_layers`
  layers gelu(W z + b) and a linear layer. Shorter prompts are padded with tokens of
  zeros at the start. The model predicts the query alone.

  Args:
    num_features: Number d of features of an example, ≥ 1.
    context_length: Largest number C of examples in a prompt, ≥ 0.
    num_outputs: Number k of outputs of a prediction, ≥ 1. The default, 1, is for labels
      that are numbers. Several outputs are the logits of classes.
    num_layers: Number of layers, from 1 to 1000; 2 by default.
    width: Number of entries of each hidden vector, from 1 to 2²⁰; 256 by default.
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
    >>> model = zoo.models.MLP(2, context_length=4, width=8, rngs=nnx.Rngs(0))
    >>> print(np.round(model(task.sample(jax.random.key(0), 3)), 2))  # not trained
    [-0.36 -0.13 -0.1 ]
  """

  roles = {'read_out': 'embedding'}

  def __init__(
    self,
    num_features: int,
    context_length: int,
    num_outputs: int = 1,
    num_layers: int = 2,
    width: int = 256,
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
    super().__init__(
      num_features,
      num_outputs,
      'joint',
      guess,
      guess_weights,
      guess_bias,
      head=head,
      edges=edges,
      rngs=rngs,
    )
    self.context_length = check_count('context_length', context_length, minimum=0)
    inputs = self.places * self.token_width
    self.network = GELULayers(inputs, width, num_layers, rngs=rngs)
    self.read_out = Linear(width, self.num_reads, rngs=rngs)

  def body(self, tokens: Float[Array, 'b n m'], at: slice) -> Float[Array, 'b 1 k']:
    """Returns the outputs for the query, from all tokens side by side."""
    side_by_side = self.padded(tokens).reshape(len(tokens), -1)
    return self.read_out(self.network(side_by_side))[:, None]


@register_model('mlp_mixer')
class MLPMixer(_FixedLength):
  """MLP-Mixer on joint tokens: networks over the tokens and over the channels.

    Z ← Z + W_2 gelu(W_1 norm(Z))     over the tokens of a channel
    Z ← Z + gelu(norm(Z) W_3) W_4     over the channels of a token

  The linear maps have biases, and the norm is a layer norm. A linear map of the norm of
  the query's token gives the outputs. As in the models of the paper, the hidden layers
  have width / 2 and 4 · width features. Shorter prompts are padded with tokens of zeros
  at the start. The model predicts the query alone.

  Args:
    num_features: Number d of features of an example, ≥ 1.
    context_length: Largest number C of examples in a prompt, ≥ 0.
    num_outputs: Number k of outputs of a prediction, ≥ 1. The default, 1, is for labels
      that are numbers. Several outputs are the logits of classes.
    num_layers: Number of layers, from 1 to 1000; 2 by default.
    width: Number of entries of each token between layers, from 2 to 2²⁰; 64 by default.
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
    >>> model = zoo.models.MLPMixer(2, 4, num_layers=1, width=8, rngs=nnx.Rngs(0))
    >>> print(model(task.sample(jax.random.key(0), 3)).round(2))  # not trained
    [-0.08  0.02  0.17]

  References:
    Tolstikhin et al., arXiv 2105.01601, eq. 1.
  """

  roles = {'read_in': 'embedding', 'read_out': 'embedding'}

  def __init__(
    self,
    num_features: int,
    context_length: int,
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
    super().__init__(
      num_features,
      num_outputs,
      'joint',
      guess,
      guess_weights,
      guess_bias,
      head=head,
      edges=edges,
      rngs=rngs,
    )
    self.context_length = check_count('context_length', context_length, minimum=0)
    check_normed(width)
    self.read_in = Linear(self.token_width, width, rngs=rngs)
    layers = [_MixerLayer(self.places, width, rngs=rngs) for _ in range(num_layers)]
    self.layers = nnx.List(layers)
    self.norm = _norm(width, rngs=rngs)
    self.read_out = Linear(width, self.num_reads, rngs=rngs)

  def body(self, tokens: Float[Array, 'b n m'], at: slice) -> Float[Array, 'b 1 k']:
    """Returns the outputs for the query, from its token after the last layer."""
    tokens = self.read_in(self.padded(tokens))
    for layer in self.layers:
      tokens = layer(tokens)
    return self.read_out(self.norm(tokens[:, -1:]))


class _MixerLayer(nnx.Module):
  """A network over the tokens and one over the channels, each added to its input."""

  def __init__(self, places: int, width: int, *, rngs: nnx.Rngs):
    self.norm_1, self.norm_2 = (_norm(width, rngs=rngs) for _ in range(2))
    self.over_tokens = FeedForward(places, -(-width // 2), axes='b w m', rngs=rngs)
    self.over_channels = FeedForward(width, rngs=rngs)

  def __call__(self, tokens: Float[Array, 'b p w']) -> Float[Array, 'b p w']:
    channels = jnp.swapaxes(self.norm_1(tokens), 1, 2)
    tokens += jnp.swapaxes(self.over_tokens(channels), 1, 2)
    return tokens + self.over_channels(self.norm_2(tokens))
