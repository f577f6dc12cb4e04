"""Edited models: copies in which the values at some sites are replaced."""

from __future__ import annotations

import abc
import dataclasses
import numbers
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
from zoo.core.taps import Replacement, places, without_shortcuts
from zoo.probing.activations import calls_of, recorded
from zoo.probing.checks import check_edit_site, takes, taps_of
from zoo.probing.reach import unreached

_Model = TypeVar('_Model', bound=nnx.Module)


def _mean_over_prompts(value: Array) -> Array:
  return jnp.mean(value, axis=0, keepdims=True)


def _of_next_prompt(value: Array) -> Array:
  return jnp.roll(value, -1, axis=0)


# What each kind of ablation puts in place of a value, as `Zero`, `Mean` and `Resample`
# do with the values of the same prompts.
ABLATED: dict[str, Callable[[Array], Array]] = {
  'zero': jnp.zeros_like,
  'mean': lambda value: jnp.broadcast_to(_mean_over_prompts(value), value.shape),
  'resample': _of_next_prompt,
}


class EditValue(nnx.Variable):
  """An array of an edit: a leaf of the edited model, but not one of its parameters."""


class Edit(Replacement):
  """A module that stands in place of a tap, and changes the value that passes there.

  A subclass defines `change`. For an edit without arrays of its own, a plain function
  of the value does the same (see `edited`).

  Example:
    >>> class Halve(zoo.probing.Edit):
    ...   def change(self, value):
    ...     return value / 2
    >>> model = zoo.models.Transformer(2, 4, num_layers=1, rngs=nnx.Rngs(0))
    >>> copy = zoo.probing.edited(model, {'layers.0.mixer.out': Halve()})
  """

  # The shapes of the arrays, which `edited` sets: within `nnx.scan` they would change.
  shapes: _Shapes | None = None

  @abc.abstractmethod
  def change(self, value: Array) -> Array:
    """Returns the value with which the model goes on.

    Args:
      value: The value at the site.

    Returns:
      An array of the same shape. If the value has no fraction (integers, booleans), the
      array must have the same type; otherwise it is converted to the type of the value.
    """

  def __call__(self, value: Any) -> Any:
    value = self.tap(value)
    if self.shapes is not None and _shapes_of(self) != self.shapes:
      raise UserError(_cut(self.site))
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


def _shapes_of(edit: Edit) -> _Shapes:
  """Returns the shapes of all arrays of an edit."""
  return _Shapes(tuple(jnp.shape(leaf) for leaf in jax.tree.leaves(nnx.state(edit))))


def _cut(site: str) -> str:
  """Returns the message for an edit with arrays within a compiled loop."""
  return (
    f'the edit at the site {site!r} has an array, and the site is within a compiled '
    'loop: nnx.scan cuts the array into one part for each layer, so there an edit must '
    'be a function without arrays of its own, or have a number'
  )


class Set(Edit):
  """An edit that sets a value, or a part of it, to a given array.

  Args:
    value: A number, or an array with the shape of the part. An array may also lack
      the first axis, that of the prompts, and then is the same for all prompts. No
      other axis is broadcast: an array without the axis of heads would otherwise
      silently be set at every head. Where that is wanted, use `np.broadcast_to`.
    where: The part, an index as in NumPy: `np.s_[:, -1]` is the last token of a value
      `[b, n, w]`, and `np.s_[:, :, 2]` is one head of a value `[b, n, h, s]`. None
      means the whole value.

  Example:
    >>> model = zoo.models.Transformer(2, 4, num_layers=1, rngs=nnx.Rngs(0))
    >>> last_token = np.s_[:, -1]
    >>> edits = {'layers.0.mixer.out': zoo.probing.Set(0.5, last_token)}
    >>> copy = zoo.probing.edited(model, edits)
  """

  def __init__(self, value: ArrayLike | Sequence[float], where: Any = None):
    """Makes the edit. The docstring of the class describes the arguments."""
    super().__init__()
    # A number is no leaf of the model: `nnx.scan` would cut it into one part for each
    # layer, as it cuts the arrays of a model.
    is_number = isinstance(value, numbers.Number | np.generic)
    self.value = _Number(value) if is_number else EditValue(jnp.asarray(value))
    self.where = _Index(where)

  def change(self, value: Array) -> Array:
    """Returns the value with the part set."""
    return value.at[self.index].set(self.new(value))

  @property
  def index(self) -> Any:
    """The index of the part."""
    return ... if self.where.index is None else self.where.index

  def new(self, value: Array) -> Array:
    """Returns the array that the edit puts into the part.

    Args:
      value: The value at the site.

    Raises:
      UserError: If the array of the edit does not fit the part, or if the type of the
        value cannot hold it.
    """
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
    """Returns the shape of the part.

    Args:
      value: The value at the site.

    Raises:
      UserError: If the index picks nothing, or is out of range.
    """
    # NumPy raises an error for an index out of range, where JAX would ignore it.
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
    """Converts to the type of the value; raises UserError if it cannot hold it."""
    if jnp.issubdtype(new.dtype, jnp.inexact) and not jnp.issubdtype(
      value.dtype, jnp.inexact
    ):
      raise UserError(
        f'the value of {type(self).__name__} at the site {self.site!r} is {new.dtype}; '
        f'it must be {value.dtype}'
      )
    return new.astype(value.dtype)


class Add(Set):
  """An edit that adds a given array to a value, or to a part of it.

  Args:
    value: What to add: a number or an array, as in `Set`.
    where: The part, an index as in `Set`. None means the whole value.

  Example:
    >>> model = zoo.models.Transformer(2, 4, num_layers=1, rngs=nnx.Rngs(0))
    >>> task = zoo.create_task('linear_regression', num_features=2, context_length=4)
    >>> prompt = task.sample(jax.random.key(0), 8)
    >>> site, last_token = 'layers.0.tokens', np.s_[:, -1]
    >>> steering = 0.5 * np.ones(64)  # 64 is the width of the residual stream.
    >>> copy = zoo.probing.edited(model, {site: zoo.probing.Add(steering, last_token)})
    >>> before = zoo.probing.capture(model, prompt, [site])[site]
    >>> change = zoo.probing.capture(copy, prompt, [site])[site] - before
    >>> bool(jnp.allclose(change[:, -1], 0.5)), float(jnp.abs(change[:, :-1]).max())
    (True, 0.0)
  """

  def change(self, value: Array) -> Array:
    """Returns the value with the array added to the part."""
    return value.at[self.index].add(self.new(value))


class Zero(Set):
  """An edit that sets a value, or a part of it, to 0: zero ablation.

  Args:
    where: The part, an index as in `Set`. None means the whole value.

  Example:
    >>> model = zoo.models.Transformer(2, 4, num_layers=1, rngs=nnx.Rngs(0))
    >>> task = zoo.create_task('linear_regression', num_features=2, context_length=4)
    >>> prompt = task.sample(jax.random.key(0), 8)
    >>> site, one_head = 'layers.0.mixer.heads', np.s_[:, :, 1]
    >>> copy = zoo.probing.edited(model, {site: zoo.probing.Zero(one_head)})
    >>> heads = zoo.probing.capture(copy, prompt, [site])[site]
    >>> float(jnp.abs(heads[:, :, 1]).max()), bool(jnp.abs(heads[:, :, 0]).max() > 0)
    (0.0, True)
  """

  def __init__(self, where: Any = None):
    """Makes the edit. The docstring of the class describes the arguments."""
    super().__init__(0, where)


class Mean(Set):
  """An edit that sets a value, or a part of it, to its mean over prompts.

  This is mean ablation.

  Args:
    value: The values of the whole site for some prompts, as `capture` returns them.
      The mean is over the first axis.
    where: The part, an index as in `Set`. None means the whole value.

  Example:
    >>> model = zoo.models.Transformer(2, 4, num_layers=1, rngs=nnx.Rngs(0))
    >>> task = zoo.create_task('linear_regression', num_features=2, context_length=4)
    >>> prompt = task.sample(jax.random.key(0), 8)
    >>> site = 'layers.0.mixer.heads'
    >>> values = zoo.probing.capture(model, prompt, [site])
    >>> copy = zoo.probing.edited(model, {site: zoo.probing.Mean(values[site])})
  """

  def __init__(self, value: ArrayLike | Sequence[float], where: Any = None):
    """Makes the edit. The docstring of the class describes the arguments."""
    super().__init__(_mean_over_prompts(jnp.asarray(value)), where)

  def new(self, value: Array) -> Array:
    """Returns the part of the mean.

    Args:
      value: The value at the site.

    Raises:
      UserError: If the mean does not have the shape of the value, apart from the axis
        of the prompts; if that axis is known not to be the first; or if the index of
        the part does not fit.
    """
    self.part(value)
    _check_prompts_first(self)
    if self.value.shape[1:] != value.shape[1:]:
      self.refuse(value.shape)
    mean = jnp.broadcast_to(self.value[...], value.shape)
    return self._typed(mean, value)[self.index]


class Resample(Set):
  """An edit that sets a value, or a part of it, to that of another prompt.

  This is resample ablation.

  Args:
    value: The values of the whole site, as `capture` returns them, for as many
      prompts as the edited model is called with. Each prompt gets the value of the
      next prompt, and the last prompt gets that of the first.
    where: The part, an index as in `Set`. None means the whole value.

  Example:
    >>> model = zoo.models.Transformer(2, 4, num_layers=1, rngs=nnx.Rngs(0))
    >>> task = zoo.create_task('linear_regression', num_features=2, context_length=4)
    >>> prompt = task.sample(jax.random.key(0), 8)
    >>> site = 'layers.0.mixer.heads'
    >>> values = zoo.probing.capture(model, prompt, [site])
    >>> copy = zoo.probing.edited(model, {site: zoo.probing.Resample(values[site])})
    >>> new = zoo.probing.capture(copy, prompt, [site])[site]
    >>> bool((new[0] == values[site][1]).all())
    True
  """

  def __init__(self, value: ArrayLike | Sequence[float], where: Any = None):
    """Makes the edit. The docstring of the class describes the arguments."""
    super().__init__(_of_next_prompt(jnp.asarray(value)), where)

  def new(self, value: Array) -> Array:
    """Returns the part of the value of the other prompts.

    Args:
      value: The value at the site.

    Raises:
      UserError: If the values of the edit do not have the shape of this value; if the
        axis of the prompts is known not to be the first; or if the index of the part
        does not fit.
    """
    self.part(value)
    _check_prompts_first(self)
    if self.value.shape != value.shape:
      self.refuse(value.shape)
    return self._typed(self.value[...], value)[self.index]


class Apply(Edit):
  """An edit that applies a function to a value."""

  def __init__(self, function: Callable[[Array], ArrayLike]):
    super().__init__()
    self.function = function

  def change(self, value: Array) -> Array:
    """Returns the function of the value; it may be a fixed array of NumPy."""
    changed: Any = self.function(value)
    return jnp.asarray(changed) if isinstance(changed, np.ndarray) else changed


def _edit_of(edit: EditLike) -> Edit:
  """Returns a new edit without arrays of the old one; a function becomes an `Apply`."""
  if isinstance(edit, Edit):
    return nnx.clone(edit)
  return Apply(nnx.clone(edit) if isinstance(edit, nnx.Module) else edit)


def _check_prompts_first(edit: Edit) -> None:
  if edit.axes is not None and edit.axes.split()[:1] != ['b']:
    raise UserError(
      f'the axes of the site {edit.site!r} are {edit.axes!r}; {type(edit).__name__} '
      'needs b, the prompts, first'
    )


class _Number:
  """A number of an edit, which can be read as an `EditValue` can."""

  shape = ()

  def __init__(self, value: Any):
    self.value = value

  def __getitem__(self, index: Any) -> Array:
    return jnp.asarray(self.value)[index]


EditLike: TypeAlias = Edit | Callable[[Array], ArrayLike]


@dataclasses.dataclass(frozen=True)
class _Shapes:
  """The shapes of the arrays of an edit, which are no arrays of the model."""

  of_arrays: tuple[tuple[int, ...], ...]


@dataclasses.dataclass(frozen=True, eq=False)
class _Index:
  """An index, compared by identity: slices have no hash before Python 3.12."""

  index: Any


def edited(
  model: _Model, edits: Mapping[str, EditLike], prompt: Prompt | None = None
) -> _Model:
  """Returns a copy of a model in which the values at some sites are changed.

  The copy is an ordinary model: it can be called, compiled and differentiated. It
  shares no array with the original. An edit holds for every call of its site, as in
  each loop of a looped model. If a site of `model` has been edited before, the new edit
  changes what the old one returns. A copy computes the values of all sites, while a
  model may skip some of them; without edits, its predictions therefore differ by
  rounding alone. Exact theory and `zoo.save` refuse an edited model.

  Args:
    model: A model with taps.
    edits: The edit of each site, by the name of the site, one of
      `zoo.probing.sites(model)`. An edit is a `Set`, `Add`, `Zero`, `Mean`, `Resample`,
      an instance of a subclass of `Edit`, or a function of the value. A function must
      be pure: it may be called more than once, and JAX may trace it. To read values,
      use `capture`. Within `nnx.scan`, which cuts all arrays of a model into those of
      its layers, an edit is a function without arrays of its own, or a `Zero`, `Set` or
      `Add` of a number.
    prompt: Prompts on which the edits are tried at once. None means that shapes are
      checked when the copy is called.

  Returns:
    The copy.

  Raises:
    UserError: If a site is unknown or its value can only be captured, or if an edit is
      none of these. With `prompt`, also if an edit does not reach the predictions, or
      does not fit the value.

  Example:
    >>> model = zoo.models.Transformer(2, 4, num_layers=1, rngs=nnx.Rngs(0))
    >>> edits = {
    ...   'layers.0.mixer.heads': zoo.probing.Zero(np.s_[:, :, 1]),  # one head
    ...   'layers.0.network.out': lambda value: 2 * value,
    ... }
    >>> copy = zoo.probing.edited(model, edits)
  """
  known = taps_of(model)
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
    if not isinstance(edit, Edit) and not takes(edit, 1):
      raise UserError(
        f'the edit at the site {site!r} is a function that cannot be called with one '
        'argument; an edit takes the value alone'
      )
  if prompt is not None:
    _check_reached(model, edits, prompt)
  return _with_edits(model, edits)


def _check_reached(
  model: nnx.Module, edits: Mapping[str, EditLike], prompt: Prompt
) -> None:
  """Raises UserError for an edit at a part that no prediction depends on."""

  def part_of(edit: EditLike) -> Any:
    return edit.index if isinstance(edit, Set) else ...

  parts = {site: part_of(edit) for site, edit in edits.items()}
  try:
    missed = unreached(_with_edits(model, edits), parts, prompt)
  except (IndexError, ValueError) as error:
    if isinstance(error, UserError):
      raise
    # `nnx.scan` refuses arrays whose first axis is not the number of layers. This is
    # the reason if the other edits work without them.
    values = jax.eval_shape(lambda: recorded(model, prompt, [*edits])[0])
    with_arrays = [
      site
      for site, edit in edits.items()
      if _shapes_of(_edit_of(edit)).of_arrays and not calls_of(values, site)
    ]
    if not with_arrays:
      raise
    others = {site: edit for site, edit in edits.items() if site not in with_arrays}
    try:
      whole = dict.fromkeys(with_arrays, ...)
      unreached(_with_edits(model, others), {**parts, **whole}, prompt)
    except (IndexError, ValueError):
      raise error from None
    raise UserError(_cut(with_arrays[0])) from error
  for site in missed:
    raise UserError(f'the edit at the site {site!r} does not reach the prediction')


def _with_edits(model: _Model, edits: Mapping[str, EditLike]) -> _Model:
  """Returns a copy of a model with edits in place of taps."""
  copy = without_shortcuts(model)
  for place in places(copy):
    if place.site in edits:
      edit = _edit_of(edits[place.site])
      place.put(edit)
      edit.shapes = _shapes_of(edit)
  return copy
