"""Edited models: copies in which the values at some sites are replaced."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, ArrayLike

from zoo.core.errors import UserError
from zoo.core.prompt import Prompt
from zoo.core.protocols import Predictor
from zoo.core.taps import Replacement, places, without_shortcuts
from zoo.measure.predict import run
from zoo.probing.activations import check_site, checked_module

_Model = TypeVar('_Model', bound=nnx.Module)


class EditValue(nnx.Variable):
  """An array of an edit: a leaf of the edited model, but none of its parameters."""


class Edit(Replacement):
  """A module that stands in place of a tap and changes its value by `change`."""

  @abc.abstractmethod
  def change(self, value: Array) -> Array:
    """The value that the model goes on with, of the same shape."""

  def __call__(self, value: Any) -> Any:
    value = self.tap(value)
    changed = self.change(value)
    if changed.shape != value.shape:
      raise UserError(
        f'the edit at the site {self.site!r} returns the shape {changed.shape}; it '
        f'must be {value.shape}'
      )
    return changed.astype(value.dtype)


class Set(Edit):
  """Sets a value, or a part of it."""

  def __init__(self, value: ArrayLike | Sequence[float], where: Any = None):
    """
    Args:
      value: an array that fits that part by the rules of broadcasting.
      where: the part, an index as in NumPy, such as `np.s_[:, -1]` for the last token
        of `[b, n, w]`, or `np.s_[:, :, 2]` for one head of `[b, n, h, s]`; None: all.
    """
    super().__init__()
    self.value = EditValue(jnp.asarray(value))
    self.where = _Index(where)

  def change(self, value: Array) -> Array:
    return self._at(value).set(self._fitted(value))

  def _at(self, value: Array) -> Any:
    return value.at[... if self.where.index is None else self.where.index]

  def _fitted(self, value: Array) -> Array:
    """The array of the edit in the type of the value; raises UserError for a misfit."""
    shape = jax.eval_shape(lambda: self._at(value).get()).shape
    try:
      fits = np.broadcast_shapes(self.value.shape, shape) == shape
    except ValueError:
      fits = False
    if not fits:
      raise UserError(
        f'the value of {type(self).__name__} at the site {self.site!r} has the shape '
        f'{self.value.shape}; it must fit {shape}'
      )
    return self.value[...].astype(value.dtype)


class Add(Set):
  """Adds to a value, or to a part of it; the arguments are those of `Set`."""

  def change(self, value: Array) -> Array:
    return self._at(value).add(self._fitted(value))


class Zero(Set):
  """Sets a value, or a part of it, to 0."""

  def __init__(self, where: Any = None):
    """`where` is that of `Set`."""
    super().__init__(0.0, where)


class Mean(Set):
  """Sets a value, or a part of it, to a mean over prompts."""

  def __init__(self, value: ArrayLike | Sequence[float], where: Any = None):
    """
    Args:
      value: the values of the whole site for some prompts, as `capture` returns them;
        their mean over the first axis is taken.
      where: that of `Set`.
    """
    mean = jnp.mean(jnp.asarray(value), axis=0, keepdims=True)
    super().__init__(mean, where)

  def _fitted(self, value: Array) -> Array:
    whole = jnp.broadcast_to(self._whole(value), value.shape).astype(value.dtype)
    return whole if self.where.index is None else whole[self.where.index]

  def _whole(self, value: Array) -> Array:
    """The array of the whole site; raises UserError for one of another shape."""
    if self.value.shape[1:] != value.shape[1:]:
      raise UserError(
        f'the value of {type(self).__name__} at the site {self.site!r} has the shape '
        f'{self.value.shape}; it must have that of the site, {value.shape}, but for '
        'the number of prompts'
      )
    return self.value[...]


class Resample(Mean):
  """Sets a value, or a part of it, to that of another prompt."""

  def __init__(self, value: ArrayLike | Sequence[float], where: Any = None):
    """
    Args:
      value: the values of the whole site for as many prompts, as `capture` returns
        them; each prompt gets that of the next one, and the last that of the first.
      where: that of `Set`.
    """
    Set.__init__(self, jnp.roll(jnp.asarray(value), -1, axis=0), where)

  def _whole(self, value: Array) -> Array:
    if self.value.shape != value.shape:
      raise UserError(
        f'the value of Resample at the site {self.site!r} has the shape '
        f'{self.value.shape}; it must have that of the site, {value.shape}'
      )
    return self.value[...]


class Apply(Edit):
  """Applies a function to a value."""

  def __init__(self, function: Callable[[Array], Array]):
    super().__init__()
    self.function = function

  def change(self, value: Array) -> Array:
    return self.function(value)


EditLike: TypeAlias = Edit | Callable[[Array], Array]


@dataclasses.dataclass(frozen=True, eq=False)
class _Index:
  """An index, compared by identity: slices have no hash before Python 3.12."""

  index: Any


def edited(
  model: _Model, edits: Mapping[str, EditLike], prompt: Prompt | None = None
) -> _Model:
  """A copy of a model whose values at some sites are changed, an ordinary model.

  The copy shares no array with the model. It computes all sites, so without edits it
  predicts the same but for rounding. An edit holds for every call of its site, as in
  each loop of a looped model; at a site that has one already, the new edit changes what
  the old one returns. Exact theory and `zoo.save` refuse an edited model.

  Args:
    model: a model with taps.
    edits: by site, one of `zoo.sites(model)`: `Set`, `Add`, `Zero`, `Mean`, `Resample`,
      a subclass of `Edit`, or a function of the value.
    prompt: prompts on which to try the edits; None: shapes are checked when the model
      is called.

  Raises UserError for an unknown site and for one whose value is only read; given
  prompts, also for a site that does not reach their prediction, and a shape that does
  not fit.
  """
  known = {place.site: place.tap for place in places(checked_module(model))}
  for site, edit in edits.items():
    check_site(site, list(known))
    if known[site].is_read_only:
      raise UserError(
        f'the site {site!r} does not reach the prediction; it can only be captured'
      )
    if not callable(edit):
      raise UserError(
        f'the edit at the site {site!r} is {edit!r:.80}; it must be Set, Add, Zero, '
        'Mean, Resample or a function'
      )
  if prompt is not None:
    for site in dead_sites(model, prompt):
      if site in edits:
        raise UserError(f'the site {site!r} does not reach the prediction')
  copy = without_shortcuts(model)
  for place in places(copy):
    if place.site in edits:
      edit = edits[place.site]
      place.put(nnx.clone(edit) if isinstance(edit, Edit) else Apply(edit))
  if prompt is not None:
    run(lambda models, prompt: models[0](prompt), [copy], prompt)
  return copy


def dead_sites(model: Predictor, prompt: Prompt) -> list[str]:
  """The sites that do not reach the predictions for the queries of some prompts.

  With NaN at such a site all these predictions are numbers still. Raises UserError
  unless the model is an NNX module.
  """

  def reaches(models: Sequence[Any], prompt: Prompt) -> Array:
    def is_nan(chosen: Array) -> Array:
      copy = without_shortcuts(models[0])
      for i, place in enumerate(places(copy)):
        place.put(Apply(lambda value, i=i: jnp.where(chosen == i, jnp.nan, value)))
      return jnp.any(jnp.isnan(copy(prompt)))

    return jax.lax.map(is_nan, jnp.arange(len(places(models[0]))))

  sites = [place.site for place in places(checked_module(model))]
  reached = np.asarray(run(reaches, [model], prompt))
  return [site for site, is_alive in zip(sites, reached, strict=True) if not is_alive]
