"""Transformers: layers of a mixer and a feed-forward network, looped or not."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from inspect import signature
from typing import Any, TypeAlias

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
from zoo.core.registry import (
  MIXERS,
  check_registered,
  create,
  parameters,
  register_model,
)
from zoo.core.taps import Tap
from zoo.mixers.mixer import (
  GIVEN,
  PLAIN,
  Init,
  Linear,
  Mixer,
  Site,
  project,
  project_back,
)
from zoo.models.token_model import MAX_LAYERS, TokenModel
from zoo.models.tokens import at_examples, num_tokens

NORMS = 'none', 'layer', 'rms'
FEED_FORWARDS = 'none', 'linear', 'gelu', 'swiglu'
POSITIONS = 'none', 'learned', 'rotary'
MAX_LOOPS = 1000  # Python traces those that are trained one by one

# A registered name, a class of mixers, or a function that makes one.
MixerLike: TypeAlias = str | Callable[..., Mixer]
# One of NORMS, or a function of the width and the keys.
NormLike: TypeAlias = str | Callable[[int, nnx.Rngs], nnx.Module]


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
    rngs: the keys of the initial weights.

  The constructor raises UserError for an argument that is out of its range, and for
  arguments that contradict one another.
  """

  roles = {'read_in': 'embedding', 'read_out': 'embedding', 'positions': 'embedding'}

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
      rngs=rngs,
    )
    _check_order(tokens, causal)
    trained = _trained_loops(num_loops, num_trained_loops)
    self.context_length = check_count('context_length', context_length, minimum=0)
    self.remat = check_truth('remat', remat)
    self.num_loops, self.num_trained_loops = num_loops, trained
    init = Init(init_scale, 1 / math.sqrt(2 * num_layers))
    read = functools.partial(Linear, kernel_init=init.kernel(), rngs=rngs)
    self.read_in = read(self.token_width, width)
    learned = None
    if positions == 'learned':
      shape = num_tokens(tokens, context_length), width
      scale = 0.02 if init_scale is None else init_scale
      learned = nnx.Param(scale * jax.random.normal(rngs.params(), shape))
    self.positions = learned
    site = Site(width, num_heads, init)
    settings = {'causal': causal, 'rotary': positions == 'rotary', 'rngs': rngs}
    mixers = make_mixers(mixer, mixer_options, num_layers, site, settings)
    self.layers = nnx.List(
      Layer(width, layer_mixer, feed_forward, hidden_features, norm, init, rngs=rngs)
      for layer_mixer in mixers
    )
    self.norm = make_norm(norm, width, rngs)
    self.read_out = read(width, num_outputs)

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

    The last layer of the last loop is computed for those alone.
    """
    tokens = jnp.zeros_like(embedded)
    untrained = self.num_loops - self.num_trained_loops
    if untrained:
      tokens = jax.lax.fori_loop(
        0, untrained, lambda _, z: self._layers(z + embedded), tokens
      )
      tokens = jax.lax.stop_gradient(tokens)
    trained = []
    for _ in range(self.num_trained_loops - 1):
      tokens = self._layers(tokens + embedded, remat=self.remat)
      trained.append(tokens[:, at])
    return [*trained, self._layers(tokens + embedded, at, self.remat)]

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
    return self.read_out(tokens if self.norm is None else self.norm(tokens))


class Layer(nnx.Module):
  """A mixer and a feed-forward network, each after a norm and added to its input."""

  def __init__(
    self,
    width: int,
    mixer: Mixer,
    feed_forward: str,
    hidden_features: int | None,
    norm: NormLike,
    init: Init,
    *,
    rngs: nnx.Rngs,
  ):
    check_name('feed_forward', feed_forward, FEED_FORWARDS)
    if hidden_features is not None:
      check_count('hidden_features', hidden_features)
    self.tokens_tap, self.network_tap = Tap(), Tap('network.out')
    self.mixer_in_tap, self.mixer_out_tap = Tap('mixer.in'), Tap('mixer.out')
    self.mixer, self.norm_1 = mixer, make_norm(norm, width, rngs)
    if feed_forward == 'none':
      self.norm_2 = self.feed_forward = None
      return
    self.norm_2 = make_norm(norm, width, rngs)
    self.feed_forward = FeedForward(
      width, hidden_features, feed_forward, init, rngs=rngs
    )

  def __call__(
    self, tokens: Float[Array, 'b n w'], at: slice | None = None
  ) -> Float[Array, 'b t w']:
    """The next tokens, or only some of them."""
    tokens = self.tokens_tap(tokens)
    normed = self.mixer_in_tap(tokens if self.norm_1 is None else self.norm_1(tokens))
    if at is None:
      mixed = self.mixer(normed)
    else:
      mixed, tokens = self.mixer.outputs_at(normed, at), tokens[:, at]
    if mixed.shape != tokens.shape:
      raise UserError(
        f'the mixer {type(self.mixer).__name__} returns the shape {mixed.shape} for '
        f'tokens of the shape {tokens.shape}; it must be the same'
      )
    tokens += self.mixer_out_tap(mixed)
    if self.feed_forward is not None:
      normed = tokens if self.norm_2 is None else self.norm_2(tokens)
      tokens += self.network_tap(self.feed_forward(normed))
    return tokens


def _apply(
  layer: Layer, tokens: Float[Array, 'b n w'], at: slice | None, remat: bool
) -> Float[Array, 'b t w']:
  """Applies a layer, which the backward pass computes again with `remat`."""

  def apply(layer: Layer, tokens: Array) -> Array:
    return layer(tokens, at)

  return (nnx.remat(apply) if remat else apply)(layer, tokens)


class FeedForward(nnx.Module):
  """A network applied to each token: `linear`, `gelu` or `swiglu`.

  W_2 f(W_1 z) with f the identity or GELU, or W_2 (silu(W_3 z) ∘ W_1 z) (Shazeer, arXiv
  2002.05202, eq. 6; without biases).
  """

  def __init__(
    self,
    width: int,
    hidden_features: int | None = None,
    kind: str = 'gelu',
    init: Init = PLAIN,
    *,
    rngs: nnx.Rngs,
  ):
    """`hidden_features` is 4 · width if None."""
    hidden = 4 * width if hidden_features is None else hidden_features
    self.kind, use_bias = kind, kind != 'swiglu'
    self.up = project(width, hidden, init, use_bias=use_bias, rngs=rngs)
    if kind == 'swiglu':
      self.gate = project(width, hidden, init, use_bias=False, rngs=rngs)
    self.out = project_back(hidden, width, init, use_bias=use_bias, rngs=rngs)

  def __call__(self, tokens: Float[Array, 'b n w']) -> Float[Array, 'b n w']:
    hidden = self.up(tokens)
    if self.kind == 'gelu':
      hidden = jax.nn.gelu(hidden)
    if self.kind == 'swiglu':
      hidden *= jax.nn.silu(self.gate(tokens))
    return self.out(hidden)


def make_norm(norm: NormLike, width: int, rngs: nnx.Rngs) -> nnx.Module | None:
  """A layer norm, an RMS norm or what a function makes; None for `none`.

  Raises UserError for another name.
  """
  if callable(norm):
    return norm(width, rngs)
  check_name('norm', norm, NORMS)
  if norm == 'layer':
    return nnx.LayerNorm(width, epsilon=1e-5, rngs=rngs)
  return nnx.RMSNorm(width, rngs=rngs) if norm == 'rms' else None


def make_mixers(
  mixer: MixerLike | Sequence[MixerLike],
  options: Mapping[str, object] | None,
  num_layers: int,
  site: Site,
  settings: Mapping[str, object],
) -> Iterator[Mixer]:
  """The mixer of each layer; several, in a list or joined by commas, alternate.

  Each mixer gets what its constructor, or the function that makes it, names of the site
  and its fields, of the `settings`, and of the options. Raises UserError for an
  argument that one of them does not support, and for an option that none of them has.
  """
  options = {} if options is None else options
  if not isinstance(options, Mapping):
    raise UserError(f'mixer_options is {options!r:.80}; it must be a dict by name')
  entries = mixer.split(',') if isinstance(mixer, str) else mixer
  entries = list(entries) if isinstance(entries, Sequence) else [entries]
  if not entries:
    raise UserError('mixer is empty; it must have at least one name')
  makers = [_maker(entry) for entry in entries]
  _check_options(options, {name: wanted for name, _, wanted in makers})
  available = {'site': site, **vars(site), **settings, **options}
  for i in range(num_layers):
    name, maker, wanted = makers[i % len(makers)]
    arguments = {key: available[key] for key in wanted if key in available}
    try:
      if isinstance(maker, type):
        made = create('mixer', {name: maker}, name, arguments)
      else:
        made = maker(**arguments)
    except UserError as error:
      raise UserError(f'the mixer {name!r}: {error}') from error
    if not isinstance(made, Mixer):
      raise UserError(
        f'the mixer {name!r} is a {type(made).__name__}; it must be a subclass of '
        'zoo.mixers.Mixer'
      )
    if made.causal and not settings['causal']:
      raise UserError(f'causal is False; the mixer {name!r} is always causal')
    if settings['rotary'] and not made.rotary:
      raise UserError(f"positions is 'rotary'; the mixer {name!r} has none")
    yield made


def _maker(entry: MixerLike) -> tuple[str, Callable[..., Any], Collection[str]]:
  """The name of a mixer in messages, what makes it, and the arguments that this takes.

  Raises UserError for an unknown name, and for what makes no mixer.
  """
  if isinstance(entry, str):
    mixer = MIXERS[check_registered('mixer', entry, MIXERS)]
    return entry, mixer, parameters(mixer)
  if not callable(entry):
    raise UserError(
      f'mixer is {entry!r:.80}; it must be a name, a class of mixers, or a list'
    )
  if isinstance(entry, type):
    return entry.__name__, entry, parameters(entry)
  return getattr(entry, '__name__', repr(entry)), entry, signature(entry).parameters


def _check_options(
  options: Mapping[str, object], wanted: Mapping[str, Collection[str]]
) -> None:
  """Raises UserError for an option that none of the mixers takes."""
  known = {key for taken in wanted.values() for key in taken} - {*GIVEN}
  mixed = ', '.join(wanted)
  for key in options:
    if not known:
      raise UserError(f'unknown option of the mixer {mixed}, {key!r}; it has none')
    check_name(f'option of the mixer {mixed},', key, known)
