"""The metadata in each checkpoint: the config of its run and the versions."""

import importlib.metadata
import json
import platform

from zoo.config import Config, to_json

_PACKAGES = 'icl-zoo', 'jax', 'flax', 'optax', 'orbax-checkpoint'


def run_metadata(config: Config) -> dict[str, object]:
  """The config of a run, and the versions that run it, as plain JSON."""
  versions = {name: _version(name) for name in _PACKAGES}
  return {
    'config': json.loads(to_json(config)),
    'versions': {'python': platform.python_version(), **versions},
  }


def _version(package: str) -> str | None:
  """The installed version; None for a package that runs from its source tree."""
  try:
    return importlib.metadata.version(package)
  except importlib.metadata.PackageNotFoundError:
    return None
