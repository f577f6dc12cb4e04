"""Tasks and models that configs name, built or abstract."""

import dataclasses
import json
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from zoo import theory
from zoo.config.schema import CLASSES, Config
from zoo.core import registry
from zoo.core.classes import from_zoo
from zoo.core.errors import UserError
from zoo.core.protocols import Model, Task
from zoo.measure import contracts


@dataclasses.dataclass
class _Kept:
  """An abstract model, and whether it is known to fit its task."""

  parts: Any  # its graph and its state
  fits: bool = False


# The points of a sweep name the same model again and again, and each trace takes up to
# 0.1 s. One of a user's own is not kept: the next cell of a notebook may change it.
_KEPT: dict[tuple[object, ...], _Kept] = {}
_MOST = 64


def build_task(config: Config) -> Task:
  """The task that a config names; raises UserError."""
  return _create(config, 'task')


def build_model(config: Config, rngs: nnx.Rngs) -> Model:
  """The model that a config names, for its task.

  The task gives the number of features, and the context length and the number of
  outputs if the model's constructor names them. Raises UserError.
  """
  task = build_task(config)
  outputs, name = task.num_outputs, config.model.name
  given: dict[str, Any] = {'num_features': task.num_features}
  if name in registry.models.names():
    wanted = registry.models.parameters(name)
    if 'context_length' in wanted:
      given['context_length'] = task.context_length
    if 'num_outputs' in wanted:
      given['num_outputs'] = outputs
    elif outputs > 1:
      raise UserError(
        f'config.model: {name!r} predicts one number, and the task '
        f'{config.task.name!r} has {outputs} outputs; it needs a model whose '
        'constructor takes num_outputs'
      )
  made = _create(config, 'model', **given, rngs=rngs)
  if not isinstance(made, nnx.Module):
    raise UserError(
      f'config.model: {name!r} is the class {type(made).__name__}, which is no '
      'nnx.Module; only those can be trained'
    )
  return made


def abstract_model(config: Config) -> Model:
  """The model that a config names, with abstract arrays; raises as `build_model`."""
  key = _key(config)
  if key in _KEPT:
    return nnx.merge(*_KEPT[key].parts)
  # The current mesh may lack the axes of the model, so none is used here.
  no_mesh = jax.sharding.AbstractMesh((), ())
  with jax.sharding.use_abstract_mesh(no_mesh), nnx.use_eager_sharding(False):
    model = nnx.eval_shape(lambda: build_model(config, nnx.Rngs(0)))
  if key is not None and theory.is_ours(model):
    if len(_KEPT) == _MOST:
      del _KEPT[next(iter(_KEPT))]
    _KEPT[key] = _Kept(nnx.split(model))
  return model


def num_weights(model: Model) -> int:
  """The number of weights of a model, which may be abstract."""
  leaves = jax.tree.leaves(nnx.state(model, nnx.Param))
  return sum(math.prod(leaf.shape) for leaf in leaves)


def check_forms(config: Config, model: Model, task: Task) -> None:
  """Raises UserError unless the abstract model of a config fits the task of it."""
  kept = _KEPT.get(_key(config) or ())
  if kept is not None and kept.fits:
    return
  contracts.check_forms(model, task)
  if kept is not None:
    kept.fits = True


def _key(config: Config) -> tuple[object, ...] | None:
  """What an abstract model is made from; None if it is not of this library's classes.

  Also None if JSON cannot hold it.
  """
  sections = config.model.to_dict(), config.task.to_dict()
  classes = [
    entries.get(section['name']) if section['name'] in entries.names() else object
    for section, entries in zip(sections, CLASSES.values(), strict=True)
  ]
  if not all(map(from_zoo, classes)):
    return None
  try:
    text = json.dumps(sections, default=np.ndarray.tolist, sort_keys=True)
  except (TypeError, ValueError):
    return None
  return *classes, text, jnp.result_type(float)


def _create(config: Config, section: str, **more: Any) -> Any:
  hyperparameters = config[section].to_dict()
  name = hyperparameters.pop('name')
  if repeated := hyperparameters.keys() & more.keys():
    raise UserError(
      f'config.{section} has {", ".join(sorted(repeated))}; it is set by the task'
    )
  try:
    return CLASSES[section].create(name, **hyperparameters, **more)
  except UserError as error:
    raise UserError(f'config.{section}: {error}') from error
