"""The layers of transformers: a mixer and a feed-forward network, each after a norm."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from inspect import signature
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float

from zoo.core.errors import UserError, check_count, check_name
from zoo.core.registry import MIXERS, check_registered, create, parameters
from zoo.core.taps import Tap
from zoo.mixers.attention import SoftmaxAttention
from zoo.mixers.mixer import (
  GIVEN,
  PLAIN,
  Init,
  Mixer,
  RMSNorm,
  Slot,
  project,
  project_back,
  widen,
)
from zoo.mixers.states import are_replaced, by_steps, state_taps

NORMS = 'none', 'layer', 'rms'
FEED_FORWARDS = 'none', 'linear', 'gelu', 'swiglu'

# A mixer is given as a registered name, as a class, or as a function that makes one.
MixerLike: TypeAlias = str | Callable[..., Mixer]
# A norm is given as one of NORMS, or as a function of the width and the keys.
NormLike: TypeAlias = str | Callable[[int, nnx.Rngs], nnx.Module]
# The norms whose scale 1 / √(variance + ε) can go through a tap.
WITH_SCALE = nnx.LayerNorm, nnx.RMSNorm, RMSNorm


class Layer(nnx.Module):
  """A mixer and a feed-forward network, each after a norm and added to its input."""

  # Norms have no tap of their scale, except in a copy of the model whose taps are used.
  shortcuts = True

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
      if feed_forward == 'none':
        raise UserError(
          f'hidden_features is {hidden_features}; it must be None, since feed_forward '
          "is 'none' and there is no network"
        )
    self.tokens_tap = Tap(axes='b n w', kind='stream')
    self.mixer_in_tap = Tap('mixer.in', 'b n w', kind='normed')
    self.mixer_out_tap = Tap('mixer.out', 'b n w', kind='added')
    self.mixer, self.norm_1 = mixer, make_norm(norm, width, rngs)
    self.state_taps = nnx.Dict(state_taps(mixer))
    self.mixer_norm_tap = norm_tap(self.norm_1, 'mixer.norm')
    if feed_forward == 'none':
      self.norm_2 = self.feed_forward = None
      return
    self.middle_tap = Tap(axes='b n w', kind='stream')
    self.norm_2 = make_norm(norm, width, rngs)
    self.network_norm_tap = norm_tap(self.norm_2, 'network.norm')
    self.network_in_tap = Tap('network.in', 'b n w', kind='normed')
    self.network_tap = Tap('network.out', 'b n w', kind='added')
    self.feed_forward = FeedForward(
      width, hidden_features, feed_forward, init, rngs=rngs
    )

  def __call__(
    self,
    tokens: Float[Array, 'b n w'],
    at: slice | None = None,
    seen: Bool[Array, 'b k'] | None = None,
  ) -> Float[Array, 'b t w']:
    """Returns the next tokens, or only some of them.

    Args:
      tokens: The tokens, `[b, n, w]`.
      at: The tokens that are returned; None, the default, returns all.
      seen: Which of the first k tokens all tokens of a prompt see, `[b, k]`. The mixer
        must then be softmax attention. None leaves it to the mixer.

    Raises:
      UserError: If the mixer returns another shape than that of its tokens.
    """
    tokens = self.tokens_tap(tokens)
    normed = self.mixer_in_tap(self._normed(self.norm_1, tokens, self.mixer_norm_tap))
    if seen is not None:
      assert isinstance(self.mixer, SoftmaxAttention)
      mixed = self.mixer.among(normed, seen)
    elif are_replaced(self.state_taps):
      mixed = by_steps(self.mixer, normed, self.state_taps)
    elif at is None:
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
      tokens = self.middle_tap(tokens)
      normed = self._normed(self.norm_2, tokens, self.network_norm_tap)
      tokens += self.network_tap(self.feed_forward(self.network_in_tap(normed)))
    return tokens

  def _normed(
    self, norm: nnx.Module | None, tokens: Float[Array, 'b n w'], tap: Tap | None
  ) -> Float[Array, 'b n w']:
    return normed(norm, tokens, None if self.shortcuts else tap)


class FeedForward(nnx.Module):
  """A network applied to each token, of one of three kinds.

  - 'linear': W_2 W_1 z.
  - 'gelu': W_2 gelu(W_1 z).
  - 'swiglu': W_2 (silu(W_3 z) ∘ W_1 z), without biases (Shazeer, arXiv 2002.05202, eq.
    6).

  Args:
    width: Number of entries of a token.
    hidden_features: Number of hidden entries; None, the default, means 4 · width.
    kind: 'linear', 'gelu' (the default) or 'swiglu'.
    init: How kernels start.
    axes: The letters of the axes of the hidden entries, for their taps.
    rngs: Random keys of the initial weights.
  """

  def __init__(
    self,
    width: int,
    hidden_features: int | None = None,
    kind: str = 'gelu',
    init: Init = PLAIN,
    axes: str = 'b n m',
    *,
    rngs: nnx.Rngs,
  ):
    hidden = 4 * width if hidden_features is None else hidden_features
    self.kind, use_bias = kind, kind != 'swiglu'
    self.up = project(width, hidden, init, use_bias=use_bias, rngs=rngs)
    if kind == 'swiglu':
      self.gate = project(width, hidden, init, use_bias=False, rngs=rngs)
    self.out = project_back(hidden, width, init, use_bias=use_bias, rngs=rngs)
    self.before_tap = Tap(axes=axes, kind='neurons')
    self.neurons_tap = Tap(axes=axes, kind='neurons')

  def __call__(self, tokens: Float[Array, 'b n w']) -> Float[Array, 'b n w']:
    """Returns the output for each token."""
    hidden = self.before_tap(self.up(tokens))
    if self.kind == 'gelu':
      hidden = jax.nn.gelu(hidden)
    if self.kind == 'swiglu':
      hidden *= jax.nn.silu(self.gate(tokens))
    return self.out(self.neurons_tap(hidden))


def check_normed(width: int) -> None:
  """Raises UserError for a width of 1: a layer norm of one entry is always 0."""
  if width == 1:
    raise UserError(
      'width is 1; it must be at least 2, since the layer norm of one entry is 0 '
      'whatever the entry is'
    )


def make_norm(norm: NormLike, width: int, rngs: nnx.Rngs) -> nnx.Module | None:
  """Returns a layer norm, an RMS norm or what a function makes; None for 'none'.

  Args:
    norm: One of NORMS, or a function of the width and the keys.
    width: Number of entries of a token.
    rngs: Random keys of the initial weights.

  Raises:
    UserError: If the name is unknown, if the function does not return an NNX module, or
      if the width is 1 and the norm a layer norm.
  """
  if callable(norm):
    made = norm(width, rngs)
    if not isinstance(made, nnx.Module):
      raise UserError(
        f'the function norm returns {made!r:.80}; it must return an NNX module'
      )
    return made
  check_name('norm', norm, NORMS)
  if norm == 'layer':
    check_normed(width)
    return nnx.LayerNorm(width, epsilon=1e-5, rngs=rngs)
  if norm == 'none':
    return None
  # A layer norm takes a key. Taking one here lets later weights start the same.
  rngs.params()
  return RMSNorm(width)


def norm_tap(norm: nnx.Module | None, name: str) -> Tap | None:
  """Returns a tap for the scale of a norm; None if `normed` knows of no scale."""
  has_scale = isinstance(norm, WITH_SCALE)
  return Tap(name, 'b n o', kind='norm') if has_scale else None


def normed(
  norm: Any,
  tokens: Float[Array, '*n w'],
  tap: Callable[[Array], Array] | None = None,
) -> Float[Array, '*n w']:
  """Returns tokens after a norm, whose scale 1 / √(variance + ε) goes through a tap.

  Without a norm (None) the tokens are returned as they are. Without a tap the norm is
  called. A norm that is neither a layer norm nor an RMS norm, of Flax or the zoo, is
  called as well, since nothing is known of its scale. Both ways give the same result up
  to rounding.
  """
  if norm is None:
    return tokens
  if tap is None or not isinstance(norm, WITH_SCALE):
    return norm(tokens)
  centred, axes = widen(tokens), tuple(range(tokens.ndim - 1))
  if isinstance(norm, nnx.LayerNorm):
    centred = centred - centred.mean(axis=-1, keepdims=True)
  variance = jnp.square(centred).mean(axis=-1, keepdims=True)
  outputs = centred * tap(jax.lax.rsqrt(variance + norm.epsilon))
  if norm.scale is not None:
    outputs *= jnp.expand_dims(widen(norm.scale[...]), axes)
  if isinstance(norm, nnx.LayerNorm) and norm.bias is not None:
    outputs += jnp.expand_dims(widen(norm.bias[...]), axes)
  return outputs.astype(tokens.dtype)


def make_mixers(
  mixer: MixerLike | Sequence[MixerLike],
  options: Mapping[str, object] | None,
  num_layers: int,
  slot: Slot,
  settings: Mapping[str, object],
) -> Iterator[Mixer]:
  """Makes the mixer of each layer; several mixers alternate from layer to layer.

  Each mixer gets those arguments that its constructor, or the function that makes it,
  names: of the slot and its fields, of the settings, and of the options.

  Args:
    mixer: A name, a class or a function; or several in a list or as names joined by
      commas.
    options: Options by name; each goes to every mixer that takes it.
    num_layers: Number of mixers that are made.
    slot: The place of the mixers.
    settings: The values of `causal`, `rotary` and `rngs`.

  Yields:
    The mixers, from the first layer to the last.

  Raises:
    UserError: If a name is unknown, if a mixer is causal and the model is not, if a
      mixer does not support rotary positions that are asked for, if an option is out of
      its range, or if no mixer has it.
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
  available = {'slot': slot, **vars(slot), **settings, **options}
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
        f'the mixer {name!r} makes a {type(made).__name__}; it must make a subclass '
        'of zoo.mixers.Mixer'
      )
    if made.causal and not settings['causal']:
      reason = 'does not set self.causal' if 'causal' in wanted else 'is always causal'
      raise UserError(f'causal is False; the mixer {name!r} {reason}')
    if settings['rotary'] and not made.rotary:
      raise UserError(f"positions is 'rotary'; the mixer {name!r} has none")
    yield made


def _maker(entry: MixerLike) -> tuple[str, Callable[..., Any], Collection[str]]:
  """Returns the name of a mixer in messages, what makes it, and the arguments it takes.

  Raises:
    UserError: If the name is unknown, or if the entry cannot make a mixer.
  """
  if isinstance(entry, str):
    mixer = MIXERS[check_registered('mixer', entry, MIXERS)]
    return entry, mixer, parameters(mixer)
  if isinstance(entry, nnx.Module) or not callable(entry):
    what = (
      f'an object of {type(entry).__name__}' if callable(entry) else f'{entry!r:.80}'
    )
    raise UserError(f'mixer is {what}; it must be a name, a class of mixers, or a list')
  if isinstance(entry, type):
    return entry.__name__, entry, parameters(entry)
  return getattr(entry, '__name__', repr(entry)), entry, signature(entry).parameters


def _check_options(
  options: Mapping[str, object], wanted: Mapping[str, Collection[str]]
) -> None:
  """Raises UserError if none of the mixers takes an option."""
  known = {key for taken in wanted.values() for key in taken} - {*GIVEN}
  mixed = ', '.join(wanted)
  for key in options:
    if not known:
      raise UserError(f'unknown option of the mixer {mixed}, {key!r}; it has none')
    check_name(f'option of the mixer {mixed},', key, known)
