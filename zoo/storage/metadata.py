"""The metadata in each checkpoint: the config of its run and the versions."""

import importlib.metadata
import json
import platform
from collections.abc import Mapping
from typing import Any, cast

from ml_collections import ConfigDict

from zoo.config.validation import Config, differences, to_json
from zoo.core.errors import UserError, shown

_PACKAGES = 'icl-zoo', 'jax', 'flax', 'optax', 'orbax-checkpoint'


def run_metadata(config: Config) -> dict[str, object]:
  """The config of a run, and the versions that run it, as plain JSON."""
  versions = {name: _version(name) for name in _PACKAGES}
  return {
    'config': json.loads(to_json(config)),
    'versions': {'python': platform.python_version(), **versions},
  }


def check_own_step(
  path: object, step: int, saved: object, wanted: Mapping[str, object]
) -> None:
  """Raises UserError unless the step at `path` is one of this run.

  `saved` is the metadata of the step, and `wanted` what this run would save with it.
  """
  found: Mapping[str, Any] = saved if isinstance(saved, dict) else {}
  if found.get('step') != step:
    raise UserError(
      f'{path} holds step {found.get("step")!r}, not step {step}; give it its own '
      'number again, or move it out of this folder'
    )
  differing: list[str] = []
  if config := cast(dict[str, Any], wanted.get('config')):
    differing = differences(found.get('config') or {}, cast(Config, ConfigDict(config)))
  if found.get('points') != wanted.get('points'):
    differing.append('points')
  if differing:
    raise UserError(
      f'{path} was saved by a run of another config, and cannot be resumed from here; '
      f'it differs in {shown(differing)}; move it out of this folder'
    )


def _version(package: str) -> str | None:
  """The installed version; None for a package that runs from its source tree."""
  try:
    return importlib.metadata.version(package)
  except importlib.metadata.PackageNotFoundError:
    return None
