"""One ml_collections config per file, whose docstring describes the model."""

import importlib

from zoo.config.types import Config


def get_config(name: str, variant: str = '') -> Config:
  """The config of the file of that name, such as `yq_lsa`, in a variant."""
  return importlib.import_module(f'configs.{name}').get_config(variant)
