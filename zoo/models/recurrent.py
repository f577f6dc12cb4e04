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
  """Base of recurrent networks: layers of a cell and a linear readout.

  Each layer reads the outputs of the layer below it. The states start at 0.

  The *carry* of a cell is its state between two tokens. It is one array, or a tuple of
  arrays, each `[b, width]`. The last array is the output, which the next layer reads.
  The readout reads that of the last layer. A subclass defines three things:

  - `num_carries` is the number of arrays of the carry: 1 for h of a GRU, and 2 for
    (c, h) of an LSTM.
  - `cell(inputs, rngs)` makes the cell of one layer, which reads `[b, inputs]` and has
    `self.width` units. The cell is any module that is called as `cell(carry, token)`
    and returns the new carry and an output, as the cells of Flax do. Only the carry is
    used. The new carry has the shapes and types of the old one.
  - `start(zeros)` returns the carry before the first token, made from an array of zeros
    `[b, width]`.

  To change the cell alone, subclass `LSTM` or `GRU` and override `cell`. The
  constructor calls `cell` once for each layer. So an attribute that your `cell` reads,
  other than `width`, must be set before `super().__init__` is called.

  Args:
    num_features: Number d of features of an example, ≥ 1.
    num_outputs: Number k of outputs of a prediction, ≥ 1. The default, 1, is for labels
      that are numbers. Several outputs are the logits of classes.
    num_layers: Number of layers, from 1 to 1000; 2 by default.
    width: Number of entries of each hidden state, from 1 to 2²⁰; 64 by default.
    tokens: How a prompt becomes tokens: 'shifted' (the default), 'interleaved' or
      'joint'; `zoo.models.tokens.LAYOUTS` shows the tokens of each.
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
    >>> class Average(nnx.Module):  # a cell: a moving average of what it reads
    ...   def __init__(self, inputs, width, rngs):
    ...     self.read = nnx.Linear(inputs, width, rngs=rngs)
    ...   def __call__(self, carry, token):
    ...     carry = 0.9 * carry + 0.1 * self.read(token)
    ...     return carry, carry
    >>> class Averages(zoo.models.GRU):  # has one array in its carry, which starts at 0
    ...   def cell(self, inputs, rngs):
    ...     return Average(inputs, self.width, rngs)
    >>> task = zoo.create_task('linear_regression', num_features=2, context_length=4)
    >>> model = Averages(2, width=8, rngs=nnx.Rngs(0))
    >>> model.predictions(task.sample(jax.random.key(0), 3)).shape
    (3, 5)
  """

  roles = {'read_out': 'embedding'}
  # The number of arrays of a cell's carry, of which the last is the output.
  num_carries: int

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
    check_count('num_layers', num_layers, maximum=MAX_LAYERS)
    check_count('width', width, maximum=2**20)  # XLA aborts for sizes beyond 2⁶³.
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
    # The next layer reads the last array of a carry through its tap. The cell reads its
    # own carry without a tap.
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
    """Returns a new cell for one layer with this many inputs."""

  @abc.abstractmethod
  def start(self, zeros: Float[Array, 'b w']) -> Array | tuple[Array, Array]:
    """Returns the carry of the cell before the first token, from zeros."""

  def body(self, tokens: Float[Array, 'b n m'], at: slice) -> Float[Array, 'b t k']:
    """Returns the outputs at some tokens, from the states of the last layer."""
    states = self.carries(widen(tokens))[-1][-1]
    return self.read_out(states[:, at].astype(tokens.dtype))

  def carries(self, tokens: Float[Array, 'b n m']) -> list[list[Float[Array, 'b n w']]]:
    """Returns the carry of each layer after each token.

    Args:
      tokens: The tokens of prompts, `[b, n, m]`.

    Returns:
      For each layer a list of arrays `[b, n, w]`, of which the last is the output.
    """
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
  """A long short-term memory network (LSTM).

    i, f, o = σ(W z_t + U h_{t−1} + b)       each with its own weights
    g = tanh(W z_t + U h_{t−1} + b)
    c_t = f ∘ c_{t−1} + i ∘ g
    h_t = o ∘ tanh(c_t)

  z are the tokens, or the outputs h of the layer below. c and h start at 0. A linear
  map of the last layer's h_t gives the outputs. The cell is
  `flax.nnx.OptimizedLSTMCell`.

  Args:
    num_features: Number d of features of an example, ≥ 1.
    num_outputs: Number k of outputs of a prediction, ≥ 1. The default, 1, is for labels
      that are numbers. Several outputs are the logits of classes.
    num_layers: Number of layers, from 1 to 1000; 2 by default.
    width: Number of entries of each hidden state, from 1 to 2²⁰; 64 by default.
    tokens: How a prompt becomes tokens: 'shifted' (the default), 'interleaved' or
      'joint'; `zoo.models.tokens.LAYOUTS` shows the tokens of each.
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
    >>> model = zoo.models.LSTM(2, num_layers=1, width=8, rngs=nnx.Rngs(0))
    >>> print(model.predictions(task.sample(jax.random.key(0), 1)).round(2))
    [[-0.22 -0.03 -0.22 -0.45 -0.05]]

  References:
    Hochreiter & Schmidhuber, Neural Computation, 1997; with the forget gate of Gers et
    al., Neural Computation, 2000.
  """

  num_carries = 2  # The carry has c and h.

  def cell(self, inputs: int, rngs: nnx.Rngs) -> nnx.RNNCellBase:
    """Returns a new cell for one layer with this many inputs."""
    return nnx.OptimizedLSTMCell(inputs, self.width, rngs=rngs)

  def start(self, zeros: Float[Array, 'b w']) -> tuple[Array, Array]:
    """Returns c and h before the first token."""
    return zeros, zeros


@register_model('gru')
class GRU(Recurrent):
  """A network of gated recurrent units (GRU).

    r, u = σ(W z_t + b + U h_{t−1})          each with its own weights
    n = tanh(W z_t + b + r ∘ U h_{t−1})
    h_t = (1 − u) ∘ n + u ∘ h_{t−1}

  z are the tokens, or the outputs h of the layer below. h starts at 0. A linear map of
  the last layer's h_t gives the outputs. The cell is `flax.nnx.GRUCell`.

  Args:
    num_features: Number d of features of an example, ≥ 1.
    num_outputs: Number k of outputs of a prediction, ≥ 1. The default, 1, is for labels
      that are numbers. Several outputs are the logits of classes.
    num_layers: Number of layers, from 1 to 1000; 2 by default.
    width: Number of entries of each hidden state, from 1 to 2²⁰; 64 by default.
    tokens: How a prompt becomes tokens: 'shifted' (the default), 'interleaved' or
      'joint'; `zoo.models.tokens.LAYOUTS` shows the tokens of each.
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
    >>> model = zoo.models.GRU(2, num_layers=1, width=8, rngs=nnx.Rngs(0))
    >>> print(np.round(model.predictions(task.sample(jax.random.key(0), 1)), 2))
    [[ 0.01  0.11  0.21  0.   -0.2 ]]

  References:
    Cho et al., arXiv 1406.1078; Chung et al., arXiv 1412.3555.
  """

  num_carries = 1

  def cell(self, inputs: int, rngs: nnx.Rngs) -> nnx.RNNCellBase:
    """Returns a new cell for one layer with this many inputs."""
    return nnx.GRUCell(inputs, self.width, rngs=rngs)

  def start(self, zeros: Float[Array, 'b w']) -> Array:
    """Returns h before the first token."""
    return zeros
