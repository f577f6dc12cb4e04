"""Configs with the defaults of all fields, and sections with the defaults of a class.

The functions here make what a user holds: a `ConfigDict` of ml_collections, whose
fields flags can set. The files in configs/ use them, too.
"""

from collections.abc import Mapping
from inspect import Parameter
from typing import Any

from ml_collections import ConfigDict, FieldReference
from ml_collections.config_dict import placeholder

from zoo.config.read import FIELDS, fits_json
from zoo.core.registry import MODELS, PARTS, TASKS, check_registered, parameters

# The task gives a model these arguments, so that no config names them.
FROM_THE_TASK = 'num_features', 'context_length', 'num_outputs', 'edges', 'rngs'
# A flag of a field with one of these types is read as that type:
# --config.task.path=my.npz is text.
_TYPES = {'bool': bool, 'int': int, 'float': float, 'Number': float, 'str': str}


# The return type is Any, since type checkers do not know the fields of a ConfigDict.
def default_fields() -> Any:
  """Returns a config with the default of each field of `FIELDS`.

  The name of the model is None, which is refused unless a file sets it. The task is
  linear regression, with the defaults of its class.
  """
  config: Any = ConfigDict()
  for name, field in FIELDS.items():
    section, _, key = name.rpartition('.')
    if section in ('model', 'task'):
      continue
    if section and section not in config:
      config[section] = ConfigDict()
    holder = config[section] if section else config
    if field.default is None:
      holder[key] = placeholder(field.kind)
    else:
      holder[key] = ConfigDict() if field.kind is dict else field.default
  config.model = ConfigDict({'name': placeholder(str)})
  config.task = task_section('linear_regression')
  return config


def default_config(model: str, task: str = 'linear_regression') -> Any:
  """Returns the config of a run in which every field has its default.

  A run needs no config file: `zoo.train(zoo.default_config('yq_lsa'), 'runs/a')`.

  Args:
    model: The name of a registered model, such as `zoo.list_models` returns. The
      section `model` has the defaults of its constructor; an argument without a default
      is None.
    task: The name of a registered task, such as `zoo.list_tasks` returns. The section
      `task` has the defaults of its class.

  Returns:
    A `ConfigDict` that is locked: its fields can be set, and no others can be added.

  Raises:
    UserError: If the model or the task is not registered.

  Example:
    >>> config = zoo.default_config('yq_lsa')
    >>> config.train.num_steps = 200
    >>> config.model.num_heads
    1
  """
  config = default_fields()
  config.model = model_section(model)
  if task != config.task.name:
    config.task = task_section(task)
  return config.lock()


def task_section(name: str) -> Any:
  """Returns the section `task` with the defaults of a class.

  A field without a default is None, and so is one whose default JSON cannot hold (see
  `model_section`). The parts of a mixture are sections themselves; see
  configs/mixture.py.

  Raises:
    UserError: If the task is not registered.
  """
  if name == 'mixture':
    sizes = {'num_features': 5, 'context_length': 10}
    section = ConfigDict({'name': name, 'parts': PARTS, **sizes})
    section.weights = placeholder(tuple)
    return section
  cls = TASKS[check_registered('task', name, TASKS)]
  section = ConfigDict({'name': name})
  for field, parameter in parameters(cls).items():
    section[field] = _argument(parameter)
  return section


def model_section(name: str) -> Any:
  """Returns the section `model` with the defaults of a class.

  A field without a default is None. So is a field whose default JSON cannot hold, such
  as a function: None then means the default of the class.

  Raises:
    UserError: If the model is not registered.
  """
  cls = MODELS[check_registered('model', name, MODELS)]
  section = ConfigDict({'name': name})
  for field, parameter in parameters(cls).items():
    if field not in FROM_THE_TASK:
      section[field] = _argument(parameter)
  return section


def _argument(parameter: Parameter) -> Any:
  """Returns what a config holds for an argument: its default, and a type for flags."""
  default, fits = parameter.default, True
  if default is parameter.empty:
    default = None
  keys = default if isinstance(default, Mapping) else ()
  # A config holds no key with a dot.
  if not fits_json(default) or any('.' in str(key) for key in keys):
    default, fits = None, False
  annotation = parameter.annotation
  name = annotation.__name__ if isinstance(annotation, type) else str(annotation)
  if name.startswith('Mapping') and fits:
    return ConfigDict(default or {})
  if default is not None and not isinstance(default, float):
    return default
  name = name.removeprefix('trees.').removesuffix(' | None')
  kind = _TYPES.get(name, object)
  return FieldReference(default, field_type=kind)
