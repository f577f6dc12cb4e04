"""The task and the model that a config names, built or as shapes alone."""

import contextlib
import math
from collections.abc import Iterator, Mapping
from typing import Any

import jax
from flax import nnx
from jax.core import Tracer

from zoo.config.read import fits_json, with_fields
from zoo.config.run import Run
from zoo.core import registry
from zoo.core.errors import RunError, UserError, in_one_line, is_exhausted
from zoo.core.protocols import Model, Task
from zoo.core.registry import create_task
from zoo.models.heads import HEADS, quantile_edges
from zoo.models.tabular import Tabular

# An argument with one of these annotations, as a type or as text, is never None.
_NEVER_NONE = int, float, str, bool, 'int', 'float', 'str', 'bool'


def build_task(config: Run) -> Task:
  """Returns the task that a config names.

  Raises:
    UserError: If the task is not registered, or if an argument is missing, unknown or
      wrong.
  """
  name, fields = config.task.name, config.task.arguments
  if name in registry.TASKS and name != 'mixture':
    fields = _without_defaults_of(registry.TASKS[name], fields)
  try:
    return create_task(name, **fields)
  except UserError as error:
    hint, cls = '', registry.TASKS.get(name)
    # The fields may be those of another task. A mixture is left out, since its fields
    # are not the arguments of its constructor.
    if cls and name != 'mixture' and fields.keys() - registry.parameters(cls).keys():
      hint = (
        f'; choose the task by --config=FILE:task={name}, which sets its fields (in '
        f'Python: zoo.default_config(…, task={name!r}))'
      )
    raise UserError(f'config.task: {error}{hint}') from error


def _without_defaults_of(cls: type, fields: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the arguments for a class, without those that are None for its default.

  These are the arguments whose default JSON cannot hold.
  """
  not_held = {
    name
    for name, parameter in registry.parameters(cls).items()
    if parameter.default is not parameter.empty and not fits_json(parameter.default)
  }
  return {
    name: value
    for name, value in fields.items()
    if value is not None or name not in not_held
  }


def with_full_path(config: Run, task: Task) -> Run:
  """Returns the config with the full path and the content of the data of its task.

  The content is a checksum for the task `arrays`, and a version for the images of
  `labelled_clusters`. With both, a run that goes on elsewhere reads the same data. The
  config of a task that reads no data is returned as it is.

  Args:
    config: The config.
    task: Its task, which has read the data.
  """
  if config.task.name == 'arrays':
    fields = 'path', 'sha256'
  elif config.task.arguments.get('source') == 'tfds':
    fields = 'data_dir', 'dataset'
  else:
    return config
  return with_fields(
    config, {f'task.{field}': getattr(task, field) for field in fields}
  )


def build_model(config: Run, task: Task, rngs: nnx.Rngs) -> Model:
  """Returns the model that a config names, for its task.

  The task gives the number of features. It also gives the context length, the number of
  outputs and the edges of bars, if the constructor of the model names them.

  Args:
    config: The config of the run.
    task: Its task.
    rngs: The random streams from which the weights are drawn.

  Raises:
    UserError: If the model is not registered or is not an `nnx.Module`, if an argument
      is missing, unknown or wrong, or if the model does not fit the task.
  """
  name, hyperparameters = config.model.name, config.model.arguments
  of_task: dict[str, Any] = {'num_features': task.num_features}
  if name in registry.MODELS:
    cls = registry.MODELS[name]
    taken = registry.parameters(cls)
    hyperparameters = _without_defaults_of(cls, hyperparameters)
    _check_constructor(name, hyperparameters)
    if 'context_length' in taken:
      of_task['context_length'] = task.context_length
    if 'num_outputs' in taken:
      of_task['num_outputs'] = task.num_outputs
    elif task.num_outputs > 1:
      raise UserError(
        f'config.model: {name!r} predicts one number, and the task '
        f'{config.task.name!r} has {task.num_outputs} outputs; it needs a model whose '
        'constructor takes num_outputs'
      )
    if 'edges' in taken and (head := hyperparameters.get('head', 'point')) != 'point':
      if head in HEADS and task.label_kind != 'numbers':
        raise UserError(
          f"config.model.head is {head!r}; it must be 'point' for the task "
          f'{config.task.name!r}, whose labels are {task.label_kind}: the outputs are '
          'their logits'
        )
      if head == 'bars':
        of_task['edges'] = quantile_edges(task)
  if repeated := hyperparameters.keys() & {*of_task, 'rngs'}:
    raise UserError(
      f'config.model has {", ".join(sorted(repeated))}; it is set by the task'
    )
  try:
    arguments = hyperparameters | of_task | {'rngs': rngs}
    model = registry.create('model', registry.MODELS, name, arguments)
  except UserError as error:
    raise UserError(f'config.model: {error}') from error
  if not isinstance(model, nnx.Module):
    raise UserError(
      f'config.model: {name!r} is the class {type(model).__name__}, which is no '
      'nnx.Module; only those can be trained'
    )
  if isinstance(model, Tabular):
    _check_classes(model, task)
  _mark_traced_arrays(model)
  return model


def _check_classes(model: Tabular, task: Task) -> None:
  """Raises UserError if a model would read classes as a number and classes."""
  known = model.num_classes
  if task.label_kind == 'classes' and task.num_outputs == 1 + known:
    raise UserError(
      f'config.model.num_classes is {known}, and the task has {1 + known} classes; the '
      f'model would read its labels as a number and {known} classes, so give '
      f'num_classes = {1 + known}'
    )


def _check_constructor(name: str, hyperparameters: Mapping[str, object]) -> None:
  """Checks the constructor of a registered model, and that all it needs is set.

  A default config has None for an argument without a default.

  Raises:
    UserError: If the constructor does not take what every model is given, or if an
      argument without a default is None.
  """
  cls = registry.MODELS[name]
  taken = registry.parameters(cls)
  for given in 'num_features', 'rngs':
    if given not in taken and not registry.takes_any(cls):
      raise UserError(
        f'config.model: the constructor of {name!r} does not take {given!r}; that of a '
        'model must take num_features and rngs'
      )
  for argument, parameter in taken.items():
    is_missing = hyperparameters.get(argument, 0) is None
    # Any other annotation, such as `int | None`, may allow None.
    needs_value = parameter.annotation in (parameter.empty, *_NEVER_NONE)
    if is_missing and parameter.default is parameter.empty and needs_value:
      raise UserError(
        f'config.model.{argument} is None; the constructor of {name!r} has no default '
        'for it, so a value must be set'
      )


def _mark_traced_arrays(model: nnx.Module) -> None:
  """Makes NNX see arrays that are plain attributes of a module made under a trace.

  NNX counts an array as data when it is set as an attribute. It does not count an array
  that is being traced (google/flax, issue 4480), which `nnx.split` would then lose.
  """
  for _, module in nnx.iter_modules(model):
    for name, value in vars(module).items():
      if isinstance(value, Tracer):
        setattr(module, name, nnx.data(value))


def abstract_model(config: Run, task: Task) -> Model:
  """Returns the model that a config names, with abstract arrays.

  `nnx.split` of this model would lose abstract arrays that are plain attributes; use
  `abstract_parts` instead.

  Raises:
    UserError: If the model, its arguments or its task do not fit, as from
      `build_model`.
  """
  return nnx.merge(*abstract_parts(config, task))


def abstract_parts(config: Run, task: Task) -> tuple[Any, Any]:
  """Returns the graph and the abstract state of a config's model.

  Raises:
    UserError: If the model, its arguments or its task do not fit, as from
      `build_model`.
  """
  # The current mesh may lack the axes of the model, so no mesh is used here.
  no_mesh = jax.sharding.AbstractMesh((), ())
  with jax.sharding.use_abstract_mesh(no_mesh), nnx.use_eager_sharding(False):
    return jax.eval_shape(lambda: nnx.split(build_model(config, task, nnx.Rngs(0))))


def num_heads(config: Run) -> int:
  """Returns the model's number of heads; 1 if the config does not name it."""
  return config.model.arguments.get('num_heads', 1)


def num_weights(model: Model) -> int:
  """Returns the number of weights of a model, which may be abstract."""
  leaves = jax.tree.leaves(nnx.state(model, nnx.Param))
  return sum(math.prod(leaf.shape) for leaf in leaves)


@contextlib.contextmanager
def within_memory(config: Run) -> Iterator[None]:
  """Turns running out of memory in the block into a RunError that names the fields."""
  try:
    yield
  except Exception as error:
    if not is_exhausted(error):
      raise
    length = config.task.arguments.get('context_length')
    of_task = '' if length is None else f', config.task.context_length ({length:,})'
    raise RunError(
      f'the memory is not enough: {in_one_line(error, 200)}; reduce '
      f'config.train.batch_size ({config.train.batch_size:,}){of_task} or '
      f'config.model, or raise config.train.num_parts ({config.train.num_parts:,})'
    ) from error
