"""One ml_collections config per file; its docstring states its model and final risk."""

import importlib

from zoo.config_types import Config


def get_config(name: str, variant: str = '') -> Config:
  """The config of the file of that name here, such as `yq_lsa`, and of a variant."""
  return importlib.import_module(f'configs.{name}').get_config(variant)
