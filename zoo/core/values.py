"""Values: frozen dataclasses of described fields, which JAX maps over as pytrees.

A field is described once: its type, default, range and meaning. The same descriptions
stand in `typing.Annotated` for arguments of constructors, and in sections of configs.

Numbers and arrays are leaves, so that a compiled program takes them as arguments, and
tasks that differ only in them share it; sizes and names are part of its structure. A
number that is exactly 0 is, too: without noise there is another program.
"""

import dataclasses
import functools
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
  range_in_words,
)

_Class = TypeVar('_Class', bound=type)
_Value = TypeVar('_Value')
_CLASSES = weakref.WeakSet[type]()

# Fields that hold float64 arrays on the host, and take all that NumPy can convert.
Vector: TypeAlias = Any  # `[d]`; a number is repeated
Matrix: TypeAlias = Any  # `[d, d]`, or None for the identity


@dataclasses.dataclass(frozen=True)
class Kind:
  """What a field, or an argument of a constructor, may hold and means."""

  is_leaf: bool
  # Takes its name, what is given and, for arrays, d; returns what the field then holds,
  # or raises UserError.
  check: Callable[..., Any] | None = None
  holds: type = object  # the type of what a config has for it
  allowed: str = ''  # the range in words
  about: str = ''  # what it means, with its unit
  names: tuple[str, ...] = ()  # of which it is one, if it is a choice
  is_array: bool = False
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
_NUMBER = Kind(is_leaf=True, check=check_number, holds=float)
_STATIC = Kind(is_leaf=False)


def _field(default: object, kind: Kind, init: bool = True) -> Any:
  return dataclasses.field(default=default, init=init, metadata={'kind': kind})


def size(
  *,
  default: Any = dataclasses.MISSING,
  minimum: int = 1,
  maximum: int | float = math.inf,
  about: str = '',
) -> Any:
  """An integer in a range. If the default is None, so may be the value."""
  check = functools.partial(check_count, minimum=minimum, maximum=maximum)
  allowed = range_in_words(minimum, maximum=maximum)
  return _field(default, Kind(False, check, int, allowed, about))


def number(
  *,
  default: Any = dataclasses.MISSING,
  minimum: float = -math.inf,
  above: float = -math.inf,
  maximum: float = math.inf,
  about: str = '',
) -> Any:
  """A finite number in a range, a leaf. If the default is None, so may be the value."""
  ends = {'minimum': minimum, 'above': above, 'maximum': maximum}
  check, allowed = functools.partial(check_number, **ends), range_in_words(**ends)
  return _field(default, Kind(True, check, float, allowed or 'a number', about))


def choice(
  names: Collection[str], *, default: Any = dataclasses.MISSING, about: str = ''
) -> Any:
  """One of a few names."""
  check, allowed = functools.partial(check_name, known=names), ', '.join(names)
  return _field(default, Kind(False, check, str, allowed, about, names=tuple(names)))


def truth(*, default: Any = dataclasses.MISSING, about: str = '') -> Any:
  """True or False."""
  return _field(default, Kind(False, check_truth, bool, 'True or False', about))


def static(*, default: Any = dataclasses.MISSING, **kind: Any) -> Any:
  """A hashable object that is part of the structure, such as a pair of numbers.

  Of `kind` it may have `check`, `holds`, `allowed`, `about` and `found`.
  """
  return _field(default, Kind(is_leaf=False, **kind))


def options(*, about: str = '') -> Any:
  """Arguments by name, which are handed on; only for constructors."""
  return _field(dataclasses.MISSING, Kind(False, holds=dict, about=about))


def vector(*, default: Any = dataclasses.MISSING, about: str = '') -> Any:
  """Finite numbers `[d]`, with d the object's `num_features`; a leaf.

  As an argument of a constructor, which checks its length itself, it is described only.
  """
  allowed = 'a number, or one for each feature'
  kind = Kind(True, check_vector, allowed=allowed, about=about, is_array=True)
  return _field(default, kind)


def covariance(*, default: None, about: str = '') -> Any:
  """A covariance `[d, d]`, or None for the identity; a leaf."""
  allowed = 'a d × d matrix; None: the identity'
  kind = Kind(True, check_covariance, allowed=allowed, about=about, is_array=True)
  return _field(default, kind)


def leaf(*, default: Any = dataclasses.MISSING) -> Any:
  """An array, or another value whose leaves are those of this one."""
  return _field(default, Kind(is_leaf=True))


def derived(*, init: Literal[False] = False) -> Any:
  """A leaf that `__post_init__` computes from the other fields, by `set_field`."""
  return _field(None, Kind(is_leaf=True), init)


def derived_size(*, init: Literal[False] = False) -> Any:
  """An integer or a name that `__post_init__` sets from the others, by `set_field`."""
  return _field(None, Kind(is_leaf=False), init)


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
  try:
    cls = dataclasses.dataclass(frozen=True, eq=False, repr=False)(cls)
  except ValueError as error:  # for a default that may change
    said, *_ = str(error).split(':')
    raise UserError(f'{cls.__name__}: {said}; give a tuple or an array') from error
  # They are those of the fields, which hold other types than they take.
  cls.__init__.__annotations__.clear()
  for name, method in (('__eq__', _equal), ('__hash__', _hash), ('__repr__', _shown)):
    if name not in vars(cls):
      setattr(cls, name, method)
  jax.tree_util.register_pytree_with_keys(
    cls, _flatten, functools.partial(_unflatten, cls)
  )
  _CLASSES.add(cls)
  return cls


def _refuse_other_classes(cls: type) -> None:
  if '__dataclass_fields__' in vars(cls):
    raise UserError(f'{cls.__name__} is a dataclass already; remove that decorator')
  if '__init__' in vars(cls):
    raise UserError(
      f'{cls.__name__} has an __init__; it must list its arguments as fields, such as '
      '`num_features: int = 5`'
    )
  for one in cls.__mro__[1:-1]:
    own = vars(one)
    fields = any(isinstance(each, dataclasses.Field) for each in own.values())
    if one not in _CLASSES and ('__init__' in own or fields):
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


def set_field(owner: Any, name: str, content: object) -> None:
  """Sets a field within `__post_init__`; a value never changes afterwards.

  Raises UserError for a name that is not a field.
  """
  known = [each.name for each in dataclasses.fields(owner)]
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
  fields = dataclasses.fields(owner)
  return {field.name: getattr(owner, field.name) for field in fields if field.init}


def kinds(cls: type) -> dict[str, Kind]:
  """The kinds of a dataclass's fields, or of a constructor's described arguments.

  None of a constructor with an annotation that cannot be read at run time, such as a
  name that is imported for type checkers alone.
  """
  if dataclasses.is_dataclass(cls):
    found = {each.name: _kind(each) for each in dataclasses.fields(cls) if each.init}
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


def _kind(field: dataclasses.Field) -> Kind:
  plain = _NUMBER if field.type in (float, 'float') else _STATIC
  return field.metadata.get('kind', plain)


def _check_fields(owner: Any) -> None:
  for field in dataclasses.fields(owner):
    if not field.init:
      continue
    kind, content = _kind(field), getattr(owner, field.name)
    if content is None and field.default is None:
      continue
    if kind.check is not None:
      shape = (owner.num_features,) if kind.is_array else ()
      content = kind.check(field.name, content, *shape)
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
  leaves, names, static = [], [], []
  for field in dataclasses.fields(owner):
    content = getattr(owner, field.name)
    if _kind(field).is_leaf and not (isinstance(content, float) and content == 0):
      leaves.append((jax.tree_util.GetAttrKey(field.name), content))
      names.append(field.name)
    else:
      static.append((field.name, content))
  return leaves, (tuple(names), tuple(static))


def _unflatten(cls: type, structure: tuple, leaves: Any) -> Any:
  owner, (names, static) = object.__new__(cls), structure
  for name, content in (*zip(names, leaves, strict=True), *static):
    object.__setattr__(owner, name, content)
  return owner


def _equal(owner: Any, other: object) -> Any:
  """Whether both are of one class, and equal field by field."""
  if type(owner) is not type(other):
    return NotImplemented
  (ours, structure), (theirs, of_other) = map(jax.tree.flatten, (owner, other))
  return structure == of_other and all(
    np.array_equal(*pair) and len({np.asarray(each).dtype for each in pair}) == 1
    for pair in zip(ours, theirs, strict=True)
  )


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
