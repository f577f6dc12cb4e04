"""Configs: one for each model, and files that set more than a model."""

import functools
import importlib
import pathlib
import sys
import types
from typing import TYPE_CHECKING

from configs import models
from zoo.config.schema import Config
from zoo.core import registry

_HERE = pathlib.Path(__file__).parent
_PARTS = '__init__', 'benchmarks', 'defaults', 'models'  # not configs themselves


def names() -> list[str]:
  """The names of all configs, such as `yq_lsa` and `llm/smollm2`."""
  files = [path for path in _HERE.rglob('*.py') if path.stem not in _PARTS]
  others = {path.relative_to(_HERE).with_suffix('').as_posix() for path in files}
  return sorted({*registry.models.names(), *others})


def get_config(name: str, variant: str = '') -> Config:
  """The config of that name, in a variant; raises UserError for an unknown one."""
  if name in registry.models.names() or name not in names():
    return models.get_config(name, variant)
  return _module(name).get_config(*[variant] if variant else [])


def about(name: str) -> str:
  """What a config trains, and what that reaches."""
  if name in models.ABOUT:
    return models.ABOUT[name]
  of = registry.models.get(name) if name in registry.models.names() else _module(name)
  return of.__doc__ or '\n'


def _module(name: str) -> types.ModuleType:
  return importlib.import_module(f'configs.{name.replace("/", ".")}')


def _of_model(name: str) -> types.ModuleType:
  """The config of a model as if it had a file, `configs.yq_lsa.get_config('smoke')`."""
  module = types.ModuleType(f'{__name__}.{name}', models.ABOUT[name])
  module.get_config = functools.partial(models.get_config, name)  # pyright: ignore
  return module


if TYPE_CHECKING:  # for type checkers, to which the names below are unknown

  def __getattr__(name: str) -> types.ModuleType: ...


for _name in models.ABOUT:  # `import configs.yq_lsa` as well as `from configs import`
  globals()[_name] = sys.modules[f'{__name__}.{_name}'] = _of_model(_name)
