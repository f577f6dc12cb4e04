"""The registered models, tasks and mixers: dicts from a name to a class.

A config names a class, and `create` or `create_task` builds an object of it. Decorators
enter classes of your own in these dicts, and return the classes unchanged. The
decorator of tasks, `register_task`, is in zoo/tasks/base.py.
"""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from inspect import Parameter, isfunction, signature
from typing import Any, TypeVar

from zoo.core import trees
from zoo.core.errors import UserError, check_name, in_one_line, unknown_name
from zoo.core.protocols import Task

_Class = TypeVar('_Class', bound=type)

MODELS: dict[str, type] = {}
TASKS: dict[str, type] = {}
MIXERS: dict[str, type] = {}

# A mixture that is made by its name alone has these tasks.
PARTS = (
  {'name': 'linear_regression', 'noise_std': 0.1},
  {'name': 'linear_regression', 'noise_std': 1.0},
)
_SIZES = 'num_features', 'context_length'


def register_model(name: str) -> Callable[[_Class], _Class]:
  """Returns a decorator that enters a class of models under a name.

  A class of your own that has the name is replaced without a warning, as when a cell of
  a notebook runs twice. The names of the library's own models are refused.

  Args:
    name: What configs call the class.

  Returns:
    The decorator, which returns the class unchanged.

  Raises:
    UserError: If the name is not a string. The decorator raises it, too, if the name is
      one of the library, or if the object that it decorates is not a class, or takes an
      argument called `name`.

  Example:
    >>> @zoo.register_model('always_zero')
    ... class AlwaysZero(nnx.Module):
    ...   def __init__(self, num_features: int, *, rngs: nnx.Rngs):
    ...     self.bias = nnx.Param(jnp.zeros(()))
    ...   def __call__(self, prompt):
    ...     return self.bias[...] + 0 * prompt.x_query[:, 0]
    >>> 'always_zero' in zoo.list_models()
    True
  """
  return entering('model', MODELS, name)


def register_mixer(name: str) -> Callable[[_Class], _Class]:
  """Returns a decorator that enters a class of mixers under a name.

  A class of your own that has the name is replaced without a warning, as when a cell of
  a notebook runs twice. Transformers that exist already keep the layers that they have.
  The names of the library's own mixers are refused.

  Args:
    name: What `config.model.mixer` calls the class.

  Returns:
    The decorator, which returns the class unchanged.

  Raises:
    UserError: If the name is not a string. The decorator raises it, too, if the name is
      one of the library, or if the object that it decorates is not a class.

  Example:
    >>> @zoo.register_mixer('own_attention')
    ... class OwnAttention(zoo.mixers.SoftmaxAttention):
    ...   pass
    >>> 'own_attention' in zoo.list_mixers()
    True
  """
  return entering('mixer', MIXERS, name)


def entering(
  kind: str,
  entries: dict[str, Any],
  name: object,
  function: bool = False,
  arguments: Sequence[str] | None = None,
  by_name: Sequence[str] = (),
) -> Callable[[Any], Any]:
  """Returns a decorator that enters a class or a function into a dict under a name.

  An entry that the dict has under this name is replaced, unless the library made it.

  Args:
    kind: What is entered, in messages, such as 'model'.
    entries: The dict.
    name: The name.
    function: Whether functions are entered instead of classes.
    arguments: The names of the arguments with which the library calls the functions.
      None leaves them unchecked.
    by_name: The names of further arguments, which are given by name to the functions
      that take them. All others need a default.

  Raises:
    UserError: If the name is not a string. The decorator raises it, too, if the name is
      one of the library; if the object that it decorates is not a class or, with
      `function`, not a function that takes the arguments; or if a model or a task takes
      an argument called `name`.
  """
  if not isinstance(name, str):
    raise UserError(
      f'the name of a {kind} is {name!r}; it must be text, as in '
      f"@zoo.register_{kind}('own')"
    )

  def enter(entry: Any) -> Any:
    if not (isfunction(entry) if function else isinstance(entry, type)):
      wanted = 'function' if function else 'class'
      raise UserError(f'the {kind} {name!r} is {entry!r}; it must be a {wanted}')
    if name in entries and is_of_library(entries[name]) and not is_of_library(entry):
      raise UserError(
        f'{name!r} is the name of the {kind} of the library; choose another one'
      )
    if kind in ('model', 'task') and 'name' in parameters(entry):
      raise UserError(
        f'the {kind} {name!r} takes an argument called name; rename it, since '
        f'config.{kind}.name is the name of the class'
      )
    if arguments is not None:
      taken = signature(entry)
      try:
        given = {argument: None for argument in by_name if argument in taken.parameters}
        taken.bind(*arguments, **given)
      except TypeError:
        hint = f'; others than {", ".join(by_name)} need a default' if by_name else ''
        raise UserError(
          f'the {kind} {name!r} takes {taken}; it must take the arguments '
          f'({", ".join(arguments)}){hint}'
        ) from None
    entries[name] = entry
    return entry

  return enter


def is_of_library(entry: Any) -> bool:
  """Returns whether a class or a function is defined in this library."""
  return entry.__module__.partition('.')[0] == __name__.partition('.')[0]


def create(
  kind: str,
  classes: Mapping[str, type],
  name: str,
  hyperparameters: Mapping[str, object],
) -> Any:
  """Builds an object of the class that is registered under a name.

  Args:
    kind: What the class is, in messages: 'model', 'task' or 'mixer'.
    classes: The registered classes of that kind.
    name: The name of the class.
    hyperparameters: The arguments of its constructor, by name.

  Returns:
    The object.

  Raises:
    UserError: If the name is unknown, if a hyper-parameter is missing, unknown to the
      class, or out of its range, or if `rngs` has no stream `params`.
  """
  cls = classes[check_registered(kind, name, classes)]
  known = parameters(cls)
  if not takes_any(cls):
    for hyperparameter in hyperparameters:
      check_name(f'hyper-parameter of {kind} {name!r},', hyperparameter, known)
  for needed, parameter in known.items():
    if parameter.default is parameter.empty and needed not in hyperparameters:
      raise UserError(
        f'{kind} {name!r} needs {needed!r}, which is not given; it takes '
        f'{", ".join(known)}'
      )
  rngs = hyperparameters.get('rngs')
  if 'rngs' in hyperparameters and not hasattr(rngs, 'params'):
    raise UserError(
      f'rngs is {in_one_line(repr(rngs), 80)}; it must have a stream params, as '
      'flax.nnx.Rngs(0) has'
    )
  return cls(**hyperparameters)


def create_mixer(name: str, **hyperparameters: object) -> Any:
  """Builds the mixer that is registered under a name.

  Args:
    name: The name.
    hyperparameters: The arguments of its constructor.

  Returns:
    The mixer.

  Raises:
    UserError: If the name is unknown, or a hyper-parameter is missing, unknown to the
      class, or out of its range.
  """
  return create('mixer', MIXERS, name, hyperparameters)


def check_registered(kind: str, name: Any, known: Collection[str]) -> str:
  """Returns a name that is registered.

  Args:
    kind: What has the name, in messages, such as 'model' or 'config.optimizer.name'.
    name: The name that a user gave.
    known: The registered names.

  Raises:
    UserError: If the name is unknown. The message suggests the nearest known one.
  """
  if isinstance(name, str) and name in known:
    return name
  error = unknown_name(kind, name, known)
  for other, classes in ('model', MODELS), ('task', TASKS), ('mixer', MIXERS):
    if isinstance(name, str) and name in classes:
      raise UserError(f'{error}; {name!r} is a {other}')
  raise UserError(
    f'{error} (--import=MODULE imports those of your own; in Python, register them '
    'first)'
  )


def takes_any(cls: type) -> bool:
  """Returns whether a class's constructor takes arguments of any name."""
  taken = signature(cls.__init__).parameters.values()
  return any(parameter.kind is parameter.VAR_KEYWORD for parameter in taken)


def parameters(cls: type) -> dict[str, Parameter]:
  """Returns the parameters of a class's constructor by name, in order.

  The annotations of a dataclass's parameters are those of its fields.
  """
  # The signature is that of `__init__`, which NNX's metaclass hides.
  _, *taken = signature(cls.__init__).parameters.values()
  variadic = Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD
  known = {
    parameter.name: parameter
    for parameter in taken
    if parameter.kind not in variadic and parameter.name[0] != '_'
  }
  if dataclasses.is_dataclass(cls):
    for field in dataclasses.fields(cls):
      if field.name in known:
        known[field.name] = known[field.name].replace(annotation=field.type)
  return known


def create_task(name: str, **fields: Any) -> Task:
  """Makes the task that is registered under a name, and checks it.

  Args:
    name: The name.
    fields: The arguments of the task. A `mixture` may have, in place of `tasks`, the
      argument `parts`: a tuple with the name and the fields of each task, as the
      sections of configs have them. Its `num_features` and `context_length` are those
      of all parts.

  Returns:
    The task.

  Raises:
    UserError: If the name is unknown, or a field is missing, unknown to the class, or
      out of its range.
  """
  if name == 'mixture' and 'tasks' not in fields:
    known = (*_SIZES, 'parts', 'weights')
    for field in fields:
      check_name("hyper-parameter of task 'mixture',", field, known)
    fields = fields_of_mixture(**fields)
  task = create('task', TASKS, name, fields)
  task.check()
  trees.check_tree(task)
  return task


def fields_of_mixture(
  parts: Any = PARTS,
  weights: Any = None,  # A list or a tuple of numbers may be given.
  num_features: int = 5,
  context_length: int = 10,
) -> dict[str, Any]:
  """Returns the fields of a mixture, from the sections of its tasks.

  Args:
    parts: Name and fields of each task of the mixture: a tuple of dictionaries, at
      least one. All tasks must have the same number of outputs, the same kind of labels
      and the same loss, and none may hold out prompts.
    weights: Positive numbers, one for each task. They are kept as probabilities,
      divided by their sum. None gives all tasks the same probability.
    num_features: Number of features d ≥ 1 of all tasks that have this field.
    context_length: Number of examples C ≥ 1 of all tasks.

  Raises:
    UserError: If `parts` is not a tuple of tasks, or if a task is unknown, has a field
      that is unknown or out of its range, or has a size of its own.
  """
  sizes = {'num_features': num_features, 'context_length': context_length}
  is_section = isinstance(parts, list | tuple) and all(
    isinstance(part, Mapping) and isinstance(part.get('name'), str) for part in parts
  )
  if not is_section or not parts:
    raise UserError(
      f'parts is {trees.shown(parts)}; it must be a tuple of tasks, such as '
      "({'name': 'linear_regression', 'noise_std': 0.1}, {'name': 'task_pool'})"
    )
  tasks = []
  for i, part in enumerate(parts):
    fields = dict(part)
    name = fields.pop('name')
    if repeated := sorted(fields.keys() & sizes.keys()):
      raise UserError(f'parts[{i}] has {repeated[0]}, which is that of the mixture')
    try:
      check_registered('task', name, TASKS)
      taken = parameters(TASKS[name])
      is_mixture = name == 'mixture'
      own = {size: n for size, n in sizes.items() if size in taken or is_mixture}
      tasks.append(create_task(name, **fields, **own))
    except UserError as error:
      raise UserError(f'parts[{i}], {name}: {error}') from None
  return {'tasks': tuple(tasks), 'weights': None if weights is None else tuple(weights)}
