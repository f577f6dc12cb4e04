"""The values within a model during its forward pass, and how to read them."""

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

from zoo.core.errors import UserError
from zoo.core.prompt import Prompt
from zoo.core.protocols import Layered, Predictor
from zoo.core.taps import Replacement, in_order, places, without_shortcuts
from zoo.measure.predict import run_once
from zoo.mixers.mixer import Mixer
from zoo.models.deep_lsa import SparseLayer
from zoo.models.linear_attention import LinearAttention, LinearLayer
from zoo.probing.checks import (
  check_values,
  checked_module,
  is_value_of,
  names_of_sites,
  no_array,
  sites_of_kind,
  taps_of,
  wanted_sites,
)


def sites(model: Predictor) -> list[str]:
  """Returns the names of the sites where values of a model can be read and changed.

  A site is the place of a tap (`zoo.core.taps.Tap`) in a model. Its name is the path of
  the module and the name of the value, such as `layers.0.mixer.heads`. The most used
  sites of this library's models are:

  - `guess` and `embed`: the initial guess of the labels, and the tokens of the prompt.
  - In a transformer, with the number of a layer in front, as in `layers.0.tokens`:
    `tokens`, the residual stream before the layer; `mixer.in`, `mixer.out` and
    `network.out`; `mixer.pattern` `[b, h, q, k]`, the weights of softmax and ReLU
    attention; `mixer.read` `[b, n, h, v]`, what the heads read of their states; and
    `mixer.heads`, what the heads give to the output matrix.
  - In linear attention: `keys`, `queries`, `values`, `scores` (key by query) and
    `update`, the terms of the equation of the paper.
  - In `lstm` and `gru`: `carries.0.0`, …, the arrays of the carry of each layer after
    each token, `[b, n, w]`.

  The documentation, docs/sites.md, lists all of them with their axes.

  Args:
    model: An NNX module.

  Returns:
    The names, sorted by layer. They include the sites whose values are computed on
    demand, such as the states of a recurrence.

  Raises:
    UserError: If the model is not an NNX module, or if two of its taps have the same
      name.

  Example:
    >>> model = zoo.models.Transformer(2, 4, num_layers=1, rngs=nnx.Rngs(0))
    >>> zoo.probing.sites(model)[:4]
    ['embed', 'final.norm', 'final.stream', 'guess']
  """
  return [*taps_of(model)]


def in_order_of_calls(
  model: Predictor, prompt: Prompt, sites: Sequence[str]
) -> list[str]:
  """Returns sites in the order in which a forward pass first calls their taps."""
  called: dict[str, None] = {}

  def note_calls() -> None:  # JAX sorts a dictionary that a function returns.
    values, _ = recorded(model, prompt, sites)
    called.update(dict.fromkeys(site_of(name, sites) for name in values))

  jax.eval_shape(note_calls)
  return [*called]


def site_of(name: str, sites: Collection[str]) -> str:
  """Returns the site to which a captured value belongs.

  Args:
    name: The name of a value, which is the site, then `@` and the number of the call
      from the second call on, and then, for an array in a tree, the path to it.
    sites: Sites, one of which the name begins with.

  Returns:
    That site.
  """
  of = [
    site for site in sites if name == site or name.startswith((f'{site}@', f'{site}.'))
  ]
  return max(of, key=len)


def calls_of(values: dict[str, Array], site: str) -> list[Array]:
  """Returns the values of all calls of a site, in the order of the calls."""
  names = [name for name in values if name.partition('@')[0] == site]
  return [values[name] for name in in_order(names)]


def put_back(
  values: dict[str, Array], sites: Sequence[str]
) -> dict[str, Callable[[Array], Array]]:
  """Returns edits that put captured values back, call by call.

  Each of them serves one forward pass alone, because it counts the calls.
  """

  def of_site(site: str) -> Callable[[Array], Array]:
    calls = iter(calls_of(values, site))

    def back(value: Array) -> Array:
      kept = next(calls, None)
      if kept is None:  # The tap is called, but its value could not be recorded.
        raise UserError(no_array(site, values))
      return kept

    return back

  return {site: of_site(site) for site in sites}


def capture(
  model: Predictor, prompt: Prompt, sites: Sequence[str] | None = None
) -> dict[str, Array]:
  """Returns the values at some sites of a model during one forward pass.

  The result is like the cache of `run_with_cache` in TransformerLens; the prediction is
  not returned. In a looped model a tap is called several times: the value of the first
  call has the name of the site, and those of later calls have the suffixes `@2`, `@3`,
  …. If a value is a tree of arrays, each array has its path behind a dot. Values inside
  a compiled loop or function, such as `jax.lax.scan`, `nnx.scan` and `nnx.jit`, cannot
  be read from outside, and are left out.

  Args:
    model: An NNX module with taps.
    prompt: Prompts.
    sites: Names from `sites(model)`, or names of single arrays of a tree, such as
      `carry.0`. None means all sites, except those whose values are computed on demand.

  Returns:
    The values by name, sorted by layer.

  Raises:
    UserError: If the model is not an NNX module, lacks one of the sites, or has no
      value there in a forward pass.

  Example:
    >>> model = zoo.models.Transformer(2, 4, num_layers=1, rngs=nnx.Rngs(0))
    >>> task = zoo.create_task('linear_regression', num_features=2, context_length=4)
    >>> prompt = task.sample(jax.random.key(0), 8)
    >>> values = zoo.probing.capture(model, prompt, ['layers.0.mixer.heads'])
    >>> values['layers.0.mixer.heads'].shape  # prompts, tokens, heads, size of a head
    (8, 9, 2, 32)
  """
  known, parents = [*taps_of(model)], None
  if sites is not None:
    sites = names_of_sites(sites)
    parents = [_parent(site, known) for site in sites]
  wanted = wanted_sites(model, parents)

  values = values_at(model, prompt, wanted, sites)
  if sites is None:
    return _in_order(values)
  chosen = {
    name: value
    for name, value in values.items()
    if any(is_value_of(name, site) for site in sites)
  }
  return _in_order(chosen)


def values_at(
  model: Predictor, prompt: Prompt, wanted: Sequence[str], asked: Sequence[str] | None
) -> dict[str, Array]:
  """Returns the values at the wanted sites, by name, from one compiled forward pass.

  Raises:
    UserError: If one of the names that a user has asked for has no value, or if there
      is no value at all.
  """

  def captured(models: Sequence[Any], prompt: Prompt) -> dict[str, Array]:
    return recorded(models[0], prompt, wanted)[0]

  values = run_once(captured, [model], prompt)
  check_values(values, wanted, asked)
  return values


def _parent(name: str, known: Sequence[str]) -> str:
  """Returns the site of an array in a tree, or the name if no site begins it."""
  if name in known:
    return name
  of = [site for site in known if name.startswith(f'{site}.')]
  return max(of, key=len, default=name)


def intermediates(model: Predictor, prompt: Prompt) -> dict[str, Array]:
  """Returns the values at all sites of a model, and quantities computed from them.

  In addition to the values of `capture` there are:

  - for linear attention `forward_tokens`, the tokens after the layer;
  - for a model with layers `layer_tokens.0`, …, the tokens before the first layer and
    after each layer;
  - for each mixer of a transformer `attention` `[b, h, n, n]`, query by key, and, if
    the mixer has a state, `state`: the parts of the state after each token, `[b, n,
    …]`. The mixer `ttt` has no attention, because its outputs are not linear in its
    values.

  Args:
    model: An NNX module.
    prompt: Prompts.

  Returns:
    The values by name.

  Raises:
    UserError: If the model is not an NNX module.

  Example:
    >>> model = zoo.models.Transformer(2, 4, num_layers=1, rngs=nnx.Rngs(0))
    >>> task = zoo.create_task('linear_regression', num_features=2, context_length=4)
    >>> prompt = task.sample(jax.random.key(0), 8)
    >>> values = zoo.probing.intermediates(model, prompt)
    >>> values['layers.0.mixer.attention'].shape
    (8, 2, 9, 9)
  """
  return run_once(_intermediates, [checked_module(model)], prompt)


def attention_maps(
  model: Predictor, prompt: Prompt
) -> dict[str, Float[Array, 'b h q k']]:
  """Returns the attention weights of each layer that has any.

  These layers are the mixers of a transformer that have `attention`, and the layers of
  `deep_lsa`. In a recurrent mixer the map is the linear map from values to outputs that
  the mixer computes. A module of your own has a map in two cases. It may have a tap of
  the kind `pattern` with the axes b, h, q and k in any order; without h there is one
  head. Or it may have a mixer of this library as its attribute `mixer`, if it passes
  the input of the mixer through a tap of the name `mixer.in`:
  `self.mixer(self.tap(tokens))` with `self.tap = Tap('mixer.in')`.

  Args:
    model: An NNX module.
    prompt: Prompts.

  Returns:
    The weights `[b, h, q, k]`, query by key, by the name of the layer. The dictionary
    is empty if no layer has attention.

  Raises:
    UserError: If the model is not an NNX module, or if a tap of the kind `pattern` has
      other axes.

  Example:
    >>> model = zoo.models.Transformer(2, 4, num_layers=1, rngs=nnx.Rngs(0))
    >>> task = zoo.create_task('linear_regression', num_features=2, context_length=4)
    >>> prompt = task.sample(jax.random.key(0), 8)
    >>> zoo.probing.attention_maps(model, prompt)['layers.0'].shape
    (8, 2, 9, 9)
  """
  return _in_order(run_once(_attention_maps, [checked_module(model)], prompt))


def mean_attention(
  model: Predictor, prompt: Prompt
) -> dict[str, Float[Array, 'h q k']]:
  """Returns the mean over prompts of the absolute values of `attention_maps`.

  The mean is computed in the same program as the model, so that the maps of all prompts
  are never in memory at once.

  Args:
    model: An NNX module.
    prompt: Prompts.

  Returns:
    The mean weights `[h, q, k]`, query by key, by the name of the layer.

  Raises:
    UserError: If the model is not an NNX module, or if a tap of the kind `pattern` has
      other axes than those of `attention_maps`.

  Example:
    >>> model = zoo.models.Transformer(2, 4, num_layers=1, rngs=nnx.Rngs(0))
    >>> task = zoo.create_task('linear_regression', num_features=2, context_length=4)
    >>> prompt = task.sample(jax.random.key(0), 8)
    >>> weights = zoo.probing.mean_attention(model, prompt)['layers.0']
    >>> round(float(weights[0, -1].sum()), 3)  # softmax weights sum to 1
    1.0
  """
  return _in_order(run_once(_mean_attention, [checked_module(model)], prompt))


def _in_order(maps: dict[str, Array]) -> dict[str, Array]:
  return {name: maps[name] for name in in_order(maps)}


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
  # A model of the user's own has its maps at taps of the kind `pattern`.
  taps = taps_of(models[0])
  for site in sites_of_kind(models[0], 'pattern'):
    layer = site.rpartition('.')[0].removesuffix('.mixer')
    for call, value in _calls(values, site):
      maps.setdefault(layer + call, _map_of(site, taps[site].axes, value))
  return maps


def _map_of(site: str, axes: str | None, value: Array) -> Float[Array, 'b h q k']:
  """Returns a value of the kind `pattern` with the axes `b h q k`.

  Raises:
    UserError: If the axes of its tap are others, or are not known to be these.
  """
  letters = [*'bhqk'] if axes is None else axes.split()
  if sorted(letters) not in (sorted('bhqk'), sorted('bqk')) or value.ndim != len(
    letters
  ):
    raise UserError(
      f'the axes of the site {site!r} are {axes!r}, and its value has the shape '
      f'{value.shape}; a tap of the kind pattern must have the axes b, h, q and k in '
      'any order, or b, q and k'
    )
  if 'h' not in letters:
    letters, value = [*letters, 'h'], value[..., None]
  return jnp.transpose(value, [letters.index(letter) for letter in 'bhqk'])


def _mean_attention(models: Sequence[Any], prompt: Prompt) -> dict[str, Array]:
  # The mean is in the program of the model, so that XLA drops what no map needs.
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
  """Returns the values at the wanted sites, and the prediction.

  It is called within a function that JAX traces.
  """
  trace = get_opaque_trace_state(convention='nnx')
  values: dict[str, list[Any]] = {}

  def record(site: str, value: Any) -> None:
    # A value of a compiled loop belongs to another trace, and cannot leave the loop.
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
  """Returns the tokens between the layers of a model."""
  if isinstance(model, LinearAttention):
    return {'forward_tokens': model.forward_tokens(model.embed(prompt))}
  if isinstance(model, Layered):
    states = enumerate(model.layer_tokens(prompt))
    return {f'layer_tokens.{i}': tokens for i, tokens in states}
  return {}


def _of_mixers(
  model: nnx.Module, values: dict[str, Array]
) -> Iterator[tuple[str, Array]]:
  """Yields the attention and the states of mixers, computed from their inputs.

  A forward pass does not compute them; only `intermediates` needs them.
  """
  for path, module in nnx.iter_modules(model):
    if not isinstance(module, Mixer):
      continue
    name = '.'.join(map(str, path))
    for call, tokens in _calls(values, f'{name}.in'):
      # In an edited model the tap has the pattern after the edit.
      weights = values.get(f'{name}.pattern{call}')
      if weights is None:
        weights = module.attention(tokens)
      if weights is not None:
        yield f'{name}.attention{call}', weights
      if module.causal and (start := module.initial_state(len(tokens))) is not None:
        states = _states(module, start, tokens)
        yield from _named(f'{name}.state{call}', states).items()


def _calls(values: dict[str, Array], name: str) -> list[tuple[str, Array]]:
  """Returns the values of a name, each with the suffix of its call.

  The suffix is empty for the first call, and `@2` for the second.
  """
  return [
    (key.removeprefix(name), value)
    for key, value in values.items()
    if key.partition('@')[0] == name
  ]


def _states(mixer: Mixer, start: PyTree, tokens: Float[Array, 'b n w']) -> PyTree:
  """Returns the states of a mixer after each token, `[b, n, …]`."""

  def step(state: PyTree, token: Float[Array, 'b w']) -> tuple[PyTree, PyTree]:
    _, state = mixer.step(token, state)
    return state, jax.tree.leaves(state)

  _, states = jax.lax.scan(step, start, jnp.swapaxes(tokens, 0, 1))
  # A count of tokens has no batch axis.
  states = [jnp.swapaxes(leaf, 0, 1) if leaf.ndim > 1 else leaf for leaf in states]
  return jax.tree.unflatten(jax.tree.structure(start), states)


def _named(name: str, value: PyTree) -> dict[str, Array]:
  """Returns the arrays of a value, by the name and the path within the value."""
  return {
    '.'.join([name, *(keystr((key,), simple=True) for key in path)]): jnp.asarray(leaf)
    for path, leaf in jax.tree.leaves_with_path(value)
  }
