"""Checks that the methods of a mixer agree."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, PyTree

from zoo.contracts.checks import (
  check_close,
  check_finite,
  check_floats,
  check_form,
)
from zoo.core.errors import UserError, in_one_line, noted
from zoo.core.programs import compiled
from zoo.core.prompt import Prompt
from zoo.core.registry import MIXERS
from zoo.mixers.mixer import Mixer
from zoo.models.transformer import Transformer
from zoo.theory.trust import QUICK_TO_COMPILE, changed_weights

# 18 tokens are more than one chunk of the recurrences, which has 16.
_NUM_TOKENS, _SOME = 18, slice(1, 4)


def check_mixers(model: object, prompt: Prompt) -> None:
  """Raises UserError unless all methods of a transformer's mixers agree.

  Outputs must be finite and float32, as the tokens are, and have their shape. If
  several mixers have the same class, sizes and options, the first of them is called on
  random tokens; options that are arrays are not compared. Its `outputs_at`, and its
  `step` if it has a state, must give the same as `__call__`. If it is causal, neither
  its outputs nor its `attention` may depend on later tokens. This is checked with two
  sets of weights: the mixer's own, changed so that none is zero, and weights of the
  size that training gives them. The second set reveals mistakes behind a gate that
  starts almost shut, or a decay that starts near 1.

  Args:
    model: A model. Only the mixers of a `Transformer` are checked.
    prompt: Prompts of the task, whose number of tokens the mixers are called on, up to
      18 of them.
  """
  if not isinstance(model, Transformer):
    return
  tokens = jax.random.normal(jax.random.key(0), _shape_of_tokens(model, prompt))
  with jax.default_matmul_precision('highest'):
    for mixer in _different(model):
      _check_mixer(type(mixer).__name__, mixer, tokens)


def check_mixer_forms(model: Transformer, prompt: Prompt) -> None:
  """Raises UserError unless the mixers of a transformer keep shapes and float32.

  Nothing is computed. The arguments are those of `check_mixers`.
  """
  tokens = jax.ShapeDtypeStruct(_shape_of_tokens(model, prompt), jnp.float32)
  for mixer in _different(model):
    cls = type(mixer)
    with noted(f'{cls.__name__}(tokens)'):
      outputs = nnx.eval_shape(lambda mixer, tokens: mixer(tokens), mixer, tokens)
    check_floats(f'{cls.__name__}(tokens){_of_mixer(cls)}', outputs, tokens.shape)


def _different(model: Transformer) -> list[Mixer]:
  """Returns the first of all mixers of the layers that have the same structure.

  The structure of a module has its class, its options, and the shapes of its arrays.
  """
  mixers, structures = [], []
  for layer in model.layers:
    graph, state = nnx.split(layer.mixer)
    structure = graph, jax.tree.map(jnp.shape, state)
    if structure not in structures:
      mixers.append(layer.mixer)
      structures.append(structure)
  return mixers


def _shape_of_tokens(model: Transformer, prompt: Prompt) -> tuple[int, int, int]:
  with noted(f'the tokens of {type(model).__name__}'):
    tokens = nnx.eval_shape(
      lambda model, prompt: model.embedded(model.embed(prompt)), model, prompt
    )
  _, n, width = tokens.shape
  return 2, min(_NUM_TOKENS, n), width


def _check_mixer(name: str, mixer: Mixer, tokens: Float[Array, 'b n w']) -> None:
  graph, parameters, rest = nnx.split(mixer, nnx.Param, ...)
  of_mixer = _of_mixer(type(mixer))
  b, n, _ = tokens.shape
  others = jax.random.normal(jax.random.key(1), tokens.shape)
  with_others = jnp.concatenate([tokens[:, : n // 2], others[:, n // 2 :]], axis=1)

  @functools.partial(compiled, compiler_options=QUICK_TO_COMPILE)
  def outputs(weights: PyTree) -> dict[str, Array]:
    mixer = nnx.merge(graph, weights, rest, copy=True)
    with noted(f'{name}(tokens)'):
      # One call for both prompts halves the time to compile.
      prompts = jnp.concatenate([tokens, with_others])
      both = mixer(prompts)
    values = {'': both[:b]}
    if mixer.causal:
      values['earlier'] = both[b:, : n // 2]
    with noted(f'{name}.outputs_at(tokens, {_SOME})'):
      values['some'] = mixer.outputs_at(tokens, _SOME)
    with noted(f'{name}.attention(tokens)'):
      if (attention := mixer.attention(prompts)) is not None:
        # The second axis counts heads, or channels if each has weights of its own.
        heads = getattr(attention, 'shape', (2 * b, 1))[1:2]
        what = f'{name}.attention(tokens){of_mixer}'
        check_floats(what, attention, (2 * b, *heads, n, n))
        values['attention'] = attention
    with noted(f'{name}.step(token, state)'):
      if (steps := _steps(name, mixer, tokens)) is not None:
        values['steps'] = steps
    return values

  values = outputs(changed_weights(parameters))
  check_form(f'{name}(tokens){of_mixer}', values[''], tokens.shape)
  if 'attention' in values:
    check_finite(f'{name}.attention(tokens){of_mixer}', values['attention'])
  _check_agreement(name, values, of_mixer)
  values = outputs(_as_trained(parameters))
  finite = {part: bool(jnp.isfinite(array).all()) for part, array in values.items()}
  if not finite.pop('attention', True):
    del values['attention']  # The other parts are compared without it.
  if all(finite.values()):
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
      attention, half = values['attention'], earlier.shape[1]
      check_close(
        f'{name}.attention(tokens){of_mixer} is not 0 for later tokens, and '
        f'{name}.causal is True',
        jnp.tril(attention),
        attention,
      )
      first, second = jnp.split(attention[..., :half, :half], 2)
      check_close(
        f'{name}.attention(tokens){of_mixer} changes with later tokens, and '
        f'{name}.causal is True',
        second,
        first,
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
  for leaf in jax.tree.leaves(state):
    if not isinstance(leaf, jax.Array | np.ndarray):
      raise UserError(
        f'{name}.initial_state has the leaf {in_one_line(repr(leaf), 80)}; all leaves '
        'of a state must be arrays'
      )
  returned = jax.eval_shape(mixer.step, tokens[:, 0], state)
  if not isinstance(returned, tuple) or len(returned) != 2:
    raise UserError(
      f'{name}.step returns a {type(returned).__name__}; it must return a pair of the '
      'output and the next state'
    )
  before, after = (
    jax.tree.map(lambda leaf: f'{leaf.dtype}{list(leaf.shape)}', tree)
    for tree in (state, returned[1])
  )
  if before != after:
    raise UserError(
      f'{name}.step changes its state from {before} to {after}; a state keeps its '
      'shapes and types'
    )

  def body(state: PyTree, token: Array) -> tuple[PyTree, Array]:
    output, state = mixer.step(token, state)
    return state, output

  _, outputs = jax.lax.scan(body, state, jnp.swapaxes(tokens, 0, 1))
  return jnp.swapaxes(outputs, 0, 1)
