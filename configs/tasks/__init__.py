"""The section `task` of a config: the fields of the task's class, with its defaults."""

from typing import Any

from ml_collections import ConfigDict, FieldReference
from ml_collections.config_dict import placeholder

from zoo.config.types import Section
from zoo.core import registry, values

# Table 1 of arXiv 2512.04268 has this prior mean; most papers centre their labels.
_OTHER_DEFAULTS = {'linear_regression': {'prior_mean': 2.0}}


def get_config(name: str) -> Section:
  """The section of a task of the zoo, or of one that the user has registered.

  Raises UserError for an unknown name.
  """
  arrays = values.array_fields(registry.tasks.get(name))
  config: Any = ConfigDict()
  config.name = name
  for parameter in registry.tasks.parameters(name).values():
    field, default = parameter.name, parameter.default
    default = _OTHER_DEFAULTS.get(name, {}).get(field, default)
    if default is parameter.empty or default is None:
      config[field] = placeholder(object)
    elif field in arrays:  # a number, or a list of them
      config[field] = FieldReference(default, field_type=object)
    else:
      config[field] = default
  return config
