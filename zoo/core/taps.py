"""Taps: modules at which the values inside a model can be read and changed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, TypeVar

from flax import nnx

from zoo.core.errors import UserError, check_name

# What a value is to a model. Instruments go by the kind of a tap, never by its name.
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
  'gate',  # factors of what heads have read
  'scores',  # of attention, before the softmax
  'pattern',  # of attention, after it
  'read',  # what heads read of their values or states
  'heads',  # what heads give to the output matrix of their mixer
  'state',  # the memory of a recurrence after each token
  'neurons',  # of a network, before or after its nonlinearity
  'added',  # what a mixer, a network or a layer adds to the residual stream
  'readout',  # the outputs for each token, from which predictions are taken
)

_Value = TypeVar('_Value')
_Model = TypeVar('_Model', bound=nnx.Module)


class Tap(nnx.Module):
  """The identity, at a place of a model whose value has a name.

  A model calls it, as in `heads = self.heads_tap(heads)`. What reads or changes the
  value puts another module in its place, in a copy of the model; the model itself
  computes what it would without taps.

  A module that skips a tap where a prediction does not need it does so only while its
  attribute `shortcuts` is true; a copy whose values are read or changed has it false.
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
    """
    Args:
      name: that of the value in its module; None: the attribute's, without `_tap`. The
        site is the path of the module and the name, such as `layers.0.mixer.out`.
      axes: a letter for each axis of the value, such as `b n h s`: b prompts, n tokens,
        h heads. None: nothing is known of them.
      kind: what the value is to the model, one of `zoo.probing.TAP_KINDS`. Instruments
        that need to know it, such as `attribution`, go by it. None: it is of no kind.
      is_read_only: whether no prediction depends on the value that the tap returns.
      is_on_demand: whether the value is computed only where it is asked for by its
        site, as the states within a recurrence are.

    Raises UserError for other names, axes and kinds.
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
    return value


class Replacement(Tap):
  """A module that stands in place of a tap, in a copy of a model.

  Attributes:
    tap: what stood there before, which is called first.
    site: the site.
  """

  def __init__(self) -> None:
    super().__init__()
    self.tap, self.site = Tap(), ''

  def show(self, value: Any) -> None:
    """Hands on a value that has gone through the tap already, to what reads it."""
    if isinstance(self.tap, Replacement):
      self.tap.show(value)


class Place(NamedTuple):
  """Where a tap is in a model."""

  site: str
  module: Any  # that holds the tap
  key: Any  # of the tap there: an attribute, or an index of a list

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
  """The places of a model's taps, by layer; raises UserError for two of one name."""
  by_site = {}
  for path, module in nnx.iter_modules(model):
    if isinstance(module, Replacement):
      continue  # what it stands in place of is not a place of the model
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
  """A copy of a model that calls all of its taps; see `Tap`."""
  copy = nnx.clone(model)
  for _, module in nnx.iter_modules(copy):
    if getattr(module, 'shortcuts', False) is True:
      setattr(module, 'shortcuts', False)  # noqa: B010
  return copy


def is_edited(model: object) -> bool:
  """Whether something stands in place of one of a model's taps."""
  return isinstance(model, nnx.Module) and any(
    isinstance(module, Replacement) for _, module in nnx.iter_modules(model)
  )
