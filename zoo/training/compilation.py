"""The programs that train and measure the model of an experiment, compiled."""

from __future__ import annotations

import concurrent.futures
import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key, PyTree

from zoo.core.draws import TRAIN_STREAM, stream_of
from zoo.core.programs import Program
from zoo.objectives import StepInputs, inputs_of
from zoo.objectives.curricula import log_unended
from zoo.objectives.lanes import num_lanes
from zoo.sharding import (
  State,
  on_mesh,
  replicate,
  stays_in_shape,
  warn_of_unsplit,
)
from zoo.training.evaluation import Evaluation, compile_evaluation, make_evaluation
from zoo.training.experiment import Experiment
from zoo.training.initial import init_state
from zoo.training.step import Step, make_steps, train_step
from zoo.training.summary import product_flops


class Training(NamedTuple):
  """The programs that train the model of an experiment, or many models at once.

  Attributes:
    experiment: The experiment. Of many models it is that of the first, for what they
      share.
    abstract: The shapes of the state, with the shardings between steps. The arrays of
      many models have a new first axis.
    uses_statistics: Whether models take sufficient statistics of prompts.
    init: A function that makes the state at step 0. Its argument is whether the weights
      are read from `train.init_from`, if it names any; otherwise they are random.
    steps: The steps, as `make_steps` describes them, compiled or to be compiled.
    key: The key of the training prompts, or one for each model.
    inputs: Inputs of the compiled steps. Other inputs need no other program.
    evaluation: The evaluation, compiled or to be compiled.
    flops: The operations in the matrix products of a step, once compiled.
  """

  experiment: Experiment
  abstract: State
  uses_statistics: bool
  init: Callable[[bool], State]
  steps: Program
  key: Key[Array, '*n']
  inputs: StepInputs
  evaluation: Evaluation
  flops: int = 0


def make_training(experiment: Experiment) -> Training:
  """Returns the programs that train the model of an experiment; nothing is compiled.

  Args:
    experiment: The experiment. The devices of its mesh need not exist.
  """
  config, mesh = experiment.config, experiment.mesh
  abstract = experiment.abstract
  with on_mesh(mesh, config):
    statistics = experiment.objective.uses_statistics()
    in_shape = stays_in_shape(config, mesh, abstract)
    step = step_of(experiment, abstract['model'], statistics, in_shape)
  return Training(
    experiment=experiment,
    abstract=abstract,
    uses_statistics=statistics,
    init=functools.partial(init_state, experiment),
    steps=make_steps(step, abstract, mesh, in_shape),
    key=stream_of(config.seed, TRAIN_STREAM),
    inputs=inputs_of(experiment.task),
    evaluation=make_evaluation(experiment, statistics),
  )


def step_of(
  experiment: Experiment, weights: PyTree, statistics: bool, in_shape: bool
) -> Step:
  """Returns the step of one model: `train_step` with all that does not change.

  Args:
    experiment: The experiment.
    weights: The abstract weights that count as the work of a step (see `num_lanes`).
    statistics: Whether the model takes sufficient statistics of prompts.
    in_shape: Whether the optimizer computes with arrays in their own shapes.
  """
  config, task, mesh = experiment.config, experiment.task, experiment.mesh
  has_prompts = experiment.objective.draws_prompts and not statistics
  lanes = num_lanes(config, task, mesh, weights) if has_prompts else 1
  loss = functools.partial(
    experiment.objective.loss_of_step, statistics=statistics, num_lanes=lanes
  )
  return functools.partial(
    train_step, experiment=experiment, loss=loss, in_shape=in_shape
  )


def compile_training(training: Training) -> Training:
  """Compiles the steps and the evaluation of a training.

  Returns:
    The training with compiled steps and a compiled evaluation.

  Raises:
    RunError: If the memory is not enough.
  """
  experiment, abstract = training.experiment, training.abstract
  config, mesh = experiment.config, experiment.mesh
  with (
    on_mesh(mesh, config),
    concurrent.futures.ThreadPoolExecutor(1) as other_core,
  ):
    if mesh.size > 1:
      warn_of_unsplit(config, mesh, abstract['model'])
    if config.curriculum.grows:
      log_unended(config, experiment.task, experiment.model)
    # Whether 64 bits are on belongs to a thread.
    has_64_bits = jnp.result_type(float) == jnp.float64

    def compile_measurements() -> Evaluation:
      with jax.enable_x64(has_64_bits):
        return compile_evaluation(config, training.evaluation, abstract['model'], mesh)

    measurements = other_core.submit(compile_measurements)
    if jax.process_count() > 1:
      measurements.result()  # All processes must compile programs in the same order.
    key, inputs = replicate((training.key, training.inputs), mesh)
    limit = replicate(np.int32(0), mesh)
    assert isinstance(training.steps, jax.stages.Wrapped)  # They are not compiled yet.
    traced = training.steps.trace(abstract, key, limit, limit, inputs)
    return training._replace(
      steps=traced.lower().compile(),
      key=key,
      inputs=inputs,
      evaluation=measurements.result(),
      flops=product_flops(traced.jaxpr.jaxpr),
    )
