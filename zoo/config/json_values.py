"""What config.json can hold, and the arguments of a class that it cannot hold."""

import json
from collections.abc import Mapping
from inspect import Parameter
from typing import Any

from ml_collections import ConfigDict

from zoo.core.registry import parameters


def fits_json(value: Any) -> bool:
  """Returns whether a config and its JSON can hold a value, also one that is missing.

  Neither can hold a function or NaN, and no config a dictionary whose keys have dots.
  """
  if value is Parameter.empty:
    return True
  try:
    in_json(value)
    ConfigDict({'value': value})
  except (TypeError, ValueError):
    return False
  return True


def in_json(value: Any) -> Any:
  """Returns a value as JSON holds it; raises TypeError or ValueError if it cannot."""
  return json.loads(json.dumps(value, default=listed, allow_nan=False))


def listed(value: Any) -> Any:
  """Returns an array or number of NumPy or JAX as lists and plain numbers."""
  if not hasattr(value, 'tolist'):
    raise TypeError(type(value).__name__)
  return value.tolist()


def without_defaults_of(cls: type, fields: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the fields for a class, without those that are None for its own default.

  These are the fields whose default JSON cannot hold.
  """
  known = parameters(cls)
  return {
    name: value
    for name, value in fields.items()
    if value is not None or name not in known or fits_json(known[name].default)
  }
