"""Taps: modules at which the values inside a model can be read."""

from __future__ import annotations

from typing import TypeVar

from flax import nnx

_Value = TypeVar('_Value')


class Tap(nnx.Module):
  """The identity, at a place of a model whose value has a name.

  A model calls it, as in `heads = self.heads_tap(heads)`. What reads the value puts
  another module in its place, in a copy of the model; the model itself computes what it
  would without taps.
  """

  def __init__(self, name: str | None = None):
    """`name` is that of the value in its module; None: the attribute's, without `_tap`.

    The site is the path of the module and the name, such as `layers.0.mixer.out`.
    """
    self.name = name

  def __call__(self, value: _Value) -> _Value:
    return value
