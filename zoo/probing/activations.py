"""The intermediate values of a model's prediction."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.extend.core import get_opaque_trace_state
from jax.tree_util import keystr
from jaxtyping import Array, Float, PyTree

from zoo.core.errors import UserError, check_name
from zoo.core.prompt import Prompt
from zoo.core.protocols import Layered, Predictor, predicts_all
from zoo.core.taps import Tap
from zoo.measure.predict import run
from zoo.mixers.mixer import Mixer
from zoo.models.deep_lsa import SparseLayer
from zoo.models.linear_attention import LinearAttention, LinearLayer


def sites(model: Predictor) -> list[str]:
  """The names of the values that a model shows at its taps (`zoo.core.taps.Tap`).

  - `guess` and `embed`: the initial guess of the labels, and the tokens;
  - for layers of linear attention `keys`, `queries`, `values`, `scores` (key by query)
    and `update`, the terms of the paper's equation;
  - for layers of a transformer `tokens`, those before the layer; `mixer.in`,
    `mixer.out` and `network.out`, after the layer's name, as in `layers.0.mixer.in`;
  - for `lstm` and `gru` `carries.0`, …, of each layer after each token `[b, n, w]`.

  Raises UserError unless the model is an NNX module.
  """
  return _sites(model)


def capture(
  model: Predictor, prompt: Prompt, sites: Sequence[str] | None = None
) -> dict[str, Array]:
  """The values at some sites in one forward pass, by site; None: at all of them.

  A site that is called again, as in a loop, has the suffix `@2`, `@3`, …; parts of a
  value that is no array follow after a dot. Values inside a compiled loop of JAX are
  left out. Raises UserError unless the model is an NNX module, and for a site that it
  does not have or does not pass.
  """
  every = _sites(model)
  if isinstance(sites, str):
    raise UserError(f'sites is {sites!r}; it must be a list of sites')
  for site in sites or ():
    check_name('site', site, every)
  wanted = every if sites is None else sites

  def captured(models: Sequence[Any], prompt: Prompt) -> dict[str, Array]:
    return _captured(models[0], prompt, wanted)[0]

  values = run(captured, [model], prompt)
  for site in sites or ():
    if not any(name == site or name.startswith(f'{site}.') for name in values):
      raise UserError(
        f'the site {site!r} has no value in a forward pass: its tap is not called, or '
        'within a compiled loop or function'
      )
  return _in_order(values)


def intermediates(model: Predictor, prompt: Prompt) -> dict[str, Array]:
  """The values at all sites of a model, and what follows from them, by name.

  Besides the values of `capture` there are:

  - for linear attention `forward_tokens`, the tokens after the layer;
  - for a model with layers, `layer_tokens.0`, …, before the first and after each layer;
  - for a mixer in a transformer, `attention [b, h, n, n]`, query by key; and `state`,
    the parts of its state after each token, `[b, n, …]`, if it has them. `ttt` has no
    attention, because its outputs are not linear in its values.

  Raises UserError unless the model is an NNX module.
  """
  return run(_intermediates, [_module(model)], prompt)


def attention_maps(
  model: Predictor, prompt: Prompt
) -> dict[str, Float[Array, 'b h q k']]:
  """The attention weights of each layer that has any, query by key, by layer name.

  These layers are the mixers of a transformer that have `attention`, and the layers of
  `deep_lsa`. A module of your own has a map of its `self.mixer` if it calls this on
  what a `Tap('mixer.in')` returns. Raises UserError as `intermediates` does.
  """
  return _in_order(run(_attention_maps, [_module(model)], prompt))


def mean_attention(
  model: Predictor, prompt: Prompt
) -> dict[str, Float[Array, 'h q k']]:
  """The mean over prompts of the absolute values of `attention_maps`."""
  return _in_order(run(_mean_attention, [_module(model)], prompt))


def _in_order(maps: dict[str, Array]) -> dict[str, Array]:
  return {name: maps[name] for name in in_order(maps)}


def _module(model: Predictor) -> nnx.Module:
  if not isinstance(model, nnx.Module):
    raise UserError(
      f'{type(model).__name__} has no intermediates; it must be an NNX module'
    )
  return model


def _intermediates(models: Sequence[Any], prompt: Prompt) -> dict[str, Array]:
  (model,) = models
  values, tokens = _captured(model, prompt, _sites(model))
  return values | tokens | dict(_of_mixers(model, values))


def _attention_maps(models: Sequence[Any], prompt: Prompt) -> dict[str, Array]:
  values, maps = _intermediates(models, prompt), {}
  for path, module in nnx.iter_modules(models[0]):
    name = '.'.join(map(str, path))
    of_heads = isinstance(module, LinearLayer | SparseLayer)
    if not (of_heads or isinstance(module, Mixer)):
      continue
    kind = 'scores' if of_heads else 'attention'
    for call, value in _calls(values, f'{name}.{kind}'):
      layer = name.removesuffix('.mixer') + call
      maps[layer] = jnp.swapaxes(value, -1, -2) if of_heads else value
  return maps


def _mean_attention(models: Sequence[Any], prompt: Prompt) -> dict[str, Array]:
  # In the same program as the model, so that XLA drops all that no map needs.
  maps = _attention_maps(models, prompt)
  return {name: jnp.abs(value).mean(axis=0) for name, value in maps.items()}


def in_order(names: Iterable[str]) -> list[str]:
  """Sorts names by layer and call numbers; a program returns dicts in string order."""

  def key(name: str) -> list[tuple[int, str]]:
    parts = name.replace('@', '.').split('.')
    return [(int(part), '') if part.isdigit() else (-1, part) for part in parts]

  return sorted(names, key=key)


def _sites(model: Predictor) -> list[str]:
  return in_order(site for site, _, _ in _taps(_module(model)))


class _Recorder(Tap):
  """A tap that also hands its value to a function."""

  def __init__(self, record: Callable[[Any], None]):
    self.record = record

  def __call__(self, value: Any) -> Any:
    self.record(value)
    return value


def _taps(model: nnx.Module) -> Iterator[tuple[str, Any, Any]]:
  """The taps of a model: the site, the module that holds the tap, and its key there."""
  for path, module in nnx.iter_modules(model):
    is_container = isinstance(module, nnx.List | nnx.Dict)
    for key, child in nnx.iter_children(module):
      if not isinstance(child, Tap):
        continue
      if child.name is None:
        site = [*path, str(key).removesuffix('_tap')]
      else:
        site = [*(path[:-1] if is_container else path), child.name]
      yield '.'.join(map(str, site)), module, key


def _captured(
  model: Any, prompt: Prompt, wanted: Collection[str]
) -> tuple[dict[str, Array], dict[str, Array]]:
  """The values at the wanted sites, and the tokens that the forward pass returns."""
  trace = get_opaque_trace_state(convention='nnx')
  values: dict[str, list[Any]] = {}

  def record(site: str, value: Any) -> None:
    # A value of a compiled loop is none of the program around it.
    if get_opaque_trace_state(convention='nnx') == trace:
      values.setdefault(site, []).append(value)

  model = nnx.clone(model)
  for site, module, key in [*_taps(model)]:
    if site in wanted:
      recorder = _Recorder(functools.partial(record, site))
      if isinstance(module, nnx.List | nnx.Dict):
        module[key] = recorder
      else:
        setattr(module, key, recorder)
  tokens = _forward(model, prompt)
  captured = {}
  for site, calls in values.items():
    for i, value in enumerate(calls):
      captured |= _named(site if i == 0 else f'{site}@{i + 1}', value)
  return captured, tokens


def _forward(model: Predictor, prompt: Prompt) -> dict[str, Array]:
  """Predicts by the way that calls all taps; returns the tokens between layers."""
  if isinstance(model, LinearAttention):  # a prediction needs fewer operations
    return {'forward_tokens': model.forward_tokens(model.embed(prompt))}
  if isinstance(model, Layered):  # loops and rematerialisation would hide the layers
    tokens = model.layer_tokens(prompt)
    model.read(tokens[-1], prompt)
    return {f'layer_tokens.{i}': array for i, array in enumerate(tokens)}
  if predicts_all(model):  # so that all outputs are computed
    model.predictions(prompt)
  else:
    model(prompt)
  return {}


def _of_mixers(
  model: nnx.Module, values: dict[str, Array]
) -> Iterator[tuple[str, Array]]:
  """Attention and states of mixers, which only the probe needs, from their inputs."""
  for path, module in nnx.iter_modules(model):
    if not isinstance(module, Mixer):
      continue
    name = '.'.join(map(str, path))
    for call, tokens in _calls(values, f'{name}.in'):
      if (weights := module.attention(tokens)) is not None:
        yield f'{name}.attention{call}', weights
      if module.causal and (start := module.initial_state(len(tokens))) is not None:
        states = _states(module, start, tokens)
        yield from _named(f'{name}.state{call}', states).items()


def _calls(values: dict[str, Array], name: str) -> list[tuple[str, Array]]:
  """The values of a name, with the suffix of the call: `''`, `'@2'`, …"""
  return [
    (key.removeprefix(name), value)
    for key, value in values.items()
    if key.partition('@')[0] == name
  ]


def _states(mixer: Mixer, start: PyTree, tokens: Float[Array, 'b n w']) -> PyTree:
  """The states of a mixer after each token, `[b, n, …]`."""

  def step(state: PyTree, token: Float[Array, 'b w']) -> tuple[PyTree, PyTree]:
    _, state = mixer.step(token, state)
    return state, jax.tree.leaves(state)

  _, states = jax.lax.scan(step, start, jnp.swapaxes(tokens, 0, 1))
  # A count of tokens has no batch axis.
  states = [jnp.swapaxes(leaf, 0, 1) if leaf.ndim > 1 else leaf for leaf in states]
  return jax.tree.unflatten(jax.tree.structure(start), states)


def _named(name: str, value: PyTree) -> dict[str, Array]:
  """The arrays of a value, named by the name and the path within the value."""
  return {
    '.'.join([name, *(keystr((key,), simple=True) for key in path)]): jnp.asarray(leaf)
    for path, leaf in jax.tree.leaves_with_path(value)
  }
