"""The registered models, tasks and mixers: dicts from a name to a class.

A config names a class, and `create` or `create_task` builds it. Classes of your
own are entered by decorators, that of tasks in zoo/tasks/base.py; nothing about them is
changed.
"""

import dataclasses
from collections.abc import Callable, Collection, Mapping
from inspect import Parameter, isfunction, signature
from typing import Any, TypeVar

from zoo.core import trees
from zoo.core.errors import UserError, check_name, unknown_name
from zoo.core.protocols import Task

_Class = TypeVar('_Class', bound=type)

MODELS: dict[str, type] = {}
TASKS: dict[str, type] = {}
MIXERS: dict[str, type] = {}

# Of a mixture that is made by name: the sections of its tasks.
PARTS = (
  {'name': 'linear_regression', 'noise_std': 0.1},
  {'name': 'linear_regression', 'noise_std': 1.0},
)
_SIZES = 'num_features', 'context_length'


def register_model(name: str) -> Callable[[_Class], _Class]:
  """A decorator that enters a class of models under a name.

  Args:
    name: what configs call it. A second class under the same name, as of a notebook's
      cell that is run twice, replaces the first.

  Raises UserError for a name that is no text, and for what is no class.
  """
  return entering('model', MODELS, name)


def register_mixer(name: str) -> Callable[[_Class], _Class]:
  """A decorator that enters a class of mixers under a name, as `register_model` does.

  Args:
    name: what `config.model.mixer` calls it.

  Raises UserError for a name that is no text, and for what is no class.
  """
  return entering('mixer', MIXERS, name)


def entering(
  kind: str, entries: dict[str, Any], name: object, function: bool = False
) -> Callable[[Any], Any]:
  """A decorator that enters a class, or a `function`, into a dict under a name.

  Raises UserError for a name, of a `kind` such as 'model', that is no text, and for
  what is no class, or no function.
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
    entries[name] = entry
    return entry

  return enter


def create(
  kind: str,
  classes: Mapping[str, type],
  name: str,
  hyperparameters: Mapping[str, object],
) -> Any:
  """Builds the class under a name.

  Args:
    kind: what the class is, in messages: 'model', 'task' or 'mixer'.
    classes: the registered classes of that kind.
    name: one of them.
    hyperparameters: the arguments of its constructor.

  Raises UserError for an unknown name, and for a hyper-parameter that is missing or
  unknown to that class.
  """
  cls = classes[check_registered(kind, name, classes)]
  known = parameters(cls)
  taken = signature(cls.__init__).parameters.values()
  if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in taken):
    for hyperparameter in hyperparameters:
      check_name(f'hyper-parameter of {kind} {name!r},', hyperparameter, known)
  for needed, parameter in known.items():
    if parameter.default is parameter.empty and needed not in hyperparameters:
      raise UserError(
        f'{kind} {name!r} needs {needed!r}, which is not given; it takes '
        f'{", ".join(known)}'
      )
  return cls(**hyperparameters)


def create_mixer(name: str, **hyperparameters: object) -> Any:
  """Builds the mixer under a name; raises UserError as `create` does."""
  return create('mixer', MIXERS, name, hyperparameters)


def check_registered(kind: str, name: Any, known: Collection[str]) -> str:
  """Returns a registered name; raises UserError with the nearest for another.

  Args:
    kind: what has the name, in messages, such as 'model' or 'config.optimizer.name'.
    name: what a user gave.
    known: the registered names.
  """
  if isinstance(name, str) and name in known:
    return name
  error = unknown_name(kind, name, known)
  for other, classes in ('model', MODELS), ('task', TASKS), ('mixer', MIXERS):
    if isinstance(name, str) and name in classes:
      raise UserError(f'{error}; {name!r} is a {other}')
  raise UserError(f'{error} (--import=MODULE imports those of your own)')


def parameters(cls: type) -> dict[str, Parameter]:
  """The parameters of a class's constructor by name, in order.

  Those of a dataclass have the annotations of its fields.
  """
  # Taken from `__init__`, which the signature of NNX's metaclass hides.
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
  """Makes the task that is registered under `name`, and checks it.

  In place of `tasks` a mixture may have `parts`, with the name and the fields of a task
  each, as the sections of configs have them, and the sizes `num_features` and
  `context_length` of all of them. Raises UserError.
  """
  if name == 'mixture' and 'tasks' not in fields:
    known = (*_SIZES, 'parts', 'weights')
    for field in fields:
      check_name("hyper-parameter of task 'mixture',", field, known)
    fields = _of_parts(**fields)
  task = create('task', TASKS, name, fields)
  task.check()
  trees.check_tree(task)
  return task


def _of_parts(
  parts: Any = PARTS,
  weights: Any = None,  # a list or a tuple of numbers
  num_features: int = 5,
  context_length: int = 10,
) -> dict[str, Any]:
  """The fields of a mixture from the sections of its tasks; raises UserError."""
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
