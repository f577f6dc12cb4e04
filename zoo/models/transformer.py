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
  normed,
)
from zoo.models.read_in import make_read_in
from zoo.models.token_model import MAX_LAYERS, TokenModel
from zoo.models.tokens import at_examples, num_tokens

POSITIONS = 'none', 'learned', 'rotary'
MAX_LOOPS = 1000  # Python traces those that are trained one by one


def _check_order(tokens: str, causal: bool) -> None:
  """Raises UserError for tokens whose last one must be seen."""
  if tokens == 'shifted' and not causal:
    raise UserError(
      "causal is False and tokens is 'shifted'; the last token, which no other token "
      "sees then, holds the label y_C beside the query: use tokens = 'joint', where "
      'each label is beside its own features'
    )


def _trained_loops(num_loops: int, num_trained_loops: int | None) -> int:
  """The number of trained loops, by default all; raises UserError."""
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
  """Trained positions from N(0, init_scale²), by default 0.02², as in GPT-2."""
  scale = 0.02 if init_scale is None else init_scale
  return nnx.Param(scale * jax.random.normal(rngs.params(), shape))


@register_model('transformer')
class Transformer(TokenModel):
  """Layers `z ← z + mixer(norm(z))`, `z ← z + feed_forward(norm(z))`, then a readout.

  Pre-norm as in GPT-2 (Radford et al., 2019), with any of `zoo.list_mixers()`. The
  layers may be looped (Yang et al., arXiv 2311.12424): `Y_0 = 0`, then `num_loops`
  times `Y_{i+1} = layers(Y_i + E)`, with the embedded prompt E and the same weights.

  Kernels start from N(0, init_scale²), or N(0, 1/inputs) if that is None. Kernels whose
  outputs are added to the tokens are divided by √(2 · num_layers), as in GPT-2.

  Args:
    num_features: d ≥ 1.
    context_length: the most examples of a prompt, C ≥ 0.
    num_outputs: numbers that a prediction has, k ≥ 1.
    num_layers: from 1 to 1000.
    num_heads: a divisor of the width.
    width: entries of each token between layers, ≥ 1.
    mixer: a name of `zoo.list_mixers()`, a class of mixers, or a function that makes
      one; several, in a list or as names joined by commas, alternate from layer to
      layer. A config takes names.
    mixer_options: each goes to every mixer that has an argument of that name.
    tokens: how a prompt becomes tokens, one of LAYOUTS.
    guess: the initial guess of each label, one of GUESSES.
    guess_weights: g of the guess 'fixed', g·x + β; a number or `[d]`.
    guess_bias: β of that guess, in the units of the labels.
    positions: how a token knows its place, one of POSITIONS.
    causal: if False, every token sees all but the last, the query; not for 'shifted'.
    feed_forward: the network after each mixer, one of FEED_FORWARDS.
    hidden_features: its hidden entries, ≥ 1; None: 4 · width.
    norm: before each mixer and network, one of NORMS; or a function
      `(width, rngs) -> module`.
    num_loops: how often the layers are applied, from 1 to 1000.
    num_trained_loops: the last loops, after each of which the loss is taken, ≥ 1;
      None: all.
    init_scale: standard deviation of the initial kernels, ≥ 0; 0.02 in GPT-2.
    remat: whether the backward pass computes the layers again, to save memory.
    read_in: 'flat', a linear layer of each token; or 'convolutional', which reads
      features as a square grey image, see zoo/models/read_in.py.
    head: what the readout says of a label that is a number, one of HEADS of
      zoo/models/heads.py.
    edges: the edges of the bars of the head 'bars', increasing, `[n + 1]`; in a run
      they are `zoo.models.quantile_edges(task)`.
    rngs: the keys of the initial weights.

  The constructor raises UserError for an argument that is out of its range, and for
  arguments that contradict one another.
  """

  roles = {'read_in': 'embedding', 'read_out': 'embedding', 'positions': 'embedding'}
  shortcuts = True  # whether a prediction may skip taps

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
    check_count('width', width, maximum=2**20)  # XLA aborts for sizes beyond 2⁶³
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
    self.norm = make_norm(norm, width, rngs)
    self.read_out = read(width, self.num_reads)
    self.final_norm_tap = Tap('final.norm', 'b n o', kind='norm')
    self.final_tap = Tap('final.stream', 'b n w', kind='stream')
    self.read_out_tap = Tap('read_out', 'b n k', kind='readout')

  def body(self, tokens: Float[Array, 'b n m'], at: slice) -> Float[Array, 'l b t k']:
    """The outputs after each trained loop; gradients stop before the first."""
    states = self._loops(self.embedded(tokens), at)
    return jnp.stack([self._read(tokens) for tokens in states])

  def layer_tokens(self, prompt: Prompt) -> list[Float[Array, 'b n w']]:
    """The embedded tokens, then the tokens after each layer of each loop."""
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
    """The readout's predictions from the tokens of any layer."""
    outputs = self._read(tokens[:, at_examples(self.layout)])
    return self.finish(outputs[None], prompt)[0]

  def embedded(self, tokens: Float[Array, 'b n m']) -> Float[Array, 'b n w']:
    """The tokens as layers read them, with their positions; UserError for too many."""
    embedded = self.read_in(tokens)
    if self.positions is None:
      return embedded
    n = tokens.shape[1]
    self.check_length(n, self.context_length)
    return embedded + self.positions[...][None, :n]

  def _loops(
    self, embedded: Float[Array, 'b n w'], at: slice
  ) -> list[Float[Array, 'b t w']]:
    """The tokens `at` after each of the trained loops.

    The shortcuts: the untrained loops are one compiled loop, rematerialised layers are
    compiled apart, and the last layer of the last loop is computed for `at` alone.
    """
    tokens = jnp.zeros_like(embedded)
    untrained = self.num_loops - self.num_trained_loops
    if untrained and self.shortcuts:
      tokens = jax.lax.fori_loop(
        0, untrained, lambda _, z: self._layers(z + embedded), tokens
      )
      tokens = jax.lax.stop_gradient(tokens)
    elif untrained:  # with gradients, as probes take them
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
    """The tokens after all layers, or only some of them."""
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
