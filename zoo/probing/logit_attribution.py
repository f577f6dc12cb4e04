"""What each head and each network adds to a prediction."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from zoo.core.errors import UserError
from zoo.core.prompt import Prompt
from zoo.core.protocols import Predictor
from zoo.core.taps import in_order, places, put_child
from zoo.measure.predict import run_once
from zoo.models.layers import WITH_SCALE, normed
from zoo.probing.activations import put_back, recorded
from zoo.probing.checks import check_has_kind, sites_of_kind
from zoo.probing.edit import edited
from zoo.probing.reach import dead_sites, outputs_of, two_of


class Attribution(NamedTuple):
  """The terms of predictions: all contributions and the rest sum to the prediction.

  `attribution` returns it.

  Attributes:
    prediction: The predictions for the queries, `[b]`, or `[b, k]` for k outputs.
    contributions: The terms by site: `[b, h, *k]` for the h heads of a mixer, and
      `[b, *k]` for the output of a mixer, a network or a linear layer. In a looped
      model the names of later calls have a suffix, such as `@2`.
    rest: The term of the embedded tokens, the guess and all biases.
  """

  prediction: Float[Array, ' b *k']
  contributions: dict[str, Array]
  rest: Float[Array, ' b *k']


def attribution(model: Predictor, prompt: Prompt) -> Attribution:
  """Returns the direct contribution of each head and network to the predictions.

  A contribution is what a value adds to the prediction for the query through the
  residual stream and the readout alone, while the scale of the last norm is kept at its
  value in the forward pass. TransformerLens calls this direct logit attribution.

  Contributions are those of all values of the kind `heads`, and of the kind `added`. An
  `added` value that is computed directly from heads is left out, since it would be
  counted twice: `layers.0.mixer.heads` stands in place of `layers.0.mixer.out`.

  - Quantity: the terms f_s of a prediction f = Σ_s f_s + rest, for each prompt; an
    identity, without sampling.
  - Null: 0, for a head whose values or outputs are 0.

  Args:
    model: A model that adds these values to its tokens, and reads its prediction from
      the sum through at most one layer norm or RMS norm and linear maps.
    prompt: Prompts.

  Returns:
    The predictions, the contributions by site, and the rest.

  Raises:
    UserError: If the model has no tap of the kinds `heads` and `added`, or if its
      prediction is not a sum of their values, to half of the digits.

  Example:
    >>> model = zoo.models.Transformer(2, 4, num_layers=1, rngs=nnx.Rngs(0))
    >>> task = zoo.create_task('linear_regression', num_features=2, context_length=4)
    >>> prompt = task.sample(jax.random.key(0), 8)
    >>> parts = zoo.probing.attribution(model, prompt).contributions
    >>> {site: part.shape for site, part in parts.items()}  # 8 prompts, 2 heads
    {'layers.0.mixer.heads': (8, 2), 'layers.0.network.out': (8,)}

  References:
    Elhage et al., "A Mathematical Framework for Transformer Circuits", 2021.
  """
  why = 'whose values its prediction would be a sum of'
  check_has_kind(model, ('heads', 'added'), why)
  sites = _additive(model, prompt)
  function = functools.partial(_attribution, sites=sites)
  prediction, contributions, rest, is_read = run_once(function, [model], prompt)
  unread = [name for name in is_read if not is_read[name]]
  _check_read(model, prompt, sites, unread)
  total = rest
  for part in contributions.values():
    of_heads = part.ndim > prediction.ndim
    total = total + (part.sum(axis=1) if of_heads else part)
  scale = float(jnp.max(jnp.abs(prediction))) + float(
    sum(jnp.max(jnp.abs(part)) for part in contributions.values())
  )
  gap = float(jnp.max(jnp.abs(total - prediction)))
  if not gap <= float(jnp.finfo(prediction.dtype).eps) ** 0.5 * scale:
    raise UserError(
      f'the contributions to the prediction of {type(model).__name__} miss it by '
      f'{gap:.2g}; it is not read from a sum by one norm and linear maps'
    )
  return Attribution(prediction, contributions, rest)


def _attribution(
  models: Sequence[Any], prompt: Prompt, sites: Sequence[str]
) -> tuple[Array, dict[str, Array], Array, dict[str, Array]]:
  """Returns the prediction, its terms, the rest, and which values are read."""
  (model,) = models
  heads = sites_of_kind(model, 'heads')
  axes = {place.site: (place.tap.axes or '').split() for place in places(model)}
  values, prediction = recorded(model, prompt, sites)
  norms = _norm_inputs(model, prompt)

  def predict(parts: dict[str, Array]) -> Array:
    """Returns the prediction if the values at the sites are these."""
    copy = edited(model, put_back(parts, sites))
    _freeze(copy, norms)
    return copy(prompt)

  nothing = {name: jnp.zeros_like(value) for name, value in values.items()}
  rest = predict(nothing)
  # With the scale kept, the prediction is affine in the values: a slope times a value
  # is the contribution of the value.
  _, slope = jax.linearize(predict, nothing)
  contributions = {}
  for name, value in values.items():
    letters = axes[name.partition('@')[0]]
    if name.partition('@')[0] in heads and 'h' in letters:
      axis = letters.index('h')
      masks = jnp.eye(value.shape[axis], dtype=value.dtype)
      shape = [-1 if i == axis else 1 for i in range(value.ndim)]
      masks = masks.reshape(len(masks), *shape)
      parts = jax.vmap(
        lambda mask, name=name: slope(nothing | {name: mask * values[name]})
      )(masks)
      contributions[name] = jnp.moveaxis(parts, 0, 1)
    else:
      contributions[name] = slope(nothing | {name: value})

  def with_nan(chosen: Array) -> Array:
    parts = {
      name: jnp.where(chosen == i, jnp.nan, nothing[name]).astype(value.dtype)
      for i, (name, value) in enumerate(values.items())
    }
    return jnp.any(jnp.isnan(slope(parts)))

  is_read = jax.lax.map(with_nan, jnp.arange(len(values)))
  return prediction, contributions, rest, dict(zip(values, is_read, strict=True))


def _check_read(
  model: Any, prompt: Prompt, sites: Sequence[str], unread: Sequence[str]
) -> None:
  """Checks that no value reaches the prediction only through another one.

  Such a value is one that the readout ignores while the others are kept, but which
  changes the others.

  Raises:
    UserError: If there is such a value.
  """
  if not unread:
    return
  dead = dead_sites(model, prompt)
  for name in unread:
    site = name.partition('@')[0]
    if site in dead:
      continue

    def reached(models: Sequence[Any], prompt: Prompt, site: str = site) -> Any:
      (model,) = models
      noise = {site: lambda value: jnp.full_like(value, jnp.nan)}
      values, _ = recorded(edited(model, noise), prompt, sites)
      return {name: jnp.any(jnp.isnan(value)) for name, value in values.items()}

    others = run_once(reached, [model], prompt)
    through = [other for other in in_order(others) if others[other]]
    through = [other for other in through if other.partition('@')[0] != site]
    # Without others, the value only changes the scale of the last norm, which is kept.
    if through:
      raise UserError(
        f'the value at {name!r} reaches the prediction only through that at '
        f'{through[0]!r}, which is attributed as a whole; the tap of one of them must '
        'be of another kind than heads and added'
      )


def _additive(model: Any, prompt: Prompt) -> list[str]:
  """Returns the sites of what is added to the tokens.

  The sites of heads stand in place of the outputs of their mixers, so that nothing is
  counted twice.
  """
  heads, added = (sites_of_kind(model, kind) for kind in ('heads', 'added'))
  mixers = outputs_of(model, two_of(prompt), heads) if added else ()
  return in_order([*heads, *(site for site in added if site not in mixers)])


class _Norm(nnx.Module):
  """A module around a norm; a function decides what it returns."""

  def __init__(self, norm: Any, call: Callable[[Any, Array], Array]):
    self.norm, self.call = norm, call

  def __call__(self, inputs: Array, **arguments: Any) -> Array:
    return self.call(self.norm, inputs)


def _replace_norms(model: Any, call: Callable[[Any, Array], Array]) -> None:
  """Puts a `_Norm` around each norm of a model; changes the model."""
  for _, module in [*nnx.iter_modules(model)]:
    for key, child in [*nnx.iter_children(module)]:
      if isinstance(child, WITH_SCALE) and not isinstance(module, _Norm):
        put_child(module, key, _Norm(child, call))


def _norm_inputs(model: Any, prompt: Prompt) -> list[Array]:
  """Returns the inputs of all norms, in the order of the calls."""
  inputs: list[Array] = []

  def call(norm: Any, array: Array) -> Array:
    inputs.append(array)
    return norm(array)

  copy = edited(model, {})
  _replace_norms(copy, call)
  copy(prompt)
  return inputs


def _freeze(model: Any, inputs: Sequence[Array]) -> None:
  """Keeps the scale of the last norm that a model calls; changes the model.

  The scale is computed from the last of `inputs`, those of the forward pass.
  """
  calls = iter(range(len(inputs)))

  def call(norm: Any, array: Array) -> Array:
    if next(calls) < len(inputs) - 1:
      return norm(array)
    scales: list[Array] = []

    def keep(scale: Array) -> Array:
      scales.append(scale)
      return scale

    normed(norm, inputs[-1], keep)
    return normed(norm, array, lambda scale: scales[0])

  _replace_norms(model, call)
