"""Transformers: layers of a mixer and a feed-forward network, looped or not."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, ArrayLike, Float

from zoo.core.errors import (
  UserError,
  check_count,
  check_name,
  check_number,
  check_truth,
)
from zoo.core.prompt import Prompt
from zoo.core.registry import register_model
from zoo.core.taps import Tap
from zoo.mixers.mixer import Init, Linear, Slot
from zoo.models.layers import (
  Layer,
  MixerLike,
  NormLike,
  make_mixers,
  make_norm,
  norm_tap,
  normed,
)
from zoo.models.read_in import make_read_in
from zoo.models.token_model import MAX_LAYERS, TokenModel
from zoo.models.tokens import at_examples, num_tokens

POSITIONS = 'none', 'learned', 'rotary'
MAX_LOOPS = 1000  # Python traces the trained loops one by one.


def _check_order(tokens: str, causal: bool) -> None:
  """Raises UserError if no token sees a label because the query's token holds it."""
  if tokens == 'shifted' and not causal:
    raise UserError(
      "causal is False and tokens is 'shifted'; the last token, which no other token "
      "sees then, holds the label y_C beside the query: use tokens = 'joint', where "
      'each label is beside its own features'
    )


def _trained_loops(num_loops: int, num_trained_loops: int | None) -> int:
  """Returns the number of trained loops, by default all, or raises UserError."""
  check_count('num_loops', num_loops, maximum=MAX_LOOPS)
  if num_trained_loops is None:
    return num_loops
  trained = check_count('num_trained_loops', num_trained_loops)
  if trained > num_loops:
    raise UserError(
      f'num_trained_loops is {trained}; it must be ≤ num_loops, which is {num_loops}'
    )
  return trained


def _positions(
  shape: tuple[int, int], init_scale: float | None, rngs: nnx.Rngs
) -> nnx.Param:
  """Returns trained positions from N(0, init_scale²), or N(0, 0.02²) if that is None.

  0.02 is the scale of Hugging Face's code of GPT-2. OpenAI's code has 0.01.
  """
  scale = 0.02 if init_scale is None else init_scale
  return nnx.Param(scale * jax.random.normal(rngs.params(), shape))


@register_model('transformer')
class Transformer(TokenModel):
  """A transformer with any mixer: layers of a mixer and a feed-forward network.

    z ← z + mixer(norm(z))
    z ← z + feed_forward(norm(z))

  The norm comes first, as in GPT-2. A last norm and a linear readout give the outputs.
  The layers may be looped, with the same weights in each loop. With the embedded prompt
  E,

    Y_0 = 0,   Y_{i+1} = layers(Y_i + E)   for i = 0, …, num_loops − 1

  Kernels start from N(0, init_scale²), or from N(0, 1/inputs) if that is None. Kernels
  whose outputs are added to the tokens are divided by √(2 · num_layers), as in GPT-2.
  Learned positions start from N(0, init_scale²), or from N(0, 0.02²) if that is None,
  as in Hugging Face's code of GPT-2 (OpenAI's code has 0.01²). The argument
  `init_scale` names the kernels that do not depend on it.

  Args:
    num_features: Number d of features of an example, ≥ 1.
    context_length: Largest number C of examples in a prompt, ≥ 0. Learned positions are
      made for it.
    num_outputs: Number k of outputs of a prediction, ≥ 1. The default, 1, is for labels
      that are numbers. Several outputs are the logits of classes.
    num_layers: Number of layers, from 1 to 1000; 3 by default.
    num_heads: Number of heads of a mixer, a divisor of the width if the mixer has
      heads; 2 by default.
    width: Number of entries of each token between layers, from 1 (with the norm
      'layer' from 2) to 2²⁰; 64 by default.
    mixer: A name of `zoo.list_mixers()`, a class of mixers, or a function that makes
      one; 'softmax' by default. Several mixers, in a list or as names joined by commas,
      alternate from layer to layer. A config takes names.
    mixer_options: Options of the mixers by name. Each goes to every mixer that has an
      argument of this name.
    tokens: How a prompt becomes tokens: 'interleaved' (the default), 'shifted' or
      'joint'; `zoo.models.tokens.LAYOUTS` shows the tokens of each.
    guess: Initial guess of each label, made before any example is seen: one of 'zero'
      (the default), 'fixed', 'linear', 'network', 'residual' and 'residual_network',
      which `zoo.models.initial_guess.GUESSES` explains.
    guess_weights: Slope g of the guess 'fixed', g·x + β: a number or `[d]`; 0 by
      default.
    guess_bias: Offset β of that guess, in the units of the labels; 0 by default.
    positions: How a token knows its place: 'learned' (the default) adds a trained
      vector to it, 'rotary' rotates queries and keys in the mixers, and 'none' adds
      nothing.
    causal: Whether a token sees only itself and the tokens before it; True by default.
      If False, every token sees the context, which is all tokens but the query, and
      with the mixer 'softmax' also itself. The layout 'shifted' needs True.
    feed_forward: The network after each mixer: 'gelu' (the default), 'swiglu', 'linear'
      or 'none'.
    hidden_features: Number of hidden entries of that network, ≥ 1; None, the default,
      means 4 · width.
    norm: The norm before each mixer, each network and the readout: 'layer' (the
      default), 'rms', 'none', or a function `(width, rngs) -> module`.
    num_loops: Number of times that the layers are applied, from 1 to 1000; 1 by
      default.
    num_trained_loops: Number of last loops after each of which the loss is taken, from
      1 to `num_loops`; None, the default, means all. No gradient goes through the
      others.
    init_scale: Standard deviation of the initial kernels and learned positions, ≥ 0,
      0.02 in GPT-2; None, the default, means 1/√inputs for each kernel and 0.02 for
      positions. It has no effect on short convolutions, on the maps to the decays of
      `mamba2`, `log_linear`, `gated_delta`, `gated_delta_product`, `comba`, `kda` and
      `gdn2`, on the filters of `hyena` and their network, on the inner weights of
      `ttt`, and on the network of the guess.
    remat: Whether the backward pass computes the layers again, to save memory; False by
      default.
    read_in: How tokens become vectors of the width: 'flat' (the default) is a linear
      layer, 'convolutional' reads the features as a square grey image
      (zoo/models/read_in.py).
    head: What the outputs say of a label that is a number: 'point' (the default) is the
      prediction, 'gaussian' the mean and the log variance of a normal distribution, and
      'bars' the logits of a histogram.
    edges: Edges of the bars of the head 'bars', increasing, `[n + 1]` with n ≥ 2, such
      as `zoo.models.quantile_edges(task)`; None, the default, for other heads.
    rngs: Random keys of the initial weights.

  Raises:
    UserError: If an argument is out of its range, or if arguments contradict one
      another: heads that do not divide the width, an option that no mixer has,
      `causal=False` or `positions='rotary'` with a mixer that does not support it,
      `causal=False` with the tokens 'shifted', a mixer that is not causal in a causal
      model that predicts all examples, more trained loops than loops, or a head that
      does not fit the outputs or the edges.

  Example:
    >>> task = zoo.create_task('linear_regression', num_features=2, context_length=4)
    >>> model = zoo.models.Transformer(
    ...   num_features=2, context_length=4, num_layers=1, width=8, rngs=nnx.Rngs(0)
    ... )
    >>> print(model(task.sample(jax.random.key(0), 3)).round(2))  # not trained
    [ 0.28 -0.29 -0.45]

  References:
    The norms are placed as in GPT-2 (Radford et al., 2019).
    The loops are those of Yang et al., arXiv 2311.12424.
  """

  roles = {'read_in': 'embedding', 'read_out': 'embedding', 'positions': 'embedding'}
  # A prediction may skip taps, except in a copy of the model whose taps are used.
  shortcuts = True

  def __init__(
    self,
    num_features: int,
    context_length: int,
    num_outputs: int = 1,
    num_layers: int = 3,
    num_heads: int = 2,
    width: int = 64,
    mixer: MixerLike | Sequence[MixerLike] = 'softmax',
    mixer_options: Mapping[str, object] | None = None,
    tokens: str = 'interleaved',
    guess: str = 'zero',
    guess_weights: ArrayLike | Sequence[float] = 0.0,
    guess_bias: float = 0.0,
    positions: str = 'learned',
    causal: bool = True,
    feed_forward: str = 'gelu',
    hidden_features: int | None = None,
    norm: NormLike = 'layer',
    num_loops: int = 1,
    num_trained_loops: int | None = None,
    init_scale: float | None = None,
    remat: bool = False,
    read_in: str = 'flat',
    head: str = 'point',
    edges: ArrayLike | Sequence[float] | None = None,
    *,
    rngs: nnx.Rngs,
  ):
    check_count('num_layers', num_layers, maximum=MAX_LAYERS)
    check_count('num_heads', num_heads)
    check_count('width', width, maximum=2**20)  # XLA aborts for sizes beyond 2⁶³.
    check_name('positions', positions, POSITIONS)
    if init_scale is not None:
      check_number('init_scale', init_scale, minimum=0.0, maximum=1e30)
    super().__init__(
      num_features,
      num_outputs,
      tokens,
      guess,
      guess_weights,
      guess_bias,
      causal,
      head,
      edges,
      rngs=rngs,
    )
    _check_order(tokens, causal)
    self.context_length = check_count('context_length', context_length, minimum=0)
    self.remat = check_truth('remat', remat)
    self.num_trained_loops = _trained_loops(num_loops, num_trained_loops)
    self.num_loops = num_loops
    init = Init(init_scale, 1 / math.sqrt(2 * num_layers))
    read = functools.partial(Linear, kernel_init=init.kernel(), rngs=rngs)
    self.read_in = make_read_in(
      read_in, num_features, self.token_width, tokens, width, init, rngs=rngs
    )
    shape = num_tokens(tokens, context_length), width
    has_positions = positions == 'learned'
    self.positions = _positions(shape, init_scale, rngs) if has_positions else None
    slot = Slot(width, num_heads, init)
    settings = {'causal': causal, 'rotary': positions == 'rotary', 'rngs': rngs}
    mixers = make_mixers(mixer, mixer_options, num_layers, slot, settings)
    self.layers = nnx.List(
      Layer(width, layer_mixer, feed_forward, hidden_features, norm, init, rngs=rngs)
      for layer_mixer in mixers
    )
    for layer in self.layers:
      if causal and tokens != 'joint' and not layer.mixer.causal:
        raise UserError(
          f'causal is True; the mixer {type(layer.mixer).__name__} sets self.causal to '
          f'False, so that with the tokens {tokens!r} predictions of examples would '
          'see later ones'
        )
    self.norm = make_norm(norm, width, rngs)
    self.read_out = read(width, self.num_reads)
    self.final_norm_tap = norm_tap(self.norm, 'final.norm')
    self.final_tap = Tap('final.stream', 'b n w', kind='stream')
    self.read_out_tap = Tap('read_out', 'b n k', kind='readout')

  def body(self, tokens: Float[Array, 'b n m'], at: slice) -> Float[Array, 'l b t k']:
    """Returns the outputs after each trained loop.

    Gradients stop before the first trained loop.

    Args:
      tokens: The tokens of prompts, `[b, n, m]`.
      at: The tokens whose outputs are returned, t of them.

    Returns:
      The outputs, `[num_trained_loops, b, t, num_reads]`.
    """
    states = self._loops(self.embedded(tokens), at)
    return jnp.stack([self._read(tokens) for tokens in states])

  def layer_tokens(self, prompt: Prompt) -> list[Float[Array, 'b n w']]:
    """Returns the embedded tokens, then the tokens after each layer of each loop.

    Args:
      prompt: Prompts `[b]` with d features.

    Returns:
      1 + num_loops · num_layers arrays `[b, n, w]`.

    Raises:
      UserError: If the prompts have another number of features or outputs than the
        model, or more examples than the learned positions have places for.
    """
    embedded = self.embedded(self.embed(prompt))
    tokens = jnp.zeros_like(embedded)
    states = [embedded]
    for _ in range(self.num_loops):
      tokens += embedded
      for layer in self.layers:
        tokens = layer(tokens)
        states.append(tokens)
    return states

  def read(
    self, tokens: Float[Array, 'b n w'], prompt: Prompt
  ) -> Float[Array, 'b t *k']:
    """Returns the predictions of the readout from the tokens of any layer.

    Args:
      tokens: Tokens between layers, `[b, n, w]`, such as those of `layer_tokens`.
      prompt: The prompts to which they belong.

    Returns:
      A prediction for each example and the query, `[b, t]`, or logits `[b, t, k]`.
    """
    outputs = self._read(tokens[:, at_examples(self.layout)])
    return self.finish(outputs[None], prompt)[0]

  def embedded(self, tokens: Float[Array, 'b n m']) -> Float[Array, 'b n w']:
    """Returns the tokens as layers read them, with their positions.

    Args:
      tokens: The tokens of prompts, `[b, n, m]`.

    Raises:
      UserError: If there are more tokens than learned positions.
    """
    embedded = self.read_in(tokens)
    if self.positions is None:
      return embedded
    n = tokens.shape[1]
    self.check_length(n, self.context_length)
    return embedded + self.positions[...][None, :n]

  def _loops(
    self, embedded: Float[Array, 'b n w'], at: slice
  ) -> list[Float[Array, 'b t w']]:
    """Returns the tokens `at` after each of the trained loops.

    With `shortcuts` the untrained loops are one compiled loop, rematerialised layers
    are compiled separately, and the last layer of the last loop is computed at `at`
    alone.
    """
    tokens = jnp.zeros_like(embedded)
    untrained = self.num_loops - self.num_trained_loops
    if untrained and self.shortcuts:
      tokens = jax.lax.fori_loop(
        0, untrained, lambda _, z: self._layers(z + embedded), tokens
      )
      tokens = jax.lax.stop_gradient(tokens)
    elif untrained:  # Probes take gradients through these loops, too.
      for _ in range(untrained):
        tokens = self._layers(tokens + embedded)
    remat, trained = self.remat and self.shortcuts, []
    for _ in range(self.num_trained_loops - 1):
      tokens = self.final_tap(self._layers(tokens + embedded, remat=remat))
      trained.append(tokens[:, at])
    if self.shortcuts:
      return [*trained, self._layers(tokens + embedded, at, remat)]
    return [*trained, self.final_tap(self._layers(tokens + embedded))[:, at]]

  def _layers(
    self,
    tokens: Float[Array, 'b n w'],
    at: slice | None = None,
    remat: bool = False,
  ) -> Float[Array, 'b t w']:
    """Returns the tokens after all layers, at `at` or, if that is None, all of them."""
    *first, last = self.layers
    for layer in first:
      tokens = _apply(layer, tokens, None, remat)
    return _apply(last, tokens, at, remat)

  def _read(self, tokens: Float[Array, 'b n w']) -> Float[Array, 'b n k']:
    tap = None if self.shortcuts else self.final_norm_tap
    return self.read_out_tap(self.read_out(normed(self.norm, tokens, tap)))


def _apply(
  layer: Layer, tokens: Float[Array, 'b n w'], at: slice | None, remat: bool
) -> Float[Array, 'b t w']:
  """Applies a layer, which the backward pass computes again with `remat`."""

  def apply(layer: Layer, tokens: Array) -> Array:
    return layer(tokens, at)

  return (nnx.remat(apply) if remat else apply)(layer, tokens)
