"""Checks of classes, which are abstract or final, and of objects."""

from collections.abc import Collection
from typing import Any

from zoo.core.errors import UserError


def from_zoo(definition: Any) -> bool:
  """Whether a class or a function is defined in this library, whose tests check it."""
  return definition.__module__.startswith('zoo.')


def check_parents(cls: type, root: Any, kind: str, bases: str) -> None:
  """Raises UserError for a subclass of a class below `root` without abstract methods.

  `kind` is the word for an object of such a class, such as 'model', and `bases` names
  what to subclass instead.
  """
  for parent in cls.__mro__[1:]:
    if issubclass(parent, root) and not parent.__abstractmethods__:
      raise UserError(
        f'{cls.__name__} is a subclass of the {kind} {parent.__name__}; a {kind} has '
        f'no subclasses: hold one as a field, and subclass {bases}'
      )


def check_subclass(
  cls: type, root: Any, kind: str, defaults: Collection[str] = ()
) -> None:
  """Raises UserError for a class below `root` that changes what another class computes.

  That is one that `check_parents` refuses, and one that defines anew a public method of
  `root`, unless this is abstract or one of `defaults`.
  """
  check_parents(cls, root, kind, root.__name__)
  layers = (one for one in root.__mro__ if from_zoo(one))
  names = (name for one in layers for name in vars(one))
  public = {name for name in names if name == '__call__' or name[0] != '_'}
  for name in sorted(public - root.__abstractmethods__ - {*defaults}):
    if name in vars(cls):
      raise UserError(
        f'{cls.__name__} defines {name}, which {root.__name__} has already; it must '
        f'define {", ".join(sorted(root.__abstractmethods__))} alone'
      )


def check_object(what: str, given: object, protocol: Any, needs: str) -> None:
  """Raises UserError unless `given` is an object, not a class, and has a protocol.

  `what` says in the message what is wanted, and `needs` what the object lacks.
  """
  if isinstance(given, type):
    raise UserError(f'{given.__name__} is a class, not {what}; create an object of it')
  if not isinstance(given, protocol):
    raise UserError(f'{type(given).__name__} is not {what}: {needs}')
