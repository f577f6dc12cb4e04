"""The intermediate values of a model's prediction."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.extend.core import get_opaque_trace_state
from jax.tree_util import keystr
from jaxtyping import Array, Float, PyTree

from zoo.core.errors import UserError, check_name
from zoo.core.prompt import Prompt
from zoo.core.protocols import Layered, Predictor
from zoo.core.taps import Replacement, in_order, places, without_shortcuts
from zoo.measure.predict import run_once
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
  - within its mixers `pattern [b, h, q, k]`, the weights of softmax and ReLU attention;
    `read [b, n, h, v]`, what the heads read of their states; and `heads`, what they
    give to the output matrix;
  - for `lstm` and `gru` `carries.0.0`, …, the arrays of each layer's carry after each
    token `[b, n, w]`, of which the last is the output.

  Raises UserError unless the model is an NNX module.
  """
  return [place.site for place in places(checked_module(model))]


def check_edit_site(site: str, known: Sequence[str]) -> None:
  """Raises UserError for a site that is none of these, or one call of one."""
  name, _, call = site.partition('@')
  if call and name in known:
    raise UserError(
      f'the site {site!r} is one call of {name!r}; an edit holds for all of them'
    )
  if not known:
    raise UserError(f'the model has no site {site!r}: it has no taps')
  check_name('site', site, known)


def wanted_sites(model: Predictor, sites: Sequence[str] | None) -> list[str]:
  """These sites of a model; None is all but those that are computed on demand.

  Raises UserError for an unknown one.
  """
  known = places(checked_module(model))
  if sites is None:
    return [place.site for place in known if not place.tap.is_on_demand]
  if isinstance(sites, str):
    raise UserError(f'sites is {sites!r}; it must be a list of sites')
  for site in sites:
    check_edit_site(site, [place.site for place in known])
  return [*sites]


def sites_of_kind(model: Predictor, *kinds: str) -> list[str]:
  """The sites of a model whose taps are of one of these `zoo.probing.TAP_KINDS`."""
  known = places(checked_module(model))
  return [place.site for place in known if place.tap.kind in kinds]


def in_order_of_calls(
  model: Predictor, prompt: Prompt, sites: Sequence[str]
) -> list[str]:
  """These sites in the order in which a forward pass first calls their taps."""
  values = jax.eval_shape(lambda: recorded(model, prompt, sites)[0])
  called = [name.partition('@')[0] for name in values]
  return [site for site in dict.fromkeys(called) if site in sites]


def calls_of(values: dict[str, Array], site: str) -> list[Array]:
  """The values of all calls of a site, in their order."""
  names = [name for name in values if name.partition('@')[0] == site]
  return [values[name] for name in in_order(names)]


def capture(
  model: Predictor, prompt: Prompt, sites: Sequence[str] | None = None
) -> dict[str, Array]:
  """The values at some sites in one forward pass, by site; None: at all of them.

  A site that is called again, as in a loop, has the suffix `@2`, `@3`, …; parts of a
  value that is no array follow after a dot. Values inside a compiled loop of JAX are
  left out. Raises UserError unless the model is an NNX module, and for a site that it
  does not have or does not pass.
  """
  wanted = wanted_sites(model, sites)

  def captured(models: Sequence[Any], prompt: Prompt) -> dict[str, Array]:
    return recorded(models[0], prompt, wanted)[0]

  values = run_once(captured, [model], prompt)
  for site in sites or ():
    if not any(name == site or name.startswith(f'{site}.') for name in values):
      raise UserError(no_value(site))
  return _in_order(values)


def no_value(site: str) -> str:
  """What is said of a site without a value."""
  return (
    f'the site {site!r} has no value in a forward pass: its tap is not called, or '
    'within a compiled loop or function'
  )


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
  return run_once(_intermediates, [checked_module(model)], prompt)


def attention_maps(
  model: Predictor, prompt: Prompt
) -> dict[str, Float[Array, 'b h q k']]:
  """The attention weights of each layer that has any, query by key, by layer name.

  These layers are the mixers of a transformer that have `attention`, and the layers of
  `deep_lsa`. A module of your own has a map if it has a tap of the kind `pattern`, with
  the axes `b h q k`; or of its `self.mixer`, if it calls this on what a
  `Tap('mixer.in')` returns. Raises UserError as `intermediates` does.
  """
  return _in_order(run_once(_attention_maps, [checked_module(model)], prompt))


def mean_attention(
  model: Predictor, prompt: Prompt
) -> dict[str, Float[Array, 'h q k']]:
  """The mean over prompts of the absolute values of `attention_maps`."""
  return _in_order(run_once(_mean_attention, [checked_module(model)], prompt))


def _in_order(maps: dict[str, Array]) -> dict[str, Array]:
  return {name: maps[name] for name in in_order(maps)}


def checked_module(model: Predictor) -> nnx.Module:
  """The model; raises UserError unless it is an NNX module."""
  if not isinstance(model, nnx.Module):
    raise UserError(
      f'{type(model).__name__} has no intermediates; it must be an NNX module'
    )
  return model


def _intermediates(models: Sequence[Any], prompt: Prompt) -> dict[str, Array]:
  (model,) = models
  values, _ = recorded(model, prompt, wanted_sites(model, None))
  return values | _tokens(model, prompt) | dict(_of_mixers(model, values))


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
  for site in sites_of_kind(models[0], 'pattern'):  # of a model of the user's own
    layer = site.rpartition('.')[0].removesuffix('.mixer')
    for call, value in _calls(values, site):
      maps.setdefault(layer + call, value)
  return maps


def _mean_attention(models: Sequence[Any], prompt: Prompt) -> dict[str, Array]:
  # In the same program as the model, so that XLA drops all that no map needs.
  maps = _attention_maps(models, prompt)
  return {name: jnp.abs(value).mean(axis=0) for name, value in maps.items()}


class _Recorder(Replacement):
  """Hands the value of a tap to a function, and returns it."""

  def __init__(self, record: Callable[[Any], None]):
    super().__init__()
    self.record = record

  def __call__(self, value: Any) -> Any:
    value = self.tap(value)
    self.record(value)
    return value

  def show(self, value: Any) -> None:
    self.record(value)


def recorded(
  model: Any, prompt: Prompt, wanted: Collection[str]
) -> tuple[dict[str, Array], Array]:
  """The values at the wanted sites, and the prediction; to be traced."""
  trace = get_opaque_trace_state(convention='nnx')
  values: dict[str, list[Any]] = {}

  def record(site: str, value: Any) -> None:
    # A value of a compiled loop is none of the program around it.
    if get_opaque_trace_state(convention='nnx') == trace:
      values.setdefault(site, []).append(value)

  model = without_shortcuts(model)
  for place in places(model):
    if place.site in wanted:
      place.put(_Recorder(functools.partial(record, place.site)))
  prediction = model(prompt)
  captured = {}
  for site, calls in values.items():
    for i, value in enumerate(calls):
      captured |= _named(site if i == 0 else f'{site}@{i + 1}', value)
  return captured, prediction


def _tokens(model: Predictor, prompt: Prompt) -> dict[str, Array]:
  """The tokens between layers."""
  if isinstance(model, LinearAttention):
    return {'forward_tokens': model.forward_tokens(model.embed(prompt))}
  if isinstance(model, Layered):
    states = enumerate(model.layer_tokens(prompt))
    return {f'layer_tokens.{i}': tokens for i, tokens in states}
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
      weights = values.get(f'{name}.pattern{call}')  # that of an edited model, too
      if weights is None:
        weights = module.attention(tokens)
      if weights is not None:
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
