"""Which states can be saved: each array can be written, under a name of its own."""

import math

import jax
from jaxtyping import PyTree

from zoo.core.errors import UserError


def check_can_be_saved(state: PyTree) -> None:
  """Checks that each array of a state can be written, and has a name of its own.

  Args:
    state: Arrays, or their shapes and types.

  Raises:
    UserError: If two arrays have one name, so that one of them would be lost; or if an
      array is empty or of a type of less than 8 bits, which Orbax does not write.
  """
  leaves, _ = jax.tree_util.tree_flatten_with_path(state)
  names = set()
  for path, leaf in leaves:
    name = array_name(path)
    if name in names:
      raise UserError(
        f'two arrays have the same name {name!r} in a checkpoint, in which the parts '
        'of a path are joined by dots; rename an attribute or a key that has a dot'
      )
    names.add(name)
    if not math.prod(leaf.shape):
      raise UserError(
        f'the array {name} has the shape {tuple(leaf.shape)} and cannot be saved; it '
        'must have one entry at least'
      )
    if str(leaf.dtype).lstrip('u') in ('int2', 'int4', 'float4_e2m1fn'):
      raise UserError(
        f'the array {name} is of type {leaf.dtype} and cannot be saved; it must be of '
        'a type of 8 bits or more'
      )


def array_name(path: tuple) -> str:
  """Returns the name of an array in a state, or in Orbax's metadata of a state."""
  # Both paths end in the field of the variable that holds the array.
  name = jax.tree_util.keystr(path, simple=True, separator='.')
  return name.removesuffix('.value')
