"""Many models in one program: the same step and evaluation under `jax.vmap`.

The models share one computation over a first axis of their arrays and their numbers.
They may have different seeds, learning rates and initial weights, and tasks that differ
in numbers. `make_many` makes this computation, as `make_training` makes that of one
model; `zoo.training.sweeps.many` trains with it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Key, PyTree

from zoo import theory
from zoo.config.run import Run
from zoo.core.draws import EVAL_STREAM, INIT_STREAM, TRAIN_STREAM, stream_of
from zoo.core.protocols import Task
from zoo.objectives import StepInputs
from zoo.sharding import (
  State,
  axis_of_models,
  on_mesh,
  replicated,
  shardings_of,
  stack_abstract,
  stays_in_shape,
)
from zoo.training.compilation import Training, step_of
from zoo.training.evaluation import (
  Evaluation,
  HeldOut,
  exact_risks_of,
  exact_rule,
  measure_held_out,
)
from zoo.training.experiment import Experiment, create
from zoo.training.initial import initial_weights
from zoo.training.step import make_steps


def make_many(experiments: Sequence[Experiment]) -> Training:
  """Returns the programs that train the model of each experiment; nothing is compiled.

  The experiments must be one group of `zoo.training.sweeps.side_by_side`: a single
  program can then train all of them. The arrays of the models are stacked along a first
  axis.
  """
  first = experiments[0]
  config, mesh, alone = first.config, first.mesh, first.asked
  configs = [experiment.config for experiment in experiments]
  tasks = [experiment.task for experiment in experiments]
  key = keys_of(configs, TRAIN_STREAM)
  with on_mesh(mesh, config):
    statistics = first.objective.uses_statistics(len(experiments))
    axis = axis_of_models(config, len(experiments), first.objective.draws_prompts)
    abstract = stack_abstract(alone, len(experiments), axis)
    in_shape = stays_in_shape(config, mesh, abstract)
    # What an objective draws by a key depends on the number of lanes, so this must be
    # the number of a model that is trained alone.
    counted = alone if first.objective.gets_task_and_key else abstract
    step = step_of(first, counted['model'], statistics, in_shape)
    inputs, axes = inputs_of_many(configs, tasks)
    step = jax.vmap(step, (0, 0 if key.ndim else None, None, axes))
  return Training(
    experiment=first,
    abstract=abstract,
    uses_statistics=statistics,
    init=functools.partial(init_side_by_side, experiments, abstract),
    steps=make_steps(step, abstract, mesh, in_shape),
    key=key,
    inputs=inputs,
    evaluation=make_evaluation_many(experiments, statistics),
  )


def init_side_by_side(
  experiments: Sequence[Experiment], abstract: State, from_source: bool = True
) -> State:
  """Returns the stacked states at step 0.

  Args:
    experiments: The experiment of each model.
    abstract: The shapes and shardings of the stacked states.
    from_source: Whether weights are read from `train.init_from`, if it names any.
  """
  all_states = []
  for experiment in experiments:  # To compile them together would take seconds.
    config, task = experiment.config, experiment.task
    weights = initial_weights(experiment) if from_source else None
    modules = create(config, task, stream_of(config.seed, INIT_STREAM), weights)
    all_states.append({name: nnx.state(module) for name, module in modules.items()})

  def stack(*leaves: Any) -> Any:
    if _is_key(leaves[0]):
      return jnp.stack(leaves)
    return np.stack([np.asarray(leaf) for leaf in leaves])

  return jax.device_put(jax.tree.map(stack, *all_states), shardings_of(abstract))


def unstack(experiments: Sequence[Experiment], stacked: State) -> Iterator[State]:
  """Yields the states one by one, on the mesh of the first experiment."""
  shardings = shardings_of(experiments[0].asked)
  # NumPy has no random keys.
  stacked = jax.tree.map(
    lambda leaf: leaf if _is_key(leaf) else np.asarray(leaf), stacked
  )
  for i in range(len(experiments)):
    alone = jax.tree.map(lambda leaf, i=i: leaf[i], stacked)
    yield jax.device_put(alone, shardings)


def _is_key(leaf: Any) -> bool:
  """Returns whether an array holds random keys of JAX, which NumPy cannot hold."""
  return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def inputs_of_many(
  configs: Sequence[Run], tasks: Sequence[Task]
) -> tuple[StepInputs, Any]:
  """Returns the inputs of a step of all models, and along which axes they differ."""
  task, task_axes, moments = tasks[0], None, stacked_moments(tasks)
  structures = [jax.tree.structure(task) for task in tasks]
  if all(structure == structures[0] for structure in structures):
    task, task_axes = stack_tasks(tasks)  # Tasks that differ in more have moments only.
  optimizer = configs[0].optimizer
  rates = [config.optimizer.learning_rate for config in configs]
  axes = StepInputs(task_axes, None if moments is None else 0)  # pyright: ignore
  inputs = StepInputs(task, moments)
  # With such inputs one program can train at other rates and for other numbers of
  # steps.
  budgets = optimizer.schedule == 'wsd' and optimizer.warmup_share is None
  if budgets or len({*rates}) > 1:
    inputs = inputs._replace(learning_rate=np.array(rates, 'f'))
    axes = axes._replace(learning_rate=0)
  if budgets:
    inputs = inputs._replace(num_steps=np.float32(configs[0].train.num_steps))
  return inputs, axes


def stream_keys(configs: Sequence[Run], stream: int) -> Key[Array, ' n']:
  """Returns the key of one of the random streams of the seed of each config.

  All random numbers are a pure function of the seed, of one of its streams, and of the
  step.
  """
  return jnp.stack([stream_of(config.seed, stream) for config in configs])


def keys_of(configs: Sequence[Run], stream: int) -> Key[Array, '*n']:
  """Returns the key of a stream: one for all configs of one seed, or one for each.

  Models with the same key see the same prompts, which are then sampled once.
  """
  if len({config.seed for config in configs}) == 1:
    return stream_of(configs[0].seed, stream)
  return stream_keys(configs, stream)


def stacked_moments(tasks: Sequence[Task]) -> theory.Moments | None:
  """Returns the moments of tasks along a new first axis.

  The result is None unless exact theory covers all tasks.
  """
  if not all(map(theory.covers, tasks)):
    return None
  all_moments = [theory.task_moments(task) for task in tasks]
  if any(moments.feature_covariance is not None for moments in all_moments):
    all_moments = [
      moments._replace(feature_covariance=np.eye(moments.prior_mean.size))
      if moments.feature_covariance is None
      else moments
      for moments in all_moments
    ]
  return jax.tree.map(lambda *leaves: np.stack(leaves), *all_moments)


def stack_tasks(tasks: Sequence[Task]) -> tuple[Task, PyTree]:
  """Returns tasks that differ in numbers as one value, and the axis of each leaf.

  Numbers in which the tasks differ are stacked along a new first axis, whose axis is 0.
  Numbers that all tasks share stay as they are, with the axis None, so that everything
  drawn from them is drawn once.
  """
  leaves, (structure, *_) = zip(*map(jax.tree.flatten, tasks), strict=True)
  joint, axes = [], []
  for leaves_of_tasks in zip(*leaves, strict=True):
    arrays = [np.asarray(leaf) for leaf in leaves_of_tasks]
    is_shared = all(np.array_equal(arrays[0], array) for array in arrays)
    joint.append(leaves_of_tasks[0] if is_shared else np.stack(arrays))
    axes.append(None if is_shared else 0)
  return jax.tree.unflatten(structure, joint), jax.tree.unflatten(structure, axes)


def make_evaluation_many(
  experiments: Sequence[Experiment], statistics: bool
) -> Evaluation:
  """Returns everything that measures many models, on held-out prompts of their tasks.

  Nothing is compiled yet. All models have the same key of held-out prompts. Only the
  tasks of learning rules may differ in more than numbers.
  """
  first = experiments[0]
  config, graph = first.config, first.graphs['model']
  tasks = [experiment.task.held_out() for experiment in experiments]
  moments = stacked_moments(tasks)
  key = stream_of(config.eval.seed, EVAL_STREAM)
  sample = functools.partial(measure_held_out, graph, config, tasks[0], statistics)
  groups: dict[object, list[int]] = {}  # Tasks of a group differ in numbers alone.
  for i, task in enumerate(tasks):
    groups.setdefault(jax.tree.structure(task), []).append(i)
  joint = [stack_tasks([tasks[i] for i in members]) for members in groups.values()]

  def sample_many(state: PyTree, inputs: Any) -> HeldOut:
    parts, (key, tasks, moments) = [], inputs
    for members, task, (_, axis) in zip(groups.values(), tasks, joint, strict=True):
      at = np.array(members)
      few, constants = jax.tree.map(lambda leaf, at=at: leaf[at], (state, moments))
      run = jax.vmap(sample, (0, (None, axis, 0)))
      parts.append(run(few, (key, task, constants)))
    back = np.argsort(np.concatenate([*groups.values()]))
    return jax.tree.map(lambda *part: jnp.concatenate(part)[back], *parts)

  whole = replicated(first.mesh)
  rules = jax.vmap(functools.partial(exact_rule, graph, tasks[0]))
  return Evaluation(
    sample=jax.jit(sample_many, out_shardings=whole),
    rule=jax.jit(rules, out_shardings=whole),
    exact=functools.partial(exact_risks_of, tasks, moments, True),
    inputs=(key, [task for task, _ in joint], moments),
    num_prompts=config.eval.num_batches * config.train.batch_size,
    is_sampled=bool(config.eval.num_batches or config.eval.metrics),
    is_stacked=True,
  )
