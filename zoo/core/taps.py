"""Taps: modules at which the values inside a model can be read and changed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, TypeVar

from flax import nnx

from zoo.core.errors import UserError, check_name

# The kinds of values inside a model. Instruments find a tap by its kind. There are two
# exceptions: `task_vectors` reads the sites whose names end in `.tokens`, and
# `attention_maps` looks for the input of a mixer of this library at `mixer.in`.
TAP_KINDS = (
  'guess',  # the initial guess of the labels
  'embed',  # the tokens that a prompt becomes
  'stream',  # the residual stream: tokens between layers, or within one
  'norm',  # the scale 1 / √(variance + ε) by which a norm multiplies
  'normed',  # tokens after a norm, which a mixer reads
  'query',
  'key',
  'value',
  'decay',  # the logarithm of the factor by which a state fades
  'strength',  # how much a token writes into a state, or erases from it
  'gate',  # the factors that multiply what heads have read
  'scores',  # the scores of attention, before the mask and the softmax
  'pattern',  # the weights of attention, after the softmax
  'read',  # what heads read from their values or states
  'heads',  # what heads give to the output matrix of their mixer
  'state',  # the memory of a recurrence after each token
  'neurons',  # the units of a network, before or after its nonlinearity
  'added',  # what a mixer, a network or a layer adds to the residual stream
  'readout',  # the outputs for each token, from which predictions are taken
)

_Value = TypeVar('_Value')
_Model = TypeVar('_Model', bound=nnx.Module)


class Tap(nnx.Module):
  """The identity, at a place of a model whose value has a name.

  A model calls its tap, as in `heads = self.heads_tap(heads)`. An instrument that reads
  or changes the value puts another module in place of the tap, in a copy of the model.
  The model itself computes what it would compute without taps.

  A module may skip a tap where a prediction does not need it, but only while its
  attribute `shortcuts` is true; copies whose values are read or changed have it false.

  Example:
    >>> tap = zoo.probing.Tap('heads', axes='b n h s', kind='heads')
    >>> tap(jnp.ones(2)).tolist()
    [1.0, 1.0]
  """

  def __init__(
    self,
    name: str | None = None,
    axes: str | None = None,
    *,
    kind: str | None = None,
    is_read_only: bool = False,
    is_on_demand: bool = False,
  ):
    """Makes a tap.

    Args:
      name: The name of the value in its module. None means the name of the attribute,
        without `_tap`. The site of the tap is the path of the module and the name, such
        as `layers.0.mixer.out`.
      axes: A letter for each axis of the value, such as 'b n h s': b prompts, n tokens,
        h heads. None means that nothing is known of the axes.
      kind: What the value is to the model, one of `zoo.probing.TAP_KINDS`. Instruments
        that need to know it, such as `attribution`, use it. None means that it has no
        kind.
      is_read_only: Whether no prediction depends on the value that the tap returns.
      is_on_demand: Whether the value is computed only if its site is asked for, as the
        states within a recurrence are.

    Raises:
      UserError: If the name is not one word, the axes are not different letters with
        blanks between them, or the kind is unknown.
    """
    letters = [] if axes is None else axes.split(' ')
    if any(len(letter) != 1 for letter in letters) or len({*letters}) < len(letters):
      raise UserError(
        f'axes is {axes!r}; it must be different letters with blanks between them, as '
        "in 'b n w'"
      )
    if name is not None and (not name or ' ' in name):
      raise UserError(f'name is {name!r}; it must be one word, such as mixer.out')
    if kind is not None:
      check_name('kind', kind, TAP_KINDS)
    self.name, self.axes, self.kind = name, axes, kind
    self.is_read_only, self.is_on_demand = is_read_only, is_on_demand

  def __call__(self, value: _Value) -> _Value:
    """Returns the value."""
    return value


class Replacement(Tap):
  """A module that stands in place of a tap, in a copy of a model.

  Attributes:
    tap: The module that stood there before, which is called first.
    site: The site of the tap.
  """

  def __init__(self) -> None:
    super().__init__()
    self.tap, self.site = Tap(), ''

  def show(self, value: Any) -> None:
    """Shows readers a value that has already gone through the tap."""
    if isinstance(self.tap, Replacement):
      self.tap.show(value)


class Place(NamedTuple):
  """Where a tap is in a model.

  Attributes:
    site: The site of the tap.
    module: The module that holds the tap.
    key: The name of the attribute of that module, or the index in a list.
  """

  site: str
  module: Any
  key: Any

  @property
  def tap(self) -> Tap:
    """The tap."""
    if isinstance(self.module, nnx.List | nnx.Dict):
      return self.module[self.key]
    return getattr(self.module, self.key)

  def put(self, replacement: Replacement) -> None:
    """Puts a module in place of the tap."""
    tap = self.tap
    replacement.tap, replacement.site = tap, self.site
    replacement.name, replacement.axes = tap.name, tap.axes
    replacement.kind, replacement.is_read_only = tap.kind, tap.is_read_only
    replacement.is_on_demand = tap.is_on_demand
    put_child(self.module, self.key, replacement)


def put_child(module: Any, key: Any, child: nnx.Module) -> None:
  """Puts a child into a module, at an attribute or at an index of a list or dict."""
  if isinstance(module, nnx.List | nnx.Dict):
    module[key] = child
  else:
    setattr(module, key, child)


def places(model: nnx.Module) -> list[Place]:
  """Returns the places of a model's taps, by layer.

  Raises:
    UserError: If two taps have the same site.
  """
  by_site = {}
  for path, module in nnx.iter_modules(model):
    if isinstance(module, Replacement):
      continue  # The tap that it replaces is not a place of the model.
    is_container = isinstance(module, nnx.List | nnx.Dict)
    for key, child in nnx.iter_children(module):
      if not isinstance(child, Tap):
        continue
      if child.name is None:
        names = [*path, str(key).removesuffix('_tap')]
      else:
        names = [*(path[:-1] if is_container else path), child.name]
      site = '.'.join(map(str, names))
      if site in by_site:
        raise UserError(f'two taps of the model have the site {site!r}')
      by_site[site] = Place(site, module, key)
  return [by_site[site] for site in in_order(by_site)]


def in_order(names: Iterable[str]) -> list[str]:
  """Sorts names by layer and call numbers."""

  def key(name: str) -> list[tuple[int, str]]:
    parts = name.replace('@', '.').split('.')
    return [(int(part), '') if part.isdigit() else (-1, part) for part in parts]

  return sorted(names, key=key)


def without_shortcuts(model: _Model) -> _Model:
  """Returns a copy of a model that calls all of its taps; see `Tap`."""
  copy = nnx.clone(model)
  for _, module in nnx.iter_modules(copy):
    if getattr(module, 'shortcuts', False) is True:
      setattr(module, 'shortcuts', False)  # noqa: B010
  return copy


def is_edited(model: object) -> bool:
  """Says whether a module stands in place of one of a model's taps."""
  return isinstance(model, nnx.Module) and any(
    isinstance(module, Replacement) for _, module in nnx.iter_modules(model)
  )
