"""What a run trains: its task, model, optimizer, objective and mesh, each built once.

`build` makes them from a config, in this order, and nothing is compiled. Each part
checks what it needs of the others when it is made, so that an `Experiment` is valid.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from flax import nnx
from jax.sharding import AbstractMesh, Mesh
from jaxtyping import Array, Key, PyTree

from zoo.config.building import (
  abstract_parts,
  build_model,
  build_task,
  with_full_path,
  within_memory,
)
from zoo.config.read import Readable, read
from zoo.config.run import Run
from zoo.core.errors import UserError
from zoo.core.protocols import Model, Task
from zoo.core.registry import check_registered
from zoo.objectives import Objective, build_objective
from zoo.objectives.curricula import check_curriculum
from zoo.sharding import (
  State,
  as_layers_ask,
  check_heads,
  make_mesh,
  mesh_shape,
  split_heads,
  split_over_data,
)
from zoo.training.metrics import METRICS
from zoo.training.optimizers import build_optimizer, check_groups, check_optimizer


@dataclasses.dataclass(frozen=True)
class Experiment:
  """The parts of a run, none of which is compiled.

  Attributes:
    config: The config. If the task reads data, it has their full path and what
      identifies their content.
    task: The task.
    model: The model, with abstract arrays.
    objective: What the run minimises.
    mesh: The mesh of devices.
    graphs: The graphs of 'model' and 'optimizer'.
    asked: Their abstract states, with the shardings that the layers ask for.
    abstract: Their abstract states, with the shardings between steps. With
      `mesh.fsdp` these are split further.
  """

  config: Run
  task: Task
  model: Model
  objective: Objective
  mesh: Mesh
  graphs: Mapping[str, nnx.GraphDef[Any]]
  asked: State
  abstract: State


def build(config: Readable, devices: Sequence[Any] | None = None) -> Experiment:
  """Returns the experiment of a config.

  The model and the optimizer are made as shapes alone, so that no memory is needed for
  their arrays.

  Args:
    config: The config.
    devices: The devices to choose from; None means those of all processes.

  Raises:
    UserError: If a field is wrong, or does not fit another field, the task, the model
      or the devices. The message names the field, its value, and what is allowed.
    RunError: If the memory is not enough for these checks.

  Example:
    >>> experiment = zoo.training.build(zoo.default_config('yq_lsa'))
    >>> type(experiment.objective).__name__, experiment.task.num_features
    ('Sampled', 10)
  """
  config = read(config)
  return _build_on(config, make_mesh(config, devices))


def validate(config: Readable, num_devices: int | None = None) -> Run:
  """Checks a whole config, and stops at the first field that is wrong.

  Nothing is written, and no arrays are made.

  Args:
    config: A config, such as `zoo.default_config` returns.
    num_devices: The number of devices that the mesh must fit. They need not exist, so
      that a config for a cluster can be checked elsewhere. None means the devices of
      this machine.

  Returns:
    The config as a record. If its task reads data, it has the full path of the data and
    what identifies their content (`zoo.config.building.with_full_path`).

  Raises:
    UserError: If a field is missing, unknown or wrong, or does not fit another field.
      The message names the field, its value, and what is allowed.
    RunError: If the memory is not enough for these checks.

  Example:
    >>> config = zoo.default_config('yq_lsa')
    >>> config.train.batch_size = 0
    >>> zoo.training.validate(config)
    Traceback (most recent call last):
    ...
    zoo.core.errors.UserError: config.train.batch_size is 0; it must be an integer ≥ 1
  """
  config = read(config)
  if num_devices is None:
    return build(config).config
  shape = mesh_shape(config, num_devices)
  mesh: Any = AbstractMesh(shape, ('data', 'model'))
  return _build_on(config, mesh).config


def _build_on(config: Run, mesh: Mesh) -> Experiment:
  """Returns the experiment of a config on its mesh, which may be abstract."""
  with within_memory(config):
    task = build_task(config)
    config = with_full_path(config, task)
    _check_batch(config, mesh)
    check_optimizer(config.optimizer, config.train.num_steps)
    graphs, asked = abstract_state(config, task, mesh)
    model = nnx.merge(graphs['model'], asked['model'])
    check_groups(config.optimizer, model)
    objective = build_objective(config, task, model)
    if config.curriculum.grows:
      check_curriculum(config, task, model)
    for metric in config.eval.metrics:
      check_registered('config.eval.metrics', metric, METRICS)
  abstract = split_over_data(asked) if config.mesh.fsdp else asked
  return Experiment(config, task, model, objective, mesh, graphs, asked, abstract)


def _check_batch(config: Run, mesh: Mesh) -> None:
  """Raises UserError unless the devices and the parts divide a batch."""
  data, parts = mesh.shape['data'], config.train.num_parts
  if config.train.batch_size % (data * parts):
    times = f' times train.num_parts, which is {parts}' if parts > 1 else ''
    raise UserError(
      f'config.train.batch_size is {config.train.batch_size}; it must be divisible by '
      f'the data axis of the mesh, which is {data}{times}'
    )


def abstract_state(
  config: Run, task: Task, mesh: Mesh
) -> tuple[dict[str, nnx.GraphDef[Any]], State]:
  """Returns the graphs of model and optimizer, and their states as abstract arrays.

  Both results are dictionaries with the keys 'model' and 'optimizer'.

  Raises:
    UserError: If the model or the optimizer cannot be made, or if the mesh does not
      divide the heads of the model.
  """
  if (model_axis := mesh.shape['model']) > 1:
    check_heads(config, abstract_parts(config, task)[1], model_axis)
  with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
    parts = jax.eval_shape(
      lambda: {
        name: nnx.split(module)
        for name, module in create(config, task, jax.random.key(0)).items()
      }
    )
  graphs = {name: graph for name, (graph, _) in parts.items()}
  state = {name: as_layers_ask(arrays, mesh) for name, (_, arrays) in parts.items()}
  return graphs, state


def create(
  config: Run, task: Task, key: Key[Array, ''], weights: PyTree | None = None
) -> dict[str, Model | nnx.Optimizer[Any]]:
  """Returns the model of a config and its optimizer, as a dictionary.

  Args:
    config: The config of the run.
    task: The task.
    key: The key from which the arrays of the model are drawn.
    weights: Arrays that replace the drawn ones; None replaces none.
  """
  model = build_model(config, task, nnx.Rngs(key))
  if weights is not None:
    nnx.update(model, weights)
  if config.mesh.fsdp:
    split_heads(model)
  transformation = build_optimizer(config.optimizer, config.train.num_steps, model)
  optimizer = nnx.Optimizer(model, transformation, wrt=nnx.Param)
  return {'model': model, 'optimizer': optimizer}
