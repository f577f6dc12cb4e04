"""The task and the model of a config, for tests that need them alone."""

from typing import Any

from flax import nnx

from zoo.config.building import abstract_model, build_model, build_task
from zoo.config.read import Readable, read, to_content


def task_of(config: Readable) -> Any:
  """Returns the task of a config, which need not name a model."""
  content = to_content(config)
  if content.get('model', {}).get('name') is None:
    content['model'] = {'name': 'none'}
  return build_task(read(content))


def model_of(config: Readable, rngs: nnx.Rngs) -> Any:
  """Returns the model of a config, for its task."""
  run = read(config)
  return build_model(run, build_task(run), rngs)


def abstract_of(config: Readable) -> Any:
  """Returns the model of a config, with abstract arrays."""
  run = read(config)
  return abstract_model(run, build_task(run))
