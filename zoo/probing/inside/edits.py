"""Edited models: copies in which the values at some sites are replaced."""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.errors import TracerArrayConversionError, TracerIntegerConversionError
from jaxtyping import Array, ArrayLike

from zoo.core.errors import UserError
from zoo.core.prompt import Prompt
from zoo.core.protocols import Predictor
from zoo.core.taps import Replacement, places, without_shortcuts
from zoo.measure.predict import run_once
from zoo.probing.inside.activations import (
  calls_of,
  check_edit_site,
  checked_module,
  recorded,
  sites_of_kind,
  wanted_sites,
)

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
    if not hasattr(value, 'shape'):
      raise UserError(
        f'the value at the site {self.site!r} is a {type(value).__name__}; an edit '
        'needs an array'
      )
    changed = self.change(value)
    shape = getattr(changed, 'shape', f'of a {type(changed).__name__}')
    if shape != value.shape:
      raise UserError(
        f'the edit at the site {self.site!r} returns the shape {shape}; it must be '
        f'{value.shape}'
      )
    if not jnp.issubdtype(value.dtype, jnp.inexact) and changed.dtype != value.dtype:
      raise UserError(
        f'the edit at the site {self.site!r} returns {changed.dtype}; it must be '
        f'{value.dtype}, as the value is'
      )
    return changed.astype(value.dtype)


class Set(Edit):
  """Sets a value, or a part of it."""

  def __init__(self, value: ArrayLike | Sequence[float], where: Any = None):
    """
    Args:
      value: a number, or an array of the shape of that part, or of its shape without
        the first axis, which is the same for all prompts. Other axes are not
        broadcast, since an array without heads, say, would be set at each of them;
        `np.broadcast_to` does that where it is wanted.
      where: the part, an index as in NumPy, such as `np.s_[:, -1]` for the last token
        of `[b, n, w]`, or `np.s_[:, :, 2]` for one head of `[b, n, h, s]`; None: all.
    """
    super().__init__()
    self.value = EditValue(jnp.asarray(value))
    self.where = _Index(where)

  def change(self, value: Array) -> Array:
    return value.at[self.index].set(self.new(value))

  @property
  def index(self) -> Any:
    """The index of the part."""
    return ... if self.where.index is None else self.where.index

  def new(self, value: Array) -> Array:
    """What the edit has for the part; raises UserError for a misfit."""
    shape = self.part(value)
    index = self.index[:1] if isinstance(self.index, tuple) else (self.index,)
    picks_one = any(isinstance(first, int | np.integer) for first in index)
    of_prompt = [] if picks_one or len(shape) < 2 else [shape[1:]]
    if self.value.shape not in [(), shape, *of_prompt]:
      alike = f', or {shape[1:]} for all prompts alike' if of_prompt else ''
      raise UserError(
        f'the value of {type(self).__name__} at the site {self.site!r} has the shape '
        f'{self.value.shape}; it must be a number, or have the shape {shape}{alike}; '
        'np.broadcast_to repeats it along other axes'
      )
    return self._typed(self.value[...], value)

  def part(self, value: Array) -> tuple[int, ...]:
    """The shape of the part; raises UserError for an index of nothing."""
    # JAX would drop what is out of range.
    whole, said = np.broadcast_to(False, value.shape), ''
    try:
      shape = whole[self.index].shape
    except (TracerArrayConversionError, TracerIntegerConversionError):
      return jax.eval_shape(lambda: value.at[self.index].get()).shape
    except (IndexError, TypeError, ValueError) as error:
      shape, said = (0,), f': {error}'
    if 0 in shape and 0 not in value.shape:
      raise UserError(
        f'where is {self.where.index!r:.60} at the site {self.site!r}; it must pick a '
        f'part of the shape {value.shape}{said}'
      )
    return shape

  def refuse(self, shape: tuple[int, ...]) -> NoReturn:
    """Raises the UserError for an array that does not fit a shape."""
    raise UserError(
      f'the value of {type(self).__name__} at the site {self.site!r} has the shape '
      f'{self.value.shape}; it must fit {shape}'
    )

  def _typed(self, new: Array, value: Array) -> Array:
    """In the type of the value, unless that cannot hold it."""
    if jnp.issubdtype(new.dtype, jnp.inexact) and not jnp.issubdtype(
      value.dtype, jnp.inexact
    ):
      raise UserError(
        f'the value of {type(self).__name__} at the site {self.site!r} is {new.dtype}; '
        f'it must be {value.dtype}'
      )
    return new.astype(value.dtype)


class Add(Set):
  """Adds to a value, or to a part of it; the arguments are those of `Set`."""

  def change(self, value: Array) -> Array:
    return value.at[self.index].add(self.new(value))


class Zero(Set):
  """Sets a value, or a part of it, to 0."""

  def __init__(self, where: Any = None):
    """`where` is that of `Set`."""
    super().__init__(0, where)


class Mean(Set):
  """Sets a value, or a part of it, to a mean over prompts."""

  def __init__(self, value: ArrayLike | Sequence[float], where: Any = None):
    """
    Args:
      value: the values of the whole site for some prompts, as `capture` returns them;
        their mean over the first axis is taken.
      where: that of `Set`.
    """
    super().__init__(jnp.mean(jnp.asarray(value), axis=0, keepdims=True), where)

  def new(self, value: Array) -> Array:
    self.part(value)
    _check_prompts_first(self)
    if self.value.shape[1:] != value.shape[1:]:
      self.refuse(value.shape)
    mean = jnp.broadcast_to(self.value[...], value.shape)
    return self._typed(mean, value)[self.index]


class Resample(Set):
  """Sets a value, or a part of it, to that of another prompt."""

  def __init__(self, value: ArrayLike | Sequence[float], where: Any = None):
    """
    Args:
      value: the values of the whole site for as many prompts, as `capture` returns
        them; each prompt gets that of the next one, and the last that of the first.
      where: that of `Set`.
    """
    super().__init__(jnp.roll(jnp.asarray(value), -1, axis=0), where)

  def new(self, value: Array) -> Array:
    self.part(value)
    _check_prompts_first(self)
    if self.value.shape != value.shape:
      self.refuse(value.shape)
    return self._typed(self.value[...], value)[self.index]


class Apply(Edit):
  """Applies a function to a value."""

  def __init__(self, function: Callable[[Array], Array]):
    super().__init__()
    self.function = function

  def change(self, value: Array) -> Array:
    return self.function(value)


def _check_prompts_first(edit: Edit) -> None:
  if edit.axes is not None and edit.axes.split()[:1] != ['b']:
    raise UserError(
      f'the axes of the site {edit.site!r} are {edit.axes!r}; {type(edit).__name__} '
      'needs b, the prompts, first'
    )


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
    edits: by site, one of `zoo.probing.sites(model)`: `Set`, `Add`, `Zero`, `Mean`,
      `Resample`, a subclass of `Edit`, or a function of the value.
    prompt: prompts on which to try the edits; None: shapes are checked when the model
      is called.

  Raises UserError for an unknown site and for one whose value is only read; given
  prompts, also for an edit that does not reach their predictions for the query, and for
  a shape that does not fit. Within `nnx.scan` only functions can be edits.
  """
  known = {place.site: place.tap for place in places(checked_module(model))}
  for site, edit in edits.items():
    check_edit_site(site, list(known))
    if known[site].is_read_only:
      raise UserError(
        f'the site {site!r} does not reach the prediction; it can only be captured'
      )
    if isinstance(edit, type) or not callable(edit):
      raise UserError(
        f'the edit at the site {site!r} is {edit!r:.80}; it must be a Set, Add, Zero, '
        'Mean, Resample or a function'
      )
  copy = without_shortcuts(model)
  for place in places(copy):
    if place.site in edits:
      edit = edits[place.site]
      place.put(nnx.clone(edit) if isinstance(edit, Edit) else Apply(edit))
  if prompt is not None:
    for site in _unreached(model, edits, prompt):
      raise UserError(f'the edit at the site {site!r} does not reach the prediction')
  return copy


def put_back(
  values: dict[str, Array], sites: Sequence[str]
) -> dict[str, Callable[[Array], Array]]:
  """Edits that put captured values back, call by call; each for one forward pass."""

  def of_site(site: str) -> Callable[[Array], Array]:
    calls = iter(calls_of(values, site))
    return lambda value: next(calls)

  return {site: of_site(site) for site in sites}


def dead_sites(
  model: Predictor, prompt: Prompt, sites: Sequence[str] | None = None
) -> list[str]:
  """The sites that do not reach the predictions for the queries of some prompts.

  `sites` are those in question; None is all but those that are computed on demand.

  With NaN at such a site all predictions are the same. Raises UserError unless the
  model is an NNX module.
  """
  module = checked_module(model)
  chosen = wanted_sites(model, sites)
  edits = {site: Apply(lambda value: value) for site in chosen}
  return _unreached(module, edits, prompt)


def readers(model: Predictor, prompt: Prompt, senders: Sequence[str]) -> list[str]:
  """What is added to the residual stream and depends on the value at some sites.

  Only direct dependence counts: everything else that is added stays as it is, so that
  the residual stream does not change. To be called with few prompts.

  Args:
    model: A model with taps of the kind `added`.
    prompt: Prompts.
    senders: Sites. Each is NaN in turn.

  Returns:
    The sites of the kind `added`, other than the senders, that any sender makes NaN.
  """
  added = [site for site in sites_of_kind(model, 'added') if site not in senders]

  def moved(models: Sequence[Any], prompt: Prompt) -> dict[str, Array]:
    (model,) = models
    values, _ = recorded(model, prompt, added)
    seen: dict[str, list[Array]] = {site: [] for site in added}

    def keep(site: str, back: Callable[[Array], Array], value: Array) -> Array:
      seen[site].append(jnp.any(jnp.isnan(value)))
      return back(value)

    kept = {
      site: functools.partial(keep, site, back)
      for site, back in put_back(values, added).items()
    }
    noise = {site: lambda value: jnp.full_like(value, jnp.nan) for site in senders}
    edited(model, {**kept, **noise})(prompt)
    return {site: jnp.any(jnp.stack(calls)) for site, calls in seen.items() if calls}

  is_moved = run_once(moved, [model], prompt)
  return [site for site in added if is_moved.get(site, False)]


def _unreached(
  model: nnx.Module, edits: Mapping[str, EditLike], prompt: Prompt
) -> list[str]:
  """The sites where an edit, beside the others, does not reach the predictions."""

  def predictions(models: Sequence[Any], prompt: Prompt) -> Array:
    def noisy(chosen: Array) -> Array:
      copy = without_shortcuts(models[0])
      for place in places(copy):
        if place.site in edits:
          is_chosen = chosen == [*edits].index(place.site)
          noisy = _Noisy(edits[place.site], is_chosen)
          place.put(noisy)
          noisy.edit.site, noisy.edit.axes = noisy.site, noisy.axes
      return copy(prompt)

    return jax.lax.map(noisy, jnp.arange(-1, len(edits)))

  if not edits:
    return []
  without, *changed = np.asarray(run_once(predictions, [model], prompt))
  return [
    site
    for site, prediction in zip(edits, changed, strict=True)
    if np.array_equal(prediction, without)  # NaN equals nothing
  ]


class _Noisy(Edit):
  """An edit that returns NaN at its part, or other integers, if it is chosen."""

  def __init__(self, edit: EditLike, is_chosen: Array):
    super().__init__()
    self.edit = nnx.clone(edit) if isinstance(edit, Edit) else Apply(edit)
    # In a function, since an array would be a leaf of the model.
    self.choose = lambda noise, value: jnp.where(is_chosen, noise, value)

  def change(self, value: Array) -> Array:
    changed = self.edit.change(value)
    index = self.edit.index if isinstance(self.edit, Set) else ...
    if not hasattr(changed, 'shape') or changed.shape != value.shape:
      return changed  # refused by the caller
    if jnp.issubdtype(changed.dtype, jnp.inexact):
      noise = changed.at[index].set(jnp.nan)
    elif changed.dtype == bool:
      noise = changed.at[index].set(~changed[index])
    else:
      noise = changed.at[index].add(1)
    return self.choose(noise, changed)
