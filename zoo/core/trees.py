"""What tasks and baselines share as frozen dataclasses that JAX maps over as pytrees."""

from __future__ import annotations

import dataclasses
import reprlib
from typing import Any, TypeVar

import jax
import numpy as np

_Owner = TypeVar('_Owner')


def arguments(owner: Any) -> dict[str, Any]:
  """The fields of a dataclass by name, but for those whose name begins with `_`."""
  names = [field.name for field in dataclasses.fields(owner)]
  return {name: getattr(owner, name) for name in names if name[0] != '_'}


def is_pytree(owner: object) -> bool:
  """Whether JAX knows how to map over an object, so that its arrays are arguments."""
  return not jax.tree_util.treedef_is_leaf(jax.tree.structure(owner))


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

  JAX 0.10.2 keeps the float32 buffer of a NumPy array that a function compiled without
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
