"""Described fields: the type, default, range and meaning of arguments and sections.

They stand in `typing.Annotated` for arguments of constructors, and in sections of
configs. Fields of tasks are described by their types alone.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Collection
from typing import (
  Annotated,
  Any,
  get_args,
  get_origin,
  get_type_hints,
)

from zoo.core.errors import (
  check_count,
  check_name,
  check_number,
  check_truth,
  check_vector,
  range_in_words,
)


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


# What these fields mean in every class that says nothing else about them.
_MEANINGS = {
  'num_features': 'Features of an example, d.',
  'context_length': 'Labelled examples of a prompt, C.',
  'noise_std': 'Standard deviation σ of the noise, in the units of the labels.',
  'prior_mean': 'Mean of the prior of w.',
}
# Of fields of tasks, which are declared by their annotations alone.
_PLAIN = {name: cls for cls in (bool, int, float, str) for name in (cls, cls.__name__)}


def _field(default: object, kind: Kind) -> Any:
  return dataclasses.field(default=default, metadata={'kind': kind})


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

  Of `kind` it may have `check`, `holds`, `allowed` and `about`.
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


def kinds(cls: type) -> dict[str, Kind]:
  """The kinds of a dataclass's fields, or of a constructor's described arguments.

  None of a constructor with an annotation that cannot be read at run time, such as a
  name that is imported for type checkers alone.
  """
  if dataclasses.is_dataclass(cls):
    described = {field.name: _kind(field) for field in dataclasses.fields(cls)}
    return {
      name: dataclasses.replace(kind, about=kind.about or _MEANINGS.get(name, ''))
      for name, kind in described.items()
      if name[0] != '_'
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
  if 'kind' in field.metadata:
    return field.metadata['kind']
  is_number = field.type in (float, 'float', 'Number')
  if is_number:
    return Kind(is_leaf=True, holds=float)
  is_vector = isinstance(field.type, str) and field.type.startswith('Vector')
  holds = _PLAIN.get(
    field.type if isinstance(field.type, type) else str(field.type), object
  )
  return Kind(is_leaf=is_vector, holds=holds, is_array=is_vector)
