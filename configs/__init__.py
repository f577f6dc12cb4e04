"""Config files: one for each model, and some that also choose a task or a size."""

import importlib
import pathlib
from typing import Any

from configs import common
from zoo.config.defaults import model_section
from zoo.core.errors import check_name
from zoo.core.registry import MODELS

_HERE = pathlib.Path(__file__).parent
# Files of these names are packages or parts of configs.
_PARTS = '__init__', 'common', 'defaults'


def names() -> list[str]:
  """Returns the sorted names of all configs, such as `yq_lsa` and `llm/smollm2`."""
  files = [path for path in _HERE.rglob('*.py') if path.stem not in _PARTS]
  return sorted(path.relative_to(_HERE).with_suffix('').as_posix() for path in files)


def get_config(name: str, variant: str = '') -> Any:
  """Returns the config of a name, as `get_config(variant)` of configs/NAME.py makes it.

  For a registered model of your own, which has no such file, the config has the fields
  of zoo/config/run.py, and the section `model` has the defaults of the model's
  constructor.

  Args:
    name: One of `names()`, or the name of a registered model.
    variant: Variants of the config, joined by commas, such as 'smoke'; none by default.

  Returns:
    A ConfigDict.

  Raises:
    UserError: If the name or a variant is unknown.
  """
  if name in MODELS and name not in names():
    config = common.get_config()
    config.model = model_section(name)
    return common.with_variant(config, variant)
  module = importlib.import_module(_module(name))
  return module.get_config(*[variant] if variant else [])


def about(name: str) -> str:
  """Returns the docstring of a config, which says what it trains and reaches."""
  return importlib.import_module(_module(name)).__doc__ or '\n'


def _module(name: str) -> str:
  return f'configs.{check_name("config", name, names()).replace("/", ".")}'
