"""Names of models and tasks: a config names them, the registry builds them."""

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from zoo.errors import UserError, unknown_name

_Class = TypeVar('_Class', bound=type)


class Registry:
  """A table from names to classes of one kind."""

  def __init__(self, kind: str):
    """`kind` is the word for an entry in error messages, such as 'model'."""
    self.kind = kind
    self._classes: dict[str, type] = {}

  def register(self, name: str) -> Callable[[_Class], _Class]:
    """A class decorator that enters the class under `name`.

    Raises UserError when another class holds the name already. The same class
    defined anew, as by a notebook cell run twice, takes its own place.
    """

    def enter(cls: _Class) -> _Class:
      held = self._classes.get(name)
      if held is not None and _full_name(held) != _full_name(cls):
        raise UserError(
          f'{self.kind} {name!r} is registered already, by {_full_name(held)}; choose '
          f'another name for {_full_name(cls)}'
        )
      self._classes[name] = cls
      return cls

    return enter

  def names(self) -> list[str]:
    """The registered names, sorted."""
    return sorted(self._classes)

  def get(self, name: str) -> type:
    """The class under `name`; raises UserError with the nearest name if unknown."""
    if not isinstance(name, str) or name not in self._classes:
      raise unknown_name(self.kind, name, self._classes)
    return self._classes[name]

  def create(self, name: str, **hyperparameters: Any) -> Any:
    """Builds the class under `name`.

    Raises UserError for an unknown name, and for a hyper-parameter that is missing
    or unknown to that class.
    """
    cls = self.get(name)
    # Of `__init__`, since NNX hides it behind the signature of its metaclass.
    _, *signature = inspect.signature(cls.__init__).parameters.values()
    parameters = {
      p.name: p for p in signature if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    }
    takes_any = any(p.kind is p.VAR_KEYWORD for p in signature)
    for given in hyperparameters:
      if given not in parameters and not takes_any:
        raise unknown_name(
          f'hyper-parameter of {self.kind} {name!r},', given, parameters
        )
    for wanted, parameter in parameters.items():
      if parameter.default is parameter.empty and wanted not in hyperparameters:
        raise UserError(
          f'{self.kind} {name!r} needs {wanted!r}, which is not given; it takes '
          f'{", ".join(parameters)}'
        )
    return cls(**hyperparameters)


def _full_name(cls: type) -> str:
  return f'{cls.__module__}.{cls.__qualname__}'


models = Registry('model')
tasks = Registry('task')
