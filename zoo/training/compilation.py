"""Everything that trains and measures a model, from its config to compiled programs."""

from __future__ import annotations

import concurrent.futures
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, Key, PyTree

from zoo.config.building import Config, build_task
from zoo.config.curricula import has_curriculum, log_unended
from zoo.config.sharding import (
  State,
  on_mesh,
  replicate,
  split_over_data,
  stays_in_shape,
  warn_of_unsplit,
)
from zoo.core.draws import TRAIN_STREAM, stream_of
from zoo.core.protocols import Task
from zoo.objectives import Objective, StepInputs, build_objective, numbers_of
from zoo.objectives.batch_parts import num_lanes
from zoo.training.evaluation import Evaluation, compile_evaluation, make_evaluation
from zoo.training.step import (
  Step,
  abstract_state,
  init_state,
  make_steps,
  train_step,
)
from zoo.training.summary import product_flops


class Training(NamedTuple):
  """Everything that trains the model of a config on a mesh, or many models at once.

  Attributes:
    config: The config. Of many models it is that of the first, for what they share.
    task: The task.
    objective: The objective.
    mesh: The mesh of devices.
    graph: The graph of the model.
    abstract: The shapes of the state, with the shardings between steps.
    uses_statistics: Whether models take sufficient statistics of prompts.
    init: A function that makes the state at step 0. For one model it has the argument
      `from_source` of `init_state`.
    steps: The steps, as `make_steps` describes them, compiled or to be compiled.
    key: The key of the training prompts, or one for each model.
    numbers: Inputs of the compiled steps. Other numbers need no other program.
    evaluation: The evaluation, compiled or to be compiled.
    flops: The operations in the matrix products of a step, once compiled.
  """

  config: Config
  task: Task
  objective: Objective
  mesh: Mesh
  graph: nnx.GraphDef
  abstract: State
  uses_statistics: bool
  init: Callable[..., State]
  steps: Any
  key: Key[Array, '*n']
  numbers: StepInputs
  evaluation: Evaluation
  flops: int = 0


def make_training(config: Config, mesh: Mesh) -> Training:
  """Returns everything that trains the model of a config; nothing is compiled.

  Args:
    config: The valid config of the run.
    mesh: The mesh. Its devices need not exist.
  """
  task, key = build_task(config), stream_of(config.seed, TRAIN_STREAM)
  with on_mesh(mesh, config):
    graphs, asked = abstract_state(config, mesh)
    abstract = split_over_data(asked) if config.mesh.fsdp else asked
    model = nnx.merge(graphs['model'], asked['model'])
    objective = build_objective(config, task, model)
    statistics = objective.uses_statistics()
    in_shape = stays_in_shape(config, mesh, abstract)
    step = bound_step(
      objective=objective,
      mesh=mesh,
      graphs=graphs,
      asked=asked['model'],
      weights=abstract['model'],
      statistics=statistics,
      in_shape=in_shape,
    )
  graph = graphs['model']
  return Training(
    config=config,
    task=task,
    objective=objective,
    mesh=mesh,
    graph=graph,
    abstract=abstract,
    uses_statistics=statistics,
    init=functools.partial(init_state, config, abstract),
    steps=make_steps(step, abstract, mesh, in_shape),
    key=key,
    numbers=numbers_of(task),
    evaluation=make_evaluation(config, task, graph, statistics, mesh),
  )


def bound_step(
  *,
  objective: Objective,
  mesh: Mesh,
  graphs: State,
  asked: PyTree,
  weights: PyTree,
  statistics: bool,
  in_shape: bool,
) -> Step:
  """Returns the step of one model: `train_step` with all that does not change.

  Args:
    objective: The objective, with the config and the task.
    mesh: The mesh.
    graphs: The graphs of the model and the optimizer.
    asked: The abstract model, with the shardings that its layers ask for.
    weights: The abstract weights that count as the work of a step (see `num_lanes`).
    statistics: Whether the model takes sufficient statistics of prompts.
    in_shape: Whether the optimizer computes with arrays in their own shapes.
  """
  config, task = objective.config, objective.task
  lanes = 1 if statistics else num_lanes(config, task, mesh, weights)
  return functools.partial(
    train_step,
    config=config,
    graphs=graphs,
    asked=asked,
    loss=functools.partial(objective.loss, statistics=statistics, num_lanes=lanes),
    in_shape=in_shape,
  )


def compile_training(training: Training) -> Training:
  """Compiles the steps and the evaluation of a training.

  Returns:
    The training with compiled steps and a compiled evaluation.

  Raises:
    RunError: If the memory is not enough.
  """
  config, mesh, abstract = training.config, training.mesh, training.abstract
  with (
    on_mesh(mesh, config),
    concurrent.futures.ThreadPoolExecutor(1) as other_core,
  ):
    if mesh.size > 1:
      warn_of_unsplit(config, mesh, abstract['model'])
    if has_curriculum(config.curriculum):
      log_unended(config, training.task, nnx.merge(training.graph, abstract['model']))
    # Whether 64 bits are on belongs to a thread.
    has_64_bits = jnp.result_type(float) == jnp.float64

    def compile_measurements() -> Evaluation:
      with jax.enable_x64(has_64_bits):
        return compile_evaluation(config, training.evaluation, abstract['model'], mesh)

    measurements = other_core.submit(compile_measurements)
    if jax.process_count() > 1:
      measurements.result()  # All processes must compile programs in the same order.
    key, numbers = replicate((training.key, training.numbers), mesh)
    limit = replicate(np.int32(0), mesh)
    traced = training.steps.trace(abstract, key, limit, limit, numbers)
    return training._replace(
      steps=traced.lower().compile(),
      key=key,
      numbers=numbers,
      evaluation=measurements.result(),
      flops=product_flops(traced.jaxpr.jaxpr),
    )


def advance(
  training: Training, state: State, start: int, stop: int
) -> tuple[State, dict[str, Array]]:
  """Starts the steps after `start`, up to `stop`; donates the given state."""
  start, stop = (replicate(np.int32(step), training.mesh) for step in (start, stop))
  return training.steps(state, training.key, start, stop, training.numbers)
