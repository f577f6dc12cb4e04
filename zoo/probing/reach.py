"""What reaches what: whether results of a model depend on a value within it.

A result depends on a value if it changes, by more than rounding, when noise is added to
the value, and also changes when NaN is in its place. Noise alone would not do: an FFT
mixes the roundings of all tokens. NaN alone would not do either: it goes through a
mask, since 0 · NaN is NaN.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Int

from zoo.core.prompt import Prompt
from zoo.core.protocols import Predictor
from zoo.core.taps import Replacement, places, without_shortcuts
from zoo.measure.predict import run_once
from zoo.probing.activations import calls_of, put_back, recorded
from zoo.probing.checks import checked_module, sites_of_kind, wanted_sites

# The noise in each trial, in units of 1 + |value|. Much noise, of both signs, opens a
# unit that is below its threshold. With little noise no iteration diverges to NaN.
_NOISE = 0.01, 1.0, -10.0
# The trials of a value: unchanged, with noise of each size, and NaN.
_UNCHANGED, _NUM_TRIALS = 0, len(_NOISE) + 2
# A result has changed if it differs by so many roundings of its largest entry.
_ROUNDINGS = 100


class Exchange(Replacement):
  """Hands the value of a tap to a function, and goes on with what it returns."""

  def __init__(self, function: Callable[[Any], Any]):
    super().__init__()
    self.function = function

  def __call__(self, value: Any) -> Any:
    return self.function(self.tap(value))


def exchanged(model: nnx.Module, functions: Mapping[str, Callable[[Any], Any]]) -> Any:
  """Returns a copy of a model in which functions change the values at some sites.

  Unlike `edited` it checks nothing, and a value may be a tree of arrays.
  """
  copy = without_shortcuts(model)
  for place in places(copy):
    if place.site in functions:
      place.put(Exchange(functions[place.site]))
  return copy


def dead_sites(
  model: Predictor, prompt: Prompt, sites: Sequence[str] | None = None
) -> list[str]:
  """Returns the sites whose values do not reach the predictions for the queries.

  A value reaches the predictions if noise that is added to it changes any of them by
  more than rounding, and NaN in its place changes any, too. For integers and booleans
  another value is put there. If a value is a tree of arrays, all of them are changed
  together.

  Args:
    model: An NNX module with taps.
    prompt: Prompts; a few are enough.
    sites: The sites to check. None means all of them, except those whose values are
      computed on demand.

  Returns:
    The names of the sites that reach no prediction.

  Raises:
    UserError: If the model is not an NNX module, or does not have one of the sites.

  Example:
    >>> saved = zoo.load('checkpoints/yq_lsa')
    >>> prompt = saved.task.sample(jax.random.key(0), 2)
    >>> zoo.probing.dead_sites(saved.model, prompt)
    []
  """
  module = checked_module(model)
  return unreached(module, dict.fromkeys(wanted_sites(model, sites), ...), prompt)


def unreached(model: nnx.Module, parts: Mapping[str, Any], prompt: Prompt) -> list[str]:
  """Returns the sites on whose parts no prediction depends.

  Args:
    model: A model with taps.
    parts: The part of the value at each site, an index as in NumPy. `...` is the whole
      value, which may also be a tree of arrays.
    prompt: Prompts; a few are enough.
  """
  sites = [*parts]

  def are_reached(models: Sequence[Any], prompt: Prompt) -> Bool[Array, ' s']:
    def predicted(row: Int[Array, ' 2']) -> Array:
      chosen, trial = row
      disturb = {}
      for i, site in enumerate(sites):
        of_site = jnp.where(chosen == i, trial, _UNCHANGED)
        of_leaf = functools.partial(_part_disturbed, parts[site], of_site)
        disturb[site] = functools.partial(jax.tree.map, of_leaf)
      return exchanged(models[0], disturb)(prompt)

    trials = range(1, _NUM_TRIALS)
    rows = [(0, _UNCHANGED), *((i, k) for i in range(len(sites)) for k in trials)]
    found = jax.lax.map(predicted, jnp.array(rows))
    of_sites = found[1:].reshape(len(sites), len(trials), *found.shape[1:])
    return jax.vmap(_has_changed, (None, 0))(found[0], of_sites)

  if not sites:
    return []
  reached = np.asarray(run_once(are_reached, [model], prompt))
  return [
    site for site, is_reached in zip(sites, reached, strict=True) if not is_reached
  ]


def depends(
  results_in: Callable[[Int[Array, '']], list[Array]],
) -> Bool[Array, '']:
  """Returns whether any of several results depends on a value.

  It is called within a function that JAX traces. A value behind a threshold may be felt
  at a certain new value alone, so this value is tried beside noise.

  Args:
    results_in: A function that returns the results if the value is as `in_trial`
      returns it for the number of a trial.
  """
  # One program computes all of them, so that most equal results have equal bits.
  trials = [_UNCHANGED, _NUM_TRIALS, *range(1, _NUM_TRIALS)]
  results = jax.lax.map(results_in, jnp.array(trials))
  return jnp.any(jnp.stack([_has_changed(of[0], of[1:]) for of in results]))


def in_trial(
  trial: Int[Array, ''], mask: Bool[Array, ...], value: Array, new: Array
) -> Array:
  """Returns a value in a trial of `depends`; `new` is the value tried beside noise."""
  disturbed = _disturbed(mask, trial % _NUM_TRIALS, value)
  return jnp.where(mask & (trial == _NUM_TRIALS), new, disturbed)


def readers(
  model: Predictor, prompt: Prompt, senders: Sequence[str]
) -> dict[str, list[str]]:
  """Returns which outputs of mixers and networks depend directly on some sites.

  Only direct dependence counts: the residual stream is kept. For this, all other values
  that are added to the stream are kept, and the values at all taps of the kinds `embed`
  and `stream` that can be edited and are single arrays.

  NaN alone decides here, since the question is how a model is connected: a head whose
  output matrix is 0 belongs to its mixer all the same.

  Args:
    model: A model with taps of the kind `added`.
    prompt: Prompts; two are enough.
    senders: Sites. Each of them in turn is set to NaN.

  Returns:
    For each sender the sites of the kind `added`, without the senders, whose values
    become NaN.
  """
  if not senders:
    return {}
  added = [site for site in sites_of_kind(model, 'added') if site not in senders]
  stream = [
    place.site
    for place in places(checked_module(model))
    if place.tap.kind in ('embed', 'stream')
    and not place.tap.is_read_only
    and place.site not in senders
  ]

  def moved(models: Sequence[Any], prompt: Prompt) -> Bool[Array, 's a']:
    (model,) = models
    values, _ = recorded(model, prompt, [*added, *stream])

    def moved_by(chosen: Int[Array, '']) -> Bool[Array, ' a']:
      are_nan = {site: jnp.array(False) for site in added}

      def keep(site: str, back: Callable[[Array], Array], value: Array) -> Array:
        are_nan[site] |= jnp.any(jnp.isnan(value))
        return back(value)

      def disturb(i: int, value: Array) -> Array:
        return jnp.where(chosen == i, jnp.full_like(value, jnp.nan), value)

      kept = {
        site: functools.partial(keep, site, back)
        for site, back in put_back(values, added).items()
      }
      noise = {site: functools.partial(disturb, i) for i, site in enumerate(senders)}
      held = put_back(values, [site for site in stream if calls_of(values, site)])
      exchanged(model, {**held, **kept, **noise})(prompt)
      return jnp.array([*are_nan.values()], bool)

    return jax.lax.map(moved_by, jnp.arange(len(senders)))

  are_moved = np.asarray(run_once(moved, [model], prompt))
  return {
    sender: [site for site, is_moved in zip(added, row, strict=True) if is_moved]
    for sender, row in zip(senders, are_moved, strict=True)
  }


def outputs_of(model: Predictor, prompt: Prompt, heads: Sequence[str]) -> set[str]:
  """Returns the sites of the kind `added` that are computed directly from some heads.

  Args:
    model: A model with taps of the kind `added`.
    prompt: Prompts; two are enough.
    heads: The sites of the heads.
  """
  by_heads = readers(model, prompt, heads)
  return {site for of_heads in by_heads.values() for site in of_heads}


def two_of(prompt: Prompt) -> Prompt:
  """Returns two of the prompts, which show how a model is connected."""
  return jax.tree.map(lambda array: array[:2], prompt)


def values_given(
  model: Any,
  prompt: Prompt,
  given: Mapping[str, Callable[[Array], Array]],
  sites: Sequence[str],
) -> dict[str, Array]:
  """Returns the values at some sites while functions change the values at others.

  It is called within a function that JAX traces.
  """
  values = {}

  def keep(site: str, value: Array) -> Array:
    values[site] = value
    return value

  kept = {site: functools.partial(keep, site) for site in sites}
  exchanged(model, {**given, **kept})(prompt)
  return values


def reached_by_token(
  model: Predictor, prompt: Prompt, parts: Sequence[tuple[str, str]], last: str
) -> list[Bool[np.ndarray, 't n']]:
  """Returns which tokens of the stream reach which tokens of the parts that read it.

  Args:
    model: A model with taps.
    prompt: Prompts; two are enough.
    parts: For each part the site of what it adds to the stream, `[b, n, w]`, and the
      tap of the stream that it reads.
    last: The tap of the stream that the readout reads.

  Returns:
    For each part whether it depends, at the token t, on the stream at the token s. The
    last array, `[1, n]`, is that of the predictions.
  """
  streams = list(dict.fromkeys([stream for _, stream in parts] + [last]))

  def reached(models: Sequence[Any], prompt: Prompt) -> list[Bool[Array, 's t']]:
    (model,) = models
    values, _ = recorded(model, prompt, streams)

    def from_token(s: Int[Array, '']) -> list[Bool[Array, ' t']]:
      def results_in(trial: Int[Array, '']) -> list[Array]:
        def disturbed(stream: str) -> dict[str, Callable[[Array], Array]]:
          value = values[stream]
          is_chosen = (jnp.arange(value.shape[1]) == s)[None, :, None]
          new = _disturbed(jnp.broadcast_to(is_chosen, value.shape), trial, value)
          return {stream: lambda _: new}

        results = [
          values_given(model, prompt, disturbed(stream), [site])[site]
          for site, stream in parts
        ]
        prediction = exchanged(model, disturbed(last))(prompt)
        return [*results, prediction[:, None]]

      found = jax.lax.map(results_in, jnp.arange(_NUM_TRIALS))
      by_token = jax.vmap(_has_changed, in_axes=(1, 2))
      return [by_token(of[0], of[1:]) for of in found]

    return jax.lax.map(from_token, jnp.arange(values[last].shape[1]))

  return [np.asarray(of).T for of in run_once(reached, [model], prompt)]


def _part_disturbed(part: Any, trial: Int[Array, ''], value: Any) -> Array:
  """Returns a value with its part, an index as in NumPy, as it is in a trial."""
  value = jnp.asarray(value)
  return _disturbed(jnp.zeros(value.shape, bool).at[part].set(True), trial, value)


def _disturbed(mask: Bool[Array, ...], trial: Int[Array, ''], value: Array) -> Array:
  """Returns a value with its part in the mask as it is in one of the trials.

  Integers and booleans, which have no NaN, are another value in all trials but the
  first.
  """
  if jnp.issubdtype(value.dtype, jnp.inexact):
    # Noise in the place of an infinite value shows whether the value matters.
    finite = jnp.where(jnp.isfinite(value), value, 0)
    noise = jax.random.normal(jax.random.key(0), value.shape, value.dtype)
    noise *= 1 + jnp.abs(finite)
    noisy = [finite + jnp.asarray(size, noise.dtype) * noise for size in _NOISE]
    changed = [*noisy, jnp.full_like(value, jnp.nan)]
  elif value.dtype == bool:
    changed = [~value] * (_NUM_TRIALS - 1)
  else:
    changed = [value + 1] * (_NUM_TRIALS - 1)
  return jnp.where(mask, jax.lax.select_n(trial, value, *changed), value)


def _has_changed(before: Array, after: Array) -> Bool[Array, '']:
  """Returns whether results differ from those before, both with noise and with NaN.

  The last of the trials `after` is that of NaN; its first axis counts trials.
  """
  size = jnp.max(jnp.where(jnp.isfinite(before), jnp.abs(before), 0))
  # A result in half precision was rounded last: before that it was float32.
  eps = jnp.finfo(jnp.promote_types(before.dtype, jnp.float32)).eps
  differs = jnp.abs(after - before[None]) > _ROUNDINGS * eps * size
  differs |= jnp.isnan(before)[None] & ~jnp.isnan(after)
  by_noise = jnp.any(differs[:-1])
  return by_noise & jnp.any(differs[-1] | jnp.isnan(after[-1]))
