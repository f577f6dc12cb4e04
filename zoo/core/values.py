"""Values: frozen dataclasses of described fields, which JAX maps over as pytrees.

A field is described once: its type, default, range and meaning. The same descriptions
stand in `typing.Annotated` for arguments of constructors, and in sections of configs.

Numbers and arrays are leaves, so that a compiled program takes them as arguments, and
tasks that differ only in them share it; sizes and names are part of its structure. A
number that is exactly 0 is, too: without noise there is another program.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import reprlib
import weakref
from collections.abc import Callable, Collection, Mapping
from typing import (
  Annotated,
  Any,
  Literal,
  TypeAlias,
  TypeVar,
  dataclass_transform,
  get_args,
  get_origin,
  get_type_hints,
)

import jax
import numpy as np

from zoo.core.errors import (
  UserError,
  check_count,
  check_covariance,
  check_name,
  check_number,
  check_truth,
  check_vector,
)

_Class = TypeVar('_Class', bound=type)
_Value = TypeVar('_Value')
_CLASSES = weakref.WeakSet[type]()
# Of an object, the name of its field and what was given: what the field holds.
_Check = Callable[[Any, str, Any], Any]

# Fields that hold float64 arrays on the host, and take all that NumPy can convert.
Vector: TypeAlias = Any  # `[d]`; a number is repeated
Matrix: TypeAlias = Any  # `[d, d]`, or None for the identity


@dataclasses.dataclass(frozen=True)
class Kind:
  """What a field, or an argument of a constructor, may hold and means."""

  is_leaf: bool
  check: _Check | None = None  # raises UserError for what is not allowed
  is_array: bool = False
  holds: type = object  # the type of what a config has for it
  allowed: str = ''  # the range in words
  about: str = ''  # what it means, with its unit
  # Of the fields of a config, what a run records in place of this one.
  found: Callable[[Mapping[str, Any]], object] | None = None


# What these fields mean in every class that says nothing else about them.
_MEANINGS = {
  'num_features': 'Features of an example, d.',
  'context_length': 'Labelled examples of a prompt, C.',
  'noise_std': 'Standard deviation σ of the noise, in the units of the labels.',
  'prior_mean': 'Mean of the prior of w.',
}
# Of fields that are declared by their annotations alone.
_NUMBER = Kind(True, lambda _, name, given: check_number(name, given), holds=float)
_STATIC = Kind(False)


def _field(
  default: object, init: bool = True, is_leaf: bool = False, **kind: Any
) -> Any:
  metadata = {'kind': Kind(is_leaf, **kind)}
  if default is dataclasses.MISSING:
    return dataclasses.field(init=init, metadata=metadata)
  return dataclasses.field(default=default, init=init, metadata=metadata)


def size(
  *,
  default: Any = dataclasses.MISSING,
  minimum: int = 1,
  maximum: int | None = None,
  about: str = '',
) -> Any:
  """An integer in a range. If the default is None, so may be the value."""
  return _field(
    default,
    check=lambda _, name, given: check_count(name, given, minimum, maximum),
    holds=int,
    allowed=f'≥ {minimum}' if maximum is None else f'{minimum} to {maximum}',
    about=about,
  )


def number(
  *,
  default: Any = dataclasses.MISSING,
  minimum: float = -math.inf,
  above: float = -math.inf,
  maximum: float = math.inf,
  about: str = '',
) -> Any:
  """A finite number in a range, a leaf. If the default is None, so may be the value."""
  bounds = (('≥', minimum), ('>', above), ('≤', maximum))
  allowed = ' and '.join(
    f'{sign} {one:g}' for sign, one in bounds if math.isfinite(one)
  )
  return _field(
    default,
    is_leaf=True,
    check=lambda _, name, given: check_number(name, given, minimum, above, maximum),
    holds=float,
    allowed=allowed or 'a number',
    about=about,
  )


def choice(
  names: Collection[str], *, default: Any = dataclasses.MISSING, about: str = ''
) -> Any:
  """One of a few names."""
  return _field(
    default,
    check=lambda _, name, given: check_name(name, given, names),
    holds=str,
    allowed=', '.join(names),
    about=about,
  )


def truth(*, default: Any = dataclasses.MISSING, about: str = '') -> Any:
  """True or False."""
  return _field(
    default,
    check=lambda _, name, given: check_truth(name, given),
    holds=bool,
    allowed='True or False',
    about=about,
  )


def static(
  *,
  default: Any = dataclasses.MISSING,
  check: _Check | None = None,
  holds: type = object,
  allowed: str = '',
  about: str = '',
  found: Callable[[Mapping[str, Any]], object] | None = None,
) -> Any:
  """A hashable object that is part of the structure, such as a pair of numbers.

  A run records what is `found` from the fields of its config in place of this one.
  """
  described = {'holds': holds, 'allowed': allowed, 'about': about, 'found': found}
  return _field(default, check=check, **described)


def options(*, about: str = '') -> Any:
  """Arguments by name, which are handed on; only for constructors."""
  return _field(dataclasses.MISSING, holds=dict, about=about)


def vector(*, default: Any = dataclasses.MISSING, about: str = '') -> Any:
  """Finite numbers `[d]`, with d the object's `num_features`; a leaf.

  As an argument of a constructor, which checks its length itself, it is described only.
  """

  def check(owner: Any, name: str, given: object) -> object:
    if owner is None:
      return given
    return check_vector(name, given, owner.num_features).copy()

  return _field(
    default,
    is_leaf=True,
    check=check,
    is_array=True,
    allowed='a number, or one for each feature',
    about=about,
  )


def covariance(*, default: None, about: str = '') -> Any:
  """A covariance `[d, d]`, or None for the identity; a leaf."""
  return _field(
    default,
    is_leaf=True,
    check=lambda owner, name, given: check_covariance(name, given, owner.num_features),
    is_array=True,
    allowed='a d × d matrix; None: the identity',
    about=about,
  )


def leaf(*, default: Any = dataclasses.MISSING) -> Any:
  """An array, or another value whose leaves are those of this one."""
  return _field(default, is_leaf=True)


def derived(*, init: Literal[False] = False) -> Any:
  """A leaf that `__post_init__` computes from the other fields, by `set_field`."""
  return _field(None, init, is_leaf=True)


def derived_size(*, init: Literal[False] = False) -> Any:
  """An integer or a name that `__post_init__` sets from the others, by `set_field`."""
  return _field(None, init)


@dataclass_transform(
  frozen_default=True,
  eq_default=False,
  field_specifiers=(
    size,
    number,
    choice,
    truth,
    static,
    vector,
    covariance,
    leaf,
    derived,
    derived_size,
  ),
)
def value(cls: _Class) -> _Class:
  """A class decorator: objects are values, made of the fields that the class lists.

  A field that is none of the kinds above is a leaf if its annotation is `float`, and
  otherwise static. `__post_init__` is called after the fields have been checked. Raises
  UserError for a class with a constructor of its own.
  """
  _refuse_other_classes(cls)
  own = getattr(cls, '__post_init__', None)
  owner = next((one for one in cls.__mro__ if '__post_init__' in vars(one)), None)
  if owner not in _CLASSES:  # otherwise the parent checks the fields of its children

    def checked(self: Any) -> None:
      _check_fields(self)
      if own is not None:
        own(self)

    cls.__post_init__ = checked  # pyright: ignore[reportAttributeAccessIssue]
  cls = dataclasses.dataclass(frozen=True, eq=False, repr=False)(cls)
  # They are those of the fields, which hold other types than they take.
  cls.__init__.__annotations__.clear()
  for name, method in (('__eq__', _equal), ('__hash__', _hash), ('__repr__', _shown)):
    if name not in vars(cls):
      setattr(cls, name, method)
  jax.tree_util.register_pytree_with_keys(
    cls, _flatten, lambda static, leaves: _unflatten(cls, static, leaves)
  )
  _CLASSES.add(cls)
  return cls


def _refuse_other_classes(cls: type) -> None:
  if '__dataclass_fields__' in vars(cls):
    raise UserError(f'{cls.__name__} is a dataclass already; remove that decorator')
  for one in cls.__mro__[:-1]:
    if one in _CLASSES:
      continue
    has_init = '__init__' in vars(one)
    for name in one.__annotations__:
      if isinstance(content := vars(one).get(name), list | dict | set):
        raise UserError(
          f'the default of {one.__name__}.{name} is a {type(content).__name__}, which '
          'may change; use a tuple'
        )
    if has_init and one is cls:
      raise UserError(
        f'{cls.__name__} has an __init__; it must list its arguments as fields, such '
        'as `num_features: int = 5`'
      )
    fields = any(isinstance(each, dataclasses.Field) for each in vars(one).values())
    if one is not cls and (has_init or fields):
      raise UserError(
        f'{one.__name__}, from which {cls.__name__} is derived, has an __init__ or '
        'fields; decorate it with zoo.core.values.value'
      )


def is_value(thing: object) -> bool:
  """Whether an object's class is decorated with `value`."""
  return is_value_class(type(thing))


def is_value_class(cls: type) -> bool:
  """Whether a class is decorated with `value`; a subclass needs its own decorator."""
  return cls in _CLASSES


def set_field(owner: object, name: str, content: object) -> None:
  """Sets a field within `__post_init__`; a value never changes afterwards.

  Raises UserError for a name that is not a field.
  """
  known = [each.name for each in _fields(owner)]
  check_name(f'field of {type(owner).__name__}', name, known)
  _set(owner, name, content)


def _set(owner: object, name: str, content: object) -> None:
  object.__setattr__(owner, name, jax.tree.map(_read_only, content))


def _read_only(content: Any) -> Any:
  """An array that its giver cannot change; anything else as it is."""
  if isinstance(content, np.ndarray) and content.flags.writeable:
    content = content.copy()
    content.flags.writeable = False
  return content


def is_zero(content: object) -> bool:
  """Whether a number is exactly 0; a leaf of a compiled program never is."""
  return isinstance(content, int | float) and content == 0


def fresh(owner: _Value) -> _Value:
  """The same value with new views of its arrays, to be given to a compiled program.

  JAX 0.10.2 keeps the float32 buffer of a NumPy array that a function compiled without
  x64 has closed over, and would reuse it for the same array where x64 is enabled.
  """
  return jax.tree.map(
    lambda leaf: leaf.view() if isinstance(leaf, np.ndarray) else leaf, owner
  )


def arguments(owner: Any) -> dict[str, Any]:
  """The arguments of the constructor that makes an equal value."""
  return {each.name: getattr(owner, each.name) for each in _fields(owner) if each.init}


def kinds(cls: type) -> dict[str, Kind]:
  """The kinds of a dataclass's fields, or of a constructor's described arguments.

  None of a constructor with an annotation that cannot be read at run time, such as a
  name that is imported for type checkers alone.
  """
  if dataclasses.is_dataclass(cls):
    found = {each.name: _kind(each) for each in _fields(cls) if each.init}
    return {
      name: dataclasses.replace(kind, about=kind.about or _MEANINGS.get(name, ''))
      for name, kind in found.items()
    }
  try:
    annotations = get_type_hints(cls.__init__, include_extras=True)
  except NameError:
    return {}
  return {
    name: _kind(each)
    for name, annotation in annotations.items()
    if get_origin(annotation) is Annotated
    for each in get_args(annotation)[1:]
    if isinstance(each, dataclasses.Field)
  }


def _fields(owner: Any) -> tuple[dataclasses.Field, ...]:
  return dataclasses.fields(owner)


def _kind(field: dataclasses.Field) -> Kind:
  plain = _NUMBER if field.type in (float, 'float') else _STATIC
  return field.metadata.get('kind', plain)


def _check_fields(owner: Any) -> None:
  for field in _fields(owner):
    if not field.init:
      continue
    kind, content = _kind(field), getattr(owner, field.name)
    if content is None and field.default is None:
      continue
    if kind.check is not None:
      content = kind.check(owner, field.name, content)
    elif not kind.is_leaf:
      content = _hashable(field.name, content)
    _set(owner, field.name, content)


def _hashable(name: str, content: object) -> object:
  """A static field's content, with tuples in place of lists, which configs hold."""
  if isinstance(content, list | tuple):
    return tuple(_hashable(name, one) for one in content)
  try:
    hash(content)
  except TypeError:
    raise UserError(
      f'{name} is of type {type(content).__name__}; a field that is not a number must '
      'be hashable, or be declared as zoo.core.values.leaf()'
    ) from None
  return content


def _flatten(owner: Any) -> tuple[list[tuple[Any, Any]], tuple]:
  leaves, structure = [], []
  for field in _fields(owner):
    content = getattr(owner, field.name)
    if _kind(field).is_leaf and not (isinstance(content, float) and content == 0):
      leaves.append((jax.tree_util.GetAttrKey(field.name), content))
      structure.append(_LEAF)
    else:
      structure.append(content)
  return leaves, tuple(structure)


def _unflatten(cls: type, structure: tuple, leaves: Any) -> Any:
  owner, leaves = object.__new__(cls), iter(leaves)
  for field, content in zip(_fields(cls), structure, strict=True):
    content = next(leaves) if content is _LEAF else content
    object.__setattr__(owner, field.name, content)
  return owner


class _Leaf(enum.Enum):
  """Marks the place of a leaf, also in a copy of the structure."""

  HERE = 0


_LEAF = _Leaf.HERE


def _equal(owner: Any, other: object) -> Any:
  """Whether both are of one class, and equal field by field."""
  if type(owner) is not type(other):
    return NotImplemented
  ours, theirs = jax.tree.flatten(owner), jax.tree.flatten(other)
  return ours[1] == theirs[1] and all(
    np.array_equal(one, another) and _type(one) == _type(another)
    for one, another in zip(ours[0], theirs[0], strict=True)
  )


def _type(content: Any) -> object:
  return getattr(content, 'dtype', type(content))


def _hash(owner: Any) -> int:
  """The hash of all but the numbers."""
  return hash(jax.tree.structure(owner))


def _shown(owner: Any) -> str:
  """The class and its arguments, with the shapes of arrays, on one line."""
  parts = [f'{name}={shown(content)}' for name, content in arguments(owner).items()]
  return f'{type(owner).__name__}({", ".join(parts)})'


def shown(content: object) -> str:
  """A content in few letters: an array by its shape, or its number if all are equal."""
  if not isinstance(content, np.ndarray | jax.Array):
    # Long objects are cut, but for values, which cut their own fields.
    return repr(content) if is_value(content) else reprlib.repr(content)
  # The numbers of an array in a compiled program are not known.
  if (
    isinstance(content, np.ndarray)
    and content.size
    and (content == content.flat[0]).all()
  ):
    return f'{content.flat[0].item()!r}'
  return f'array of {" × ".join(map(str, content.shape))}'
