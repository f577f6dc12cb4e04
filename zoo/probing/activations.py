"""The intermediate values of a model's prediction."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.extend.core import get_opaque_trace_state
from jax.tree_util import keystr
from jaxtyping import Array, Float, PyTree

from zoo.core.errors import UserError
from zoo.core.prompt import Prompt
from zoo.core.protocols import Layered, Predictor, predicts_all
from zoo.measure.predict import run
from zoo.mixers.mixer import Mixer
from zoo.models.deep_lsa import SparseLayer
from zoo.models.linear_attention import LinearAttention, LinearLayer


def intermediates(model: Predictor, prompt: Prompt) -> dict[str, Array]:
  """The return value of each method in one forward pass, by the method's name.

  Methods of submodules are named by their path, such as `layers.0.mixer.attention`, and
  `__call__` by the path alone, such as `layers.0`. Later calls, as in a loop, have the
  suffix `@2`, `@3`, …; parts of a value follow after a dot. There are also:

  - for linear attention, the terms of the paper's equation: `embed`, `keys`, `queries`,
    `values`, `scores` (key by query), `update` and `forward_tokens`;
  - for a model with layers, `layer_tokens.0`, …, before the first and after each layer;
  - for a mixer, its input `tokens`; `attention [b, h, n, n]`, query by key; and
    `state`, the parts of its state after each token, `[b, n, …]`, if it has them. `ttt`
    has no attention, because its outputs are not linear in its values;
  - for `lstm` and `gru`, `carries.0`, …, of each layer after each token `[b, n, w]`.

  The model itself does not change, and its later calls compute nothing extra. Values
  inside a compiled loop are not returned. Raises UserError unless the model is an NNX
  module.
  """
  return run(_intermediates, [_module(model)], prompt)


def attention_maps(
  model: Predictor, prompt: Prompt
) -> dict[str, Float[Array, 'b h q k']]:
  """The attention weights of each layer that has any, query by key, by layer name.

  These layers are the mixers with `attention`, and the layers of `deep_lsa`. Raises
  UserError as `intermediates` does.
  """
  return in_order(run(_attention_maps, [_module(model)], prompt))


def mean_attention(
  model: Predictor, prompt: Prompt
) -> dict[str, Float[Array, 'h q k']]:
  """The mean over prompts of the absolute values of `attention_maps`."""
  return in_order(run(_mean_attention, [_module(model)], prompt))


def _module(model: Predictor) -> nnx.Module:
  if not isinstance(model, nnx.Module):
    raise UserError(
      f'{type(model).__name__} has no intermediates; it must be an NNX module'
    )
  return model


def _intermediates(models: Sequence[Any], prompt: Prompt) -> dict[str, Array]:
  (model,) = models
  found = _captured(nnx.clone(model), prompt)
  return found | dict(_extra_values(model, found))


def _attention_maps(models: Sequence[Any], prompt: Prompt) -> dict[str, Array]:
  found = _intermediates(models, prompt)
  maps = {}
  for path, module in nnx.iter_modules(models[0]):
    name = '.'.join(map(str, path))
    of_heads = isinstance(module, LinearLayer | SparseLayer)
    if not (of_heads or isinstance(module, Mixer)):
      continue
    for call, value in _calls(found, f'{name}.{"scores" if of_heads else "attention"}'):
      layer = name.removesuffix('.mixer') + call
      maps[layer] = jnp.swapaxes(value, -1, -2) if of_heads else value
  return maps


def _mean_attention(models: Sequence[Any], prompt: Prompt) -> dict[str, Array]:
  # In the same program as the model, so that XLA drops all that no map needs.
  maps = _attention_maps(models, prompt)
  return {name: jnp.abs(value).mean(axis=0) for name, value in maps.items()}


def in_order(maps: dict[str, Array]) -> dict[str, Array]:
  """Sorts names by layer and call numbers: a program returns dicts in string order."""

  def key(name: str) -> list[tuple[int, str]]:
    parts = name.replace('@', '.').split('.')
    return [(int(part), '') if part.isdigit() else (-1, part) for part in parts]

  return {name: maps[name] for name in sorted(maps, key=key)}


def _captured(model: Any, prompt: Prompt) -> dict[str, Array]:
  """The values of all methods in a forward pass; the model must not be used again."""
  trace = get_opaque_trace_state(convention='nnx')
  recording = functools.cache(functools.partial(_recording, trace=trace))
  for _, module in nnx.iter_modules(model):
    if not isinstance(module, nnx.List | nnx.Dict):
      module.__class__ = recording(type(module))
  record = nnx.capture(_forward, nnx.Intermediate, method_outputs=nnx.Intermediate)
  _, captured = record(model, prompt)
  found = {}
  for path, variable in nnx.to_flat_state(captured):
    name = '.'.join(map(str, path)).removesuffix('.__call__')
    for i, value in enumerate(variable.get_value()):
      found |= _named(name if i == 0 else f'{name}@{i + 1}', value)
  return found


def _forward(model: Predictor, prompt: Prompt) -> Array:
  if isinstance(model, LinearAttention):
    return model.forward_tokens(model.embed(prompt))
  if isinstance(model, Layered):  # loops and rematerialisation would hide the layers
    return model.read(model.layer_tokens(prompt)[-1], prompt)[:, -1]
  if predicts_all(model):  # so that all outputs are computed, and recorded
    return model.predictions(prompt)[:, -1]
  return model(prompt)


def _recording(cls: type, trace: Any) -> type:
  """A subclass that nnx.capture records in full, except inside loops of the trace.

  All methods that `cls` adds to nnx.Module become its own, since inherited methods are
  not recorded. A mixer also records the tokens that it is called on.
  """
  inherited = set(dir(nnx.Module))
  methods: dict[str, Any] = {
    name: method
    for name, method in inspect.getmembers(cls, inspect.isfunction)
    if name == '__call__' or not (name.startswith('_') or name in inherited)
  }
  methods.pop('outputs_at', None)  # then all outputs are computed, and recorded
  if issubclass(cls, Mixer):

    def call(self: Any, tokens: Array) -> Array:
      self.sow(nnx.Intermediate, 'tokens', tokens)
      return cls.__call__(self, tokens)

    methods['__call__'] = call

  def sow(self: Any, *given: Any) -> bool:
    outside = get_opaque_trace_state(convention='nnx') == trace
    return outside and cls.sow(self, *given)  # pyright: ignore

  # In a separate base class: otherwise `sow` would be recorded too.
  base = type(cls.__name__, (cls,), {'sow': sow})
  return type(cls.__name__, (base,), methods)


def _extra_values(
  model: nnx.Module, found: dict[str, Array]
) -> Iterator[tuple[str, Array]]:
  """Values that only the probe needs, computed from those of the forward pass."""
  for path, module in nnx.iter_modules(model):
    if not isinstance(module, Mixer):
      continue
    name = '.'.join(map(str, path))
    for call, tokens in _calls(found, f'{name}.tokens'):
      made = f'{name}.attention{call}'
      if made not in found and (weights := module.attention(tokens)) is not None:
        yield made, weights
      if module.causal and (start := module.initial_state(len(tokens))) is not None:
        states = _states(module, start, tokens)
        yield from _named(f'{name}.state{call}', states).items()


def _calls(found: dict[str, Array], name: str) -> list[tuple[str, Array]]:
  """The values found for a name, with the suffix of the call: `''`, `'@2'`, …"""
  return [
    (key.removeprefix(name), value)
    for key, value in found.items()
    if key.partition('@')[0] == name
  ]


def _states(mixer: Mixer, start: PyTree, tokens: Float[Array, 'b n w']) -> PyTree:
  """The states of a mixer after each token, `[b, n, …]`."""

  def step(state: PyTree, token: Float[Array, 'b w']) -> tuple[PyTree, PyTree]:
    _, state = mixer.step(token, state)
    return state, jax.tree.leaves(state)

  _, each = jax.lax.scan(step, start, jnp.swapaxes(tokens, 0, 1))
  # A count of tokens has no batch axis.
  each = [jnp.swapaxes(leaf, 0, 1) if leaf.ndim > 1 else leaf for leaf in each]
  return jax.tree.unflatten(jax.tree.structure(start), each)


def _named(name: str, value: PyTree) -> dict[str, Array]:
  """The arrays of a value, named by the name and the path within the value."""
  return {
    '.'.join([name, *(keystr((key,), simple=True) for key in path)]): jnp.asarray(leaf)
    for path, leaf in jax.tree.leaves_with_path(value)
  }
