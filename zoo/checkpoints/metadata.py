"""What a checkpoint says of itself: its config, and the versions that made it."""

import importlib.metadata
import json
import platform
from typing import Any

from zoo.config import Config, to_json


def origin(config: Config) -> dict[str, Any]:
  """What a checkpoint says of itself: its config, and the versions that made it."""
  packages = 'icl-zoo', 'jax', 'flax', 'optax', 'orbax-checkpoint'
  versions = {name: importlib.metadata.version(name) for name in packages}
  return {
    'config': json.loads(to_json(config)),
    'versions': {'python': platform.python_version(), **versions},
  }
