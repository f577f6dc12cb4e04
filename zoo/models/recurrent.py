"""Recurrent networks, which read one token after another: LSTM and GRU."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, ArrayLike, Float

from zoo.core.errors import check_count
from zoo.core.registry import register_model
from zoo.core.taps import Tap
from zoo.mixers.mixer import Linear, widen, widened
from zoo.models.token_model import MAX_LAYERS, TokenModel


class Recurrent(TokenModel):
  """Layers of a cell, each reading the states of the layer below, and a readout."""

  roles = {'read_out': 'embedding'}
  num_carries: int  # arrays of a cell's carry; the last is the output

  def __init__(
    self,
    num_features: int,
    num_outputs: int = 1,
    num_layers: int = 2,
    width: int = 64,
    tokens: str = 'shifted',
    guess: str = 'zero',
    guess_weights: ArrayLike | Sequence[float] = 0.0,
    guess_bias: float = 0.0,
    head: str = 'point',
    edges: ArrayLike | Sequence[float] | None = None,
    *,
    rngs: nnx.Rngs,
  ):
    """States have `width` entries and start at 0.

    Args:
      num_features: d ≥ 1.
      num_outputs: numbers that a prediction has, k ≥ 1.
      num_layers: from 1 to 1000.
      width: entries of each hidden vector, ≥ 1.
      tokens: how a prompt becomes tokens, one of LAYOUTS.
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
      tokens,
      guess,
      guess_weights,
      guess_bias,
      head=head,
      edges=edges,
      rngs=rngs,
    )
    self.width = width
    inputs = [self.token_width] + [width] * (num_layers - 1)
    self.layers = nnx.List([self.cell(size, rngs) for size in inputs])
    # The next layer reads the last array of a carry; the cell reads its carry itself.
    self.carries_taps = nnx.List(
      Tap(
        f'carries.{i}.{j}',
        'b n w',
        kind='state',
        is_read_only=j + 1 < self.num_carries,
      )
      for i in range(num_layers)
      for j in range(self.num_carries)
    )
    self.read_out = Linear(width, self.num_reads, rngs=rngs)

  @abc.abstractmethod
  def cell(self, inputs: int, rngs: nnx.Rngs) -> nnx.RNNCellBase:
    """A new cell for one layer with this many inputs."""

  @abc.abstractmethod
  def start(self, zeros: Float[Array, 'b w']) -> Array | tuple[Array, Array]:
    """The carry of the cell before the first token, from zeros."""

  def body(self, tokens: Float[Array, 'b n m'], at: slice) -> Float[Array, 'b t k']:
    states = self.carries(widen(tokens))[-1][-1]
    return self.read_out(states[:, at].astype(tokens.dtype))

  def carries(self, tokens: Float[Array, 'b n m']) -> list[list[Float[Array, 'b n w']]]:
    """The carry of each layer after each token, as arrays; the last is the output."""
    start = self.start(jnp.zeros((len(tokens), self.width), tokens.dtype))
    inputs, carries_of_layers = tokens, []
    taps = iter(self.carries_taps)
    for cell in map(widened, self.layers):

      def step(carry: Any, token: Array, cell: Any = cell) -> tuple[Any, Any]:
        carry, _ = cell(carry, token)
        return carry, carry

      _, carries = jax.lax.scan(step, start, jnp.swapaxes(inputs, 0, 1))
      carries = [
        next(taps)(jnp.swapaxes(array, 0, 1)) for array in jax.tree.leaves(carries)
      ]
      inputs = carries[-1]
      carries_of_layers.append(carries)
    return carries_of_layers


@register_model('lstm')
class LSTM(Recurrent):
  """Long short-term memory (Hochreiter & Schmidhuber, 1997; Gers et al., 2000).

  i, f, o = σ(W z_t + U h_{t−1} + b), g = tanh(…), each with its own weights;
  c_t = f ∘ c_{t−1} + i ∘ g, h_t = o ∘ tanh(c_t); flax.nnx.OptimizedLSTMCell.
  """

  num_carries = 2  # c and h

  def cell(self, inputs: int, rngs: nnx.Rngs) -> nnx.RNNCellBase:
    return nnx.OptimizedLSTMCell(inputs, self.width, rngs=rngs)

  def start(self, zeros: Float[Array, 'b w']) -> tuple[Array, Array]:
    return zeros, zeros


@register_model('gru')
class GRU(Recurrent):
  """Gated recurrent unit (Cho et al., arXiv 1406.1078; Chung et al., arXiv 1412.3555).

  r, u = σ(W z_t + b + U h_{t−1}), n = tanh(W z_t + b + r ∘ U h_{t−1}), each with its
  own weights; h_t = (1 − u) ∘ n + u ∘ h_{t−1}; flax.nnx.GRUCell.
  """

  num_carries = 1

  def cell(self, inputs: int, rngs: nnx.Rngs) -> nnx.RNNCellBase:
    return nnx.GRUCell(inputs, self.width, rngs=rngs)

  def start(self, zeros: Float[Array, 'b w']) -> Array:
    return zeros
