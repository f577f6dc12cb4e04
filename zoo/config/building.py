"""Tasks and models that configs name, built or abstract."""

import copy
import math
from typing import Any, TypeAlias

import jax
from flax import nnx

from zoo.core import registry
from zoo.core.errors import UserError
from zoo.core.protocols import Model, Task
from zoo.core.registry import create_task

Config: TypeAlias = Any  # a ConfigDict with the fields of configs/common.py, or part


def build_task(config: Config) -> Task:
  """The task that a config names; raises UserError."""
  fields = config.task.to_dict()
  name = fields.pop('name')
  try:
    return create_task(name, **fields)
  except UserError as error:
    raise UserError(f'config.task: {error}') from error


def with_full_path(config: Config) -> Config:
  """The config with the full path and the checksum of the file of the task `arrays`.

  So a run that goes on elsewhere reads the same file. Another config is returned as it
  is. Raises UserError for a file that cannot be read, or that has changed.
  """
  if config.task.name != 'arrays':
    return config
  task: Any = build_task(config)
  whole = copy.deepcopy(config)
  with whole.unlocked():
    whole.task.path = task.path
    whole.task.sha256 = task.sha256
  return whole


def build_model(config: Config, rngs: nnx.Rngs) -> Model:
  """The model that a config names, for its task.

  The task gives the number of features, and the context length and the number of
  outputs if the model's constructor names them. Raises UserError.
  """
  task = build_task(config)
  outputs, name = task.num_outputs, config.model.name
  given: dict[str, Any] = {'num_features': task.num_features}
  if name in registry.MODELS:
    taken = registry.parameters(registry.MODELS[name])
    if 'context_length' in taken:
      given['context_length'] = task.context_length
    if 'num_outputs' in taken:
      given['num_outputs'] = outputs
    elif outputs > 1:
      raise UserError(
        f'config.model: {name!r} predicts one number, and the task '
        f'{config.task.name!r} has {outputs} outputs; it needs a model whose '
        'constructor takes num_outputs'
      )
  made = _create_model(config, **given, rngs=rngs)
  if not isinstance(made, nnx.Module):
    raise UserError(
      f'config.model: {name!r} is the class {type(made).__name__}, which is no '
      'nnx.Module; only those can be trained'
    )
  return made


def abstract_model(config: Config) -> Model:
  """The model that a config names, with abstract arrays; raises as `build_model`."""
  # The current mesh may lack the axes of the model, so none is used here.
  no_mesh = jax.sharding.AbstractMesh((), ())
  with jax.sharding.use_abstract_mesh(no_mesh), nnx.use_eager_sharding(False):
    return nnx.eval_shape(lambda: build_model(config, nnx.Rngs(0)))


def num_weights(model: Model) -> int:
  """The number of weights of a model, which may be abstract."""
  leaves = jax.tree.leaves(nnx.state(model, nnx.Param))
  return sum(math.prod(leaf.shape) for leaf in leaves)


def _create_model(config: Config, **more: Any) -> Any:
  hyperparameters = config.model.to_dict()
  name = hyperparameters.pop('name')
  if repeated := hyperparameters.keys() & more.keys():
    raise UserError(
      f'config.model has {", ".join(sorted(repeated))}; it is set by the task'
    )
  try:
    return registry.create_model(name, **hyperparameters, **more)
  except UserError as error:
    raise UserError(f'config.model: {error}') from error
