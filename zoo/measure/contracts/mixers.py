"""Checks that the methods of a mixer agree."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, PyTree

from zoo.core.errors import UserError
from zoo.core.programs import compiled
from zoo.core.registry import MIXERS
from zoo.measure.contracts.checks import check_close, check_floats, check_form, noted
from zoo.mixers.mixer import Mixer
from zoo.models.tokens import num_tokens
from zoo.models.transformer import Transformer
from zoo.theory.trust import QUICK_TO_COMPILE, changed_weights

# These are more tokens than a chunk of 16 has, with which mixers compute all tokens.
_NUM_TOKENS, _SOME = 18, slice(1, 4)


def check_mixers(model: object) -> None:
  """Raises UserError unless all methods of a transformer's mixers agree.

  Outputs must be finite and float32, as the tokens are, and have their shape. One of
  several mixers that have the same class, options and sizes is called on random tokens.
  Its `outputs_at`, and its `step` if it has a state, must give the same as `__call__`.
  If it is causal, neither its outputs nor its `attention` may depend on later tokens.
  This is checked with two sets of weights: the mixer's own, changed so that none is
  zero, and weights of the size that training gives them. The second set reveals
  mistakes behind a gate that starts almost shut, or a decay that starts near 1.
  """
  if not isinstance(model, Transformer):
    return
  tokens = jax.random.normal(jax.random.key(0), _shape_of_tokens(model))
  for mixer in _different(model):
    _check_mixer(type(mixer).__name__, mixer, tokens)


def check_mixer_forms(model: Transformer) -> None:
  """Raises UserError unless the mixers of a transformer keep shapes and float32.

  Nothing is computed.
  """
  tokens = jax.ShapeDtypeStruct(_shape_of_tokens(model), jnp.float32)
  for mixer in _different(model):
    cls = type(mixer)
    with noted(f'{cls.__name__}(tokens)'):
      outputs = nnx.eval_shape(lambda mixer, tokens: mixer(tokens), mixer, tokens)
    check_floats(f'{cls.__name__}(tokens){_of_mixer(cls)}', outputs, tokens.shape)


def _different(model: Transformer) -> list[Mixer]:
  """Returns the mixers of the layers, one of those that differ only in their weights.

  The structure of a module has its class and its options.
  """
  mixers, structures = [], []
  for layer in model.layers:
    graph, state = nnx.split(layer.mixer)
    structure = graph, jax.tree.map(jnp.shape, state)
    if structure not in structures:
      mixers.append(layer.mixer)
      structures.append(structure)
  return mixers


def _shape_of_tokens(model: Transformer) -> tuple[int, int, int]:
  in_training = num_tokens(model.layout, model.context_length)
  return 2, min(_NUM_TOKENS, in_training), model.read_in.out_features


def _check_mixer(name: str, mixer: Mixer, tokens: Float[Array, 'b n w']) -> None:
  graph, parameters, rest = nnx.split(mixer, nnx.Param, ...)
  b, n, _ = tokens.shape
  kept, others = tokens[:, : n // 2], jax.random.normal(jax.random.key(1), tokens.shape)
  with_others = jnp.concatenate([kept, others[:, n // 2 :]], axis=1)

  @functools.partial(compiled, compiler_options=QUICK_TO_COMPILE)
  def outputs(weights: PyTree) -> dict[str, Array]:
    mixer = nnx.merge(graph, weights, rest, copy=True)
    with noted(f'{name}(tokens)'):
      # One call for both prompts halves the time to compile.
      both = mixer(jnp.concatenate([tokens, with_others]))
    values = {'': both[:b]}
    if mixer.causal:
      values['earlier'] = both[b:, : n // 2]
    with noted(f'{name}.outputs_at(tokens, {_SOME})'):
      values['some'] = mixer.outputs_at(tokens, _SOME)
    with noted(f'{name}.attention(tokens)'):
      if (attention := mixer.attention(tokens)) is not None:
        values['attention'] = attention
    with noted(f'{name}.step(token, state)'):
      if (steps := _steps(name, mixer, tokens)) is not None:
        values['steps'] = steps
    return values

  values, of_mixer = outputs(changed_weights(parameters)), _of_mixer(type(mixer))
  check_form(f'{name}(tokens){of_mixer}', values[''], tokens.shape)
  if 'attention' in values:
    what, shape = f'{name}.attention(tokens){of_mixer}', values['attention'].shape
    # The second axis counts heads, or channels if each of them has weights of its own.
    check_form(what, values['attention'], (b, *shape[1:2], n, n))
  _check_agreement(name, values, of_mixer)
  values = outputs(_as_trained(parameters))
  if all(bool(jnp.isfinite(array).all()) for array in values.values()):
    _check_agreement(name, values, of_mixer)


def _as_trained(parameters: PyTree) -> PyTree:
  """Returns weights of the size that training gives them, wherever they start.

  Vectors are waves of size 1. Kernels are such waves, divided by the square root of the
  number of their inputs.
  """

  def zero(array: Array) -> Array:
    is_float = jnp.issubdtype(array.dtype, jnp.inexact)
    return jnp.zeros_like(array) if is_float else array

  def scaled(array: Array) -> Array:
    is_kernel = array.ndim > 1 and jnp.issubdtype(array.dtype, jnp.inexact)
    return array / array.shape[-2] ** 0.5 if is_kernel else array

  waves = changed_weights(jax.tree.map(zero, parameters), size=1.0)
  return jax.tree.map(scaled, waves)


def _check_agreement(name: str, values: dict[str, Array], of_mixer: str) -> None:
  """Raises UserError unless the outputs of all methods are those of `__call__`.

  A causal mixer must also leave out the tokens that come later.
  """
  if 'earlier' in values:
    earlier = values['earlier']
    check_close(
      f'{name}(tokens){of_mixer} changes with later tokens, and {name}.causal is True',
      earlier,
      values[''][:, : earlier.shape[1]],
    )
    if 'attention' in values:
      check_close(
        f'{name}.attention(tokens){of_mixer} is not 0 for later tokens, and '
        f'{name}.causal is True',
        jnp.tril(values['attention']),
        values['attention'],
      )
  for part, what, wanted in (
    ('some', 'outputs_at', values[''][:, _SOME]),
    ('steps', 'step', values['']),
  ):
    if part in values:
      check_form(f'{name}.{what}{of_mixer}', values[part], wanted.shape)
      check_close(f'{name}.{what} differs from {name}(tokens)', values[part], wanted)


def _of_mixer(cls: type) -> str:
  """Returns the registered name of a class, in words; empty without a name."""
  names = [name for name, mixer in sorted(MIXERS.items()) if mixer is cls]
  return f' of the mixer {names[0]!r}' if names else ''


def _steps(
  name: str, mixer: Mixer, tokens: Float[Array, 'b n w']
) -> Float[Array, 'b n w'] | None:
  """Returns the outputs for tokens that are taken one by one; None without a state."""
  state = mixer.initial_state(len(tokens)) if mixer.causal else None
  if state is None:
    return None
  _, after = jax.eval_shape(mixer.step, tokens[:, 0], state)
  before, after = (jax.tree.map(jnp.shape, tree) for tree in (state, after))
  if before != after:
    raise UserError(
      f'{name}.step changes the shapes of its state from {before} to {after}; a state '
      'keeps its shapes'
    )

  def body(state: PyTree, token: Array) -> tuple[PyTree, Array]:
    output, state = mixer.step(token, state)
    return state, output

  _, outputs = jax.lax.scan(body, state, jnp.swapaxes(tokens, 0, 1))
  return jnp.swapaxes(outputs, 0, 1)
