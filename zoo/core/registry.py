"""Names of models and tasks: a config names them, the registry builds them."""

import contextlib
import dataclasses
import functools
import inspect
import json
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from flax import nnx

from zoo.core import trees, values
from zoo.core.errors import UserError, check_name, unknown_name

_Entry = TypeVar('_Entry', bound=Callable)
_ARGUMENTS = '_constructor_arguments'  # the attribute that registered classes get


class Arguments(NamedTuple):
  """The constructor arguments of a model or a task."""

  values: dict[str, Any]  # those that JSON can hold; arrays and tuples are lists
  unrecorded: dict[str, str]  # the types of the others, by name


def recorded(
  given: Mapping[str, object], defaults: Mapping[str, object] | None = None
) -> Arguments:
  """The arguments by name; a default that JSON cannot hold is not recorded."""
  found = Arguments({}, {})
  for name, value in {**(defaults or {}), **given}.items():
    try:
      found.values[name] = _plain(value)
    except (TypeError, RuntimeError):
      if name in given:
        found.unrecorded[name] = type(value).__name__
  return found


def arguments_of(thing: object) -> Arguments | None:
  """The constructor arguments of an object of a registered class, if known."""
  if dataclasses.is_dataclass(thing):
    return recorded(trees.arguments(thing))
  text = getattr(thing, _ARGUMENTS, None)
  return None if text is None else Arguments(*json.loads(text))


def forget_arguments(thing: object) -> None:
  """Deletes the record of the constructor arguments, if there is one."""
  with contextlib.suppress(AttributeError):
    delattr(thing, _ARGUMENTS)


class Registry:
  """A table from names to classes, or to functions, of one kind."""

  def __init__(self, kind: str, of_functions: bool = False):
    """`kind` is the word for an entry in error messages, such as 'model'.

    Entries are classes, or functions if it is a table `of_functions`.
    """
    self.kind, self._of_functions = kind, of_functions
    self._entries: dict[str, Any] = {}

  def register(self, name: str) -> Callable[[_Entry], _Entry]:
    """A decorator that registers a class, or a function, under `name`.

    New objects of the class record their constructor arguments, which dataclasses have
    as fields, and those that are described by their annotations are checked. Raises
    UserError when another one has the name already, for what is no class, or no
    function, and without a name. A new definition of the same one, as by a notebook
    cell that is run twice, replaces the old one.
    """
    if not isinstance(name, str):
      raise UserError(
        f'the name of a {self.kind} is {name!r}; it must be text, as in '
        f"@zoo.register_{self.kind}('own')"
      )
    is_wanted, wanted = inspect.isclass, 'class'
    if self._of_functions:
      is_wanted, wanted = inspect.isfunction, 'function'

    def enter(entry: _Entry) -> _Entry:
      if not is_wanted(entry):
        raise UserError(f'the {self.kind} {name!r} is {entry!r}; it must be a {wanted}')
      existing = self._entries.get(name)
      if existing is not None and _full_name(existing) != _full_name(entry):
        raise UserError(
          f'{self.kind} {name!r} is already registered by {_full_name(existing)}; '
          f'choose another name for {_full_name(entry)}'
        )
      self._entries[name] = entry
      _record_arguments(entry)
      return entry

    return enter

  def names(self) -> list[str]:
    """The registered names, sorted."""
    return sorted(self._entries)

  def get(self, name: str) -> Any:
    """The entry under `name`; raises UserError with the nearest name if unknown."""
    return self._entries[check_registered(self.kind, name, self._entries)]

  def parameters(self, name: str) -> dict[str, inspect.Parameter]:
    """The parameters of the constructor under `name`; raises UserError as `get`."""
    return parameters(self.get(name))

  def create(self, name: str, **hyperparameters: object) -> Any:
    """Builds the class under `name`.

    Raises UserError for an unknown name, and for a hyper-parameter that is missing
    or unknown to that class.
    """
    cls = self.get(name)
    signature = inspect.signature(cls.__init__).parameters.values()
    parameters = self.parameters(name)
    takes_any = any(p.kind is p.VAR_KEYWORD for p in signature)
    for given in hyperparameters:
      if not takes_any:
        check_name(f'hyper-parameter of {self.kind} {name!r},', given, parameters)
    for wanted, parameter in parameters.items():
      if parameter.default is parameter.empty and wanted not in hyperparameters:
        raise UserError(
          f'{self.kind} {name!r} needs {wanted!r}, which is not given; it takes '
          f'{", ".join(parameters)}'
        )
    return cls(**hyperparameters)

  def section_of(
    self, thing: object, others: Collection[str] = ()
  ) -> dict[str, object]:
    """The name and the arguments that make an object, but for arguments in `others`.

    Raises UserError for a class that is not registered, and for arguments that are
    unknown or that JSON cannot hold.
    """
    cls = type(thing).__name__
    names = [name for name, entry in self._entries.items() if entry is type(thing)]
    if not names:
      raise UserError(
        f'{cls} is not registered as a {self.kind}; register it, so that it can be '
        f'loaded by name; known: {", ".join(self.names())}'
      )
    arguments = arguments_of(thing)
    if arguments is None:
      raise UserError(
        f'the arguments of this {cls} are unknown, since it was constructed before the '
        'class was registered; give a config instead'
      )
    for name, kind in arguments.unrecorded.items():
      if name not in others:
        raise UserError(
          f'the hyper-parameter {name!r} of {cls} is a {kind}, which cannot be saved; '
          'it must be None, a number, text, an array, or a list or dict of these'
        )
    own = arguments.values.items()
    return {'name': names[0], **{name: one for name, one in own if name not in others}}


def check_registered(kind: str, name: Any, known: Collection[str]) -> str:
  """Returns a registered name; raises UserError with the nearest for another."""
  if isinstance(name, str) and name in known:
    return name
  error = unknown_name(kind, name, known)
  for other in models, tasks, mixers:
    if name in other.names():
      raise UserError(f'{error}; {name!r} is a {other.kind}')
  raise UserError(f'{error} (--import=MODULE imports those of your own)')


def parameters(cls: type) -> dict[str, inspect.Parameter]:
  """The parameters of the constructor of a class, by name."""
  # Taken from `__init__`, which the signature of NNX's metaclass hides.
  _, *signature = inspect.signature(cls.__init__).parameters.values()
  variadic = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
  return {p.name: p for p in signature if p.kind not in variadic and p.name[0] != '_'}


def _full_name(entry: Any) -> str:
  return f'{entry.__module__}.{entry.__qualname__}'


def _record_arguments(cls: Any) -> None:
  """Makes a class's own `__init__` check and record its arguments."""
  # The fields of a dataclass are its arguments. Without a constructor there are none.
  if (
    not isinstance(cls, type)
    or dataclasses.is_dataclass(cls)
    or cls.__init__ is object.__init__
  ):
    return
  init = cls.__init__
  signature = inspect.signature(init)
  described = functools.cache(lambda: values.kinds(cls))

  @functools.wraps(init)
  def recording_init(self: object, *args: object, **kwargs: object) -> None:
    try:
      bound = signature.bind(self, *args, **kwargs)
    except TypeError:  # the constructor raises a better error
      return init(self, *args, **kwargs)
    for name, kind in described().items():
      # An array is described alone, since its length is that of another argument.
      if name in bound.arguments and kind.check is not None and not kind.is_array:
        given = bound.arguments[name]
        if given is not None or signature.parameters[name].default is not None:
          bound.arguments[name] = kind.check(name, given)
    # A subclass records the arguments of its own constructor. They are read before the
    # constructor runs, which may change a list that it was given.
    text = _text(signature, bound) if type(self) is cls else None
    init(*bound.args, **bound.kwargs)
    if text is not None:
      setattr(self, _ARGUMENTS, text)

  cls.__init__ = recording_init
  if cls.__repr__ is nnx.Module.__repr__:  # which prints every array
    cls.__repr__ = _model_in_words  # pyright: ignore[reportAttributeAccessIssue]


def _model_in_words(model: object) -> str:
  """The class and the arguments that are not those by default, on one line."""
  made = arguments_of(model)
  if made is None:  # of a class that is not registered
    return f'{type(model).__name__}(…)'
  usual = {name: repr(one.default) for name, one in parameters(type(model)).items()}
  given = {name: made.values[name] for name in usual if name in made.values}
  parts = [
    f'{name}={trees.shown(content)}'
    for name, content in (given | made.values).items()
    if usual.get(name) != repr(content)
  ]
  return f'{type(model).__name__}({", ".join(parts)})'


def _text(signature: inspect.Signature, bound: inspect.BoundArguments) -> str:
  """What is recorded, as NNX keeps it when it splits, merges or clones a model."""
  _, *parameters = signature.parameters.values()
  given: dict[str, object] = {}
  for p in parameters:
    if p.name in bound.arguments:
      value = bound.arguments[p.name]
      given |= value if p.kind is p.VAR_KEYWORD else {p.name: value}
  defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
  return json.dumps(recorded(given, defaults), sort_keys=True)


_SCALARS = {bool, int, float, str}  # a list may have a million of them


def _plain(value: Any) -> object:
  """A copy that JSON can hold.

  Raises TypeError or RuntimeError if there is none, as of an array that is traced, or
  on devices of other processes.
  """
  match value:
    case None | bool() | int() | float() | str():
      return value
    case np.generic() | np.ndarray() | jax.Array():
      if jax.numpy.issubdtype(value.dtype, np.floating):  # also bfloat16, without loss
        return np.asarray(value, np.float64).tolist()
      if np.asarray(value).dtype.kind in 'biuU':
        return np.asarray(value).tolist()
    case list() | tuple():
      return [one if type(one) in _SCALARS else _plain(one) for one in value]
    case Mapping() if all(isinstance(key, str) for key in value):
      return {key: _plain(one) for key, one in value.items()}
  raise TypeError(type(value).__name__)


models = Registry('model')
tasks = Registry('task')
mixers = Registry('mixer')
