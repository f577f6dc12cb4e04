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
from zoo.models.layers import FeedForward
from zoo.models.token_model import MAX_LAYERS, TokenModel
from zoo.models.tokens import num_tokens

_norm = functools.partial(nnx.LayerNorm, epsilon=1e-5)


class GELULayers(nnx.Module):
  """Layers `z ← gelu(W z + b)`."""

  def __init__(self, inputs: int, width: int, num_layers: int, *, rngs: nnx.Rngs):
    sizes = [inputs] + [width] * (num_layers - 1)
    self.layers = nnx.List([project(size, width, rngs=rngs) for size in sizes])

  def __call__(self, z: Float[Array, '*n i']) -> Float[Array, '*n w']:
    for layer in self.layers:
      z = jax.nn.gelu(layer(z))
    return z


class _FixedLength(TokenModel):
  """A model of joint tokens with a place for each of `context_length` examples."""

  context_length: int

  @property
  def places(self) -> int:
    """The number of tokens that the model takes, the query's included."""
    return num_tokens('joint', self.context_length)

  def padded(self, tokens: Float[Array, 'b n m']) -> Float[Array, 'b p m']:
    """Pads shorter prompts with tokens of zeros at the start.

    Raises UserError for more tokens than there are places.
    """
    self.check_length(tokens.shape[1], self.context_length)
    empty = self.places - tokens.shape[1]
    return jnp.pad(tokens, ((0, 0), (empty, 0), (0, 0)))


@register_model('mlp')
class MLP(_FixedLength):
  """A network of the concatenated tokens `[x_1; y_1; …; x_C; y_C; x_q; guess]`.

  `num_layers` layers gelu(W z + b), then a linear one. Shorter prompts are padded with
  tokens of zeros at the start.
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
    """
    Args:
      num_features: d ≥ 1.
      context_length: the most examples of a prompt, C ≥ 0.
      num_outputs: numbers that a prediction has, k ≥ 1.
      num_layers: from 1 to 1000.
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
    side_by_side = self.padded(tokens).reshape(len(tokens), -1)
    return self.read_out(self.network(side_by_side))[:, None]


@register_model('mlp_mixer')
class MLPMixer(_FixedLength):
  """MLP-Mixer (Tolstikhin et al., arXiv 2105.01601, eq. 1) on joint tokens.

  Z ← Z + W_2 gelu(W_1 norm(Z)) over the tokens of a channel,
  Z ← Z + gelu(norm(Z) W_3) W_4 over the channels of a token, with biases,

  and a linear readout of the norm of the query's token. As in the paper's models, the
  hidden layers have width / 2 and 4 · width features. Shorter prompts are padded with
  tokens of zeros at the start.
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
    """
    Args:
      num_features: d ≥ 1.
      context_length: the most examples of a prompt, C ≥ 0.
      num_outputs: numbers that a prediction has, k ≥ 1.
      num_layers: from 1 to 1000.
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
    self.read_in = Linear(self.token_width, width, rngs=rngs)
    layers = [_MixerLayer(self.places, width, rngs=rngs) for _ in range(num_layers)]
    self.layers = nnx.List(layers)
    self.norm = _norm(width, rngs=rngs)
    self.read_out = Linear(width, self.num_reads, rngs=rngs)

  def body(self, tokens: Float[Array, 'b n m'], at: slice) -> Float[Array, 'b 1 k']:
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
