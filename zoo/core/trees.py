"""What tasks and baselines share as dataclasses that JAX maps over as pytrees."""

from __future__ import annotations

import dataclasses
import reprlib
from typing import Any, TypeAlias, TypeVar

import jax
import numpy as np
from flax import struct

from zoo.core.errors import UserError

_Owner = TypeVar('_Owner')

# Fields of numbers. JAX puts tracers, shapes and others in their place, so that types
# would be wrong when annotations are enforced.
Number: TypeAlias = Any
Vector: TypeAlias = Any  # `[d]`; in tasks also a number for all entries
Matrix: TypeAlias = Any  # `[d, d]`; in tasks None is the identity


@struct.dataclass(eq=False, repr=False)
class Tree:
  """The base of dataclasses that JAX maps over as pytrees, by `flax.struct.dataclass`.

  Two are equal if their classes, sizes, names and numbers are. JAX 0.10.1 takes a
  program of one dataclass for that of another, if a hash agrees in 7 bits, where both
  have equal fields that are not arrays. So the class is such a field; a `__post_init__`
  of a subclass calls this one.
  """

  _kind: type | None = struct.field(
    pytree_node=False, default=None, kw_only=True, repr=False
  )

  def __post_init__(self):
    object.__setattr__(self, '_kind', type(self))

  def __eq__(self, other: object) -> bool:
    return equal(self, other)

  def __hash__(self) -> int:
    return hash(jax.tree.structure(self))  # of all but the numbers

  def __repr__(self) -> str:
    return in_words(self)


def check_tree(owner: object) -> None:
  """Raises UserError for an object of a class that JAX cannot map over as such."""
  name = type(owner).__name__
  if not is_pytree(owner):
    raise UserError(f'{name} is no pytree; decorate it with flax.struct.dataclass')
  if isinstance(owner, Tree) and owner._kind is not type(owner):
    raise UserError(
      f'{name} has a __post_init__ that does not call super().__post_init__()'
    )


def arguments(owner: Any) -> dict[str, Any]:
  """The fields of a dataclass by name, but for those whose name begins with `_`."""
  names = [field.name for field in dataclasses.fields(owner)]
  return {name: getattr(owner, name) for name in names if name[0] != '_'}


def is_pytree(owner: object) -> bool:
  """Whether JAX knows how to map over an object, so that its arrays are arguments."""
  leaves = jax.tree.leaves(owner)
  return not (len(leaves) == 1 and leaves[0] is owner)


def equal(owner: object, other: object) -> bool:
  """Whether both are of one class, with equal sizes, names and numbers."""
  leaves, structure = jax.tree.flatten(owner)
  other_leaves, other_structure = jax.tree.flatten(other)
  return structure == other_structure and all(
    np.array_equal(*pair) and len({np.asarray(leaf).dtype for leaf in pair}) == 1
    for pair in zip(leaves, other_leaves, strict=True)
  )


def fresh(owner: _Owner) -> _Owner:
  """The same with new views of its arrays, to be given to a compiled program.

  JAX 0.10 keeps the float32 buffer of a NumPy array that a function compiled without
  x64 has closed over, and would reuse it for the same array where x64 is enabled.
  """
  return jax.tree.map(
    lambda leaf: leaf.view() if isinstance(leaf, np.ndarray) else leaf, owner
  )


def in_words(owner: Any) -> str:
  """The class and its arguments, with the shapes of arrays, on one line."""
  parts = [f'{name}={shown(content)}' for name, content in arguments(owner).items()]
  return f'{type(owner).__name__}({", ".join(parts)})'


def shown(content: object) -> str:
  """A content in few letters: an array by its shape, or its number if all are equal."""
  if not isinstance(content, np.ndarray | jax.Array):
    # Long objects are cut, but for dataclasses, which cut their own fields.
    is_cut = not dataclasses.is_dataclass(content)
    return reprlib.repr(content) if is_cut else repr(content)
  # The numbers of an array in a compiled program are not known.
  if (
    isinstance(content, np.ndarray)
    and content.size
    and (content == content.flat[0]).all()
  ):
    return f'{content.flat[0].item()!r}'
  return f'array of {" × ".join(map(str, content.shape))}'
