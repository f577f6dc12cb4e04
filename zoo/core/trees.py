"""The base of tasks and baselines: dataclasses that JAX maps over as pytrees."""

from __future__ import annotations

import dataclasses
import reprlib
from typing import Any, TypeAlias, TypeVar

import jax
import numpy as np
from flax import struct

from zoo.core.errors import UserError

_Owner = TypeVar('_Owner')

# A field that is a number. JAX puts tracers, shapes and other objects in its place, so
# that a narrower type would be wrong where annotations are enforced.
Number: TypeAlias = Any
# A field `[d]`; in tasks it may also be one number for all entries.
Vector: TypeAlias = Any
Matrix: TypeAlias = Any  # A field `[d, d]`; in tasks None means the identity.


@struct.dataclass(eq=False, repr=False)
class Tree:
  """The base of dataclasses that JAX maps over as pytrees, by `flax.struct.dataclass`.

  Two objects are equal if their classes, sizes, names and numbers are equal. The class
  is a field, since JAX 0.10.1 may take a program of one dataclass for that of another:
  it does so if a hash agrees in 7 bits, and all fields that are not arrays are equal.
  So a `__post_init__` of a subclass must call this one.

  Example:
    >>> from flax import struct
    >>> @struct.dataclass(eq=False, repr=False)
    ... class Scale(zoo.core.trees.Tree):
    ...   factor: float
    >>> Scale(2.0) == Scale(2.0), Scale(2.0)
    (True, Scale(factor=2.0))
  """

  _kind: type | None = struct.field(
    pytree_node=False, default=None, kw_only=True, repr=False
  )

  def __post_init__(self):
    object.__setattr__(self, '_kind', type(self))

  def __eq__(self, other: object) -> bool:
    return equal(self, other)

  def __hash__(self) -> int:
    # The structure has everything but the numbers.
    return hash(jax.tree.structure(self))

  def __repr__(self) -> str:
    return in_words(self)


def check_tree(owner: object) -> None:
  """Checks that JAX can map over an object as a pytree.

  Raises:
    UserError: If its class is not a pytree, or has a `__post_init__` that does not call
      that of `Tree`; if a field that JAX maps over is neither an array nor a number.

  Example:
    >>> task = zoo.tasks.LinearRegression(num_features=2, context_length=3)
    >>> zoo.core.trees.check_tree(task)
  """
  name = type(owner).__name__
  if not is_pytree(owner):
    raise UserError(f'{name} is no pytree; decorate it with flax.struct.dataclass')
  if isinstance(owner, Tree) and owner._kind is not type(owner):
    raise UserError(
      f'{name} has a __post_init__ that does not call super().__post_init__()'
    )
  leaves, _ = jax.tree_util.tree_flatten_with_path(owner)
  for path, leaf in leaves:
    # Tracers and abstract arrays have a type of their numbers, too.
    if not isinstance(leaf, int | float | complex) and not hasattr(leaf, 'dtype'):
      field = jax.tree_util.keystr(path, simple=True, separator='.')
      raise UserError(
        f'{name}.{field} is of type {type(leaf).__name__}, and JAX maps over arrays '
        'and numbers alone; declare the field by '
        'flax.struct.field(pytree_node=False)'
      )


def arguments(owner: Any) -> dict[str, Any]:
  """Returns the fields of a dataclass by name, except those whose name begins with `_`.

  Example:
    >>> task = zoo.tasks.LinearRegression(num_features=2, context_length=3)
    >>> zoo.core.trees.arguments(task)['context_length']
    3
  """
  names = [field.name for field in dataclasses.fields(owner)]
  return {name: getattr(owner, name) for name in names if name[0] != '_'}


def is_pytree(owner: object) -> bool:
  """Says whether JAX knows how to map over an object, so that its arrays are arguments.

  Returns:
    False for an object that JAX takes as a single leaf.

  Example:
    >>> zoo.core.trees.is_pytree({'a': 1}), zoo.core.trees.is_pytree(print)
    (True, False)
  """
  leaves = jax.tree.leaves(owner)
  return not (len(leaves) == 1 and leaves[0] is owner)


def equal(owner: object, other: object) -> bool:
  """Says whether two objects are of one class, with equal sizes, names and numbers.

  Args:
    owner: A pytree.
    other: Another one.

  Returns:
    Whether the structures, and the types and values of all leaves, are the same.

  Example:
    >>> zoo.core.trees.equal({'a': np.ones(2)}, {'a': np.ones(2)})
    True
  """
  leaves, structure = jax.tree.flatten(owner)
  other_leaves, other_structure = jax.tree.flatten(other)
  return structure == other_structure and all(
    np.array_equal(*pair) and len({np.asarray(leaf).dtype for leaf in pair}) == 1
    for pair in zip(leaves, other_leaves, strict=True)
  )


def fresh(owner: _Owner) -> _Owner:
  """Returns an equal object with new views of its arrays, for a compiled program.

  JAX 0.10 keeps the float32 buffer of a NumPy array that a function compiled without
  x64 has closed over, and would reuse it for the same array where x64 is enabled.

  Example:
    >>> array = np.ones(2)
    >>> zoo.core.trees.fresh(array) is array
    False
  """
  return jax.tree.map(
    lambda leaf: leaf.view() if isinstance(leaf, np.ndarray) else leaf, owner
  )


def in_words(owner: Any) -> str:
  """Returns the class and its arguments on one line, with arrays by their shapes.

  Example:
    >>> rule = zoo.LearningRule.gradient_descent(np.arange(2.0), step_size=0.5)
    >>> zoo.core.trees.in_words(rule)[:35]
    'LearningRule(init=array of 2, updat'
  """
  parts = [f'{name}={shown(content)}' for name, content in arguments(owner).items()]
  return f'{type(owner).__name__}({", ".join(parts)})'


def shown(content: object) -> str:
  """Returns a short text for a field.

  An array is shown by its shape or, if all of its entries are equal, by their number.

  Example:
    >>> zoo.core.trees.shown(np.eye(2)), zoo.core.trees.shown(np.ones(3))
    ('array of 2 × 2', '1.0')
  """
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
