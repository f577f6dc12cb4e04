"""The section `task` of a config: a file for each task, with units or ranges."""

import importlib
import importlib.util
from typing import Any

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from zoo import registry
from zoo.config_types import Section


def get_config(name: str) -> Section:
  """The section of a task of the zoo, or of one that the user has registered.

  If a task has no file here, its fields are the arguments of its constructor. Raises
  UserError for an unknown name.
  """
  has_file = name.isidentifier() and importlib.util.find_spec(f'configs.tasks.{name}')
  if has_file:
    return importlib.import_module(f'configs.tasks.{name}').get_config()
  config: Any = ConfigDict()
  config.name = name
  for parameter in registry.tasks.parameters(name).values():
    default = parameter.default
    if default is parameter.empty or default is None:
      config[parameter.name] = placeholder(object)
    else:
      config[parameter.name] = default
  return config
