"""Many models in one program: the same step and evaluation under `jax.vmap`.

The models share one computation over a first axis of their arrays and their numbers.
They may have different seeds, learning rates and initial weights, and tasks that differ
in numbers. Each is trained as it would be alone, except that sums are added in another
order.
"""

from __future__ import annotations

import contextlib
import functools
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, Key, PyTree

from zoo import theory
from zoo.config.building import Config, build_task
from zoo.config.saved import to_json
from zoo.config.sharding import (
  State,
  axis_of_models,
  make_mesh,
  on_mesh,
  replicated,
  shardings_of,
  stack_abstract,
  stays_in_shape,
)
from zoo.core.draws import EVAL_STREAM, INIT_STREAM, TRAIN_STREAM, stream_of
from zoo.core.errors import UserError
from zoo.core.learning_rule import LearningRule
from zoo.core.protocols import Task
from zoo.host.interruption import Interruption
from zoo.measure.comparison import Comparison
from zoo.storage.checkpoints import Checkpoints
from zoo.training.against_baselines import compare_models
from zoo.training.compilation import Training, compile_training, make_step
from zoo.training.evaluation import (
  Evaluation,
  Fetched,
  Risks,
  Rule,
  Sampled,
  evaluate,
  exact_rule,
  risks_of,
  sample_all,
)
from zoo.training.hooks import Hook, record
from zoo.training.loop import Loop
from zoo.training.objective import Numbers, uses_statistics
from zoo.training.records import Progress, Records, Saves
from zoo.training.run import (
  NotFiniteError,
  divergence_of,
  event_of,
  metrics_of,
  restored,
  wrong_prompts,
)
from zoo.training.step import (
  abstract_state,
  create,
  finite_models,
  initial_weights,
  make_steps,
)
from zoo.training.summary import (
  Divergence,
  Summary,
  read_divergence,
  summarise,
  write_divergence,
)


def make_many(configs: Sequence[Config], mesh: Mesh) -> Training:
  """Returns everything that trains a model for each config; nothing is compiled.

  The configs must be one group of `zoo.training.sweeps.side_by_side`: a single program
  can then train all of them. The arrays of the models are stacked along a first axis.
  """
  config, tasks = configs[0], [build_task(config) for config in configs]
  key = keys_of(configs, TRAIN_STREAM)
  with on_mesh(mesh, config):
    graphs, alone = abstract_state(config, mesh)
    abstract = stack_abstract(alone, len(configs), axis_of_models(config, len(configs)))
    model = nnx.merge(graphs['model'], alone['model'])
    statistics = uses_statistics(config, model, tasks[0], len(configs))
    in_shape = stays_in_shape(config, mesh, abstract)
    step = make_step(
      config, tasks[0], mesh, graphs, alone, abstract, statistics, in_shape
    )
    numbers, axes = numbers_of_many(configs, tasks)
    step = jax.vmap(step, (0, 0 if key.ndim else None, None, axes))
  graph = graphs['model']
  return Training(
    config=config,
    task=tasks[0],
    mesh=mesh,
    graph=graph,
    abstract=abstract,
    uses_statistics=statistics,
    init=functools.partial(init_side_by_side, configs, abstract),
    steps=make_steps(step, abstract, mesh, in_shape),
    key=key,
    numbers=numbers,
    evaluation=make_evaluation_many(configs, tasks, graph, statistics, mesh),
  )


def compile_many(configs: Sequence[Config]) -> Training:
  """Compiles everything that trains and measures a model for each config.

  Returns:
    The compiled steps and the compiled evaluation.

  Raises:
    RunError: If the memory is not enough.
  """
  return compile_training(make_many(configs, make_mesh(configs[0])))


class Member(NamedTuple):
  """One of the models that are trained side by side.

  Attributes:
    config: The config of the model.
    workdir: The folder of the model.
  """

  config: Config
  workdir: pathlib.Path


def train_many(
  training: Training,
  members: Sequence[Member],
  checkpoints: Checkpoints,
  interruption: Interruption,
  label: str,
  hooks: Sequence[Hook] = (),
) -> tuple[State, list[Summary | None]] | None:
  """Trains models side by side to the end, or resumes them from the checkpoints.

  Each model has its records in its folder. A model that is not finite gets
  `diverged.json`.

  Args:
    training: The compiled steps and the compiled evaluation, from `compile_many`.
    members: The config and the folder of each model.
    checkpoints: The checkpoints of all models together.
    interruption: Ends training at the next step that is logged, evaluated or saved.
    label: The label of the progress bar.
    hooks: The hooks that are called for each model at each of these steps.

  Returns:
    The state of all models, and a summary of each model, which is None for a model that
    is not finite. After SIGTERM the result is None.

  Raises:
    NotFiniteError: If no model is finite any more. It has the record of the model that
      was lost last.
    KeyboardInterrupt: If Ctrl-C was pressed.
  """
  config = training.config
  step, state = restored(training, checkpoints)
  with on_mesh(training.mesh, config):
    finite = finite_so_far(members, state, step)
  check_some_finite(members, finite)
  with contextlib.ExitStack() as stack:
    # There is no TensorBoard: to write the lines of all points would take longer than
    # training.
    records = [stack.enter_context(Records(member.workdir, step)) for member in members]
    progress = stack.enter_context(Progress(label, step, config.train.num_steps))
    saves = Saves(config, checkpoints, step, records)
    loop = Loop(training, state, step, saves.due, interruption, looks_ahead=not hooks)
    risks: list[Risks] = []
    for chunk in loop:
      finite = still_finite(members, chunk.metrics, finite)
      check_some_finite(members, finite)
      risks = finish_many(training.evaluation, chunk.measured)
      events = []
      with progress.hidden():  # Hooks may print.
        for i in np.flatnonzero(finite).tolist():
          config_of_point = members[i].config
          event = event_of(
            training, config_of_point, loop, chunk, risks[i], records[i], at=i
          )
          events.append(record(event, [records[i], *hooks]))
      progress.show(events[0].metrics)
      if chunk.is_saved:
        saves.save(loop.step, loop.state)
        with progress.hidden():
          for hook in hooks:
            for event in events:
              hook.on_save(event)
    saves.save_last(loop.step, loop.state)
    if loop.step < config.train.num_steps:
      interruption.raise_if_ctrl_c()
      return None
    return loop.state, summarised_many(training, members, loop, finite, risks, records)


def finite_so_far(members: Sequence[Member], state: State, step: int) -> np.ndarray:
  """Returns which models are finite, and have no record that they were not.

  A model that is not finite and has no record gets one. Its numbers were not finite at
  an earlier step, or it belongs to a run that was given more steps.
  """
  finite = np.array(jax.jit(finite_models, static_argnums=1)(state, 1))
  for i, (config, workdir) in enumerate(members):
    if read_divergence(workdir, config) is not None:
      finite[i] = False
    elif not finite[i]:
      divergence = Divergence(
        model=config.model.name,
        num_steps=config.train.num_steps,
        step=step,
        loss=None,
        reason=f'the weights at step {step}, or the optimizer, are not finite',
      )
      write_divergence(workdir, divergence)
  return finite


def still_finite(
  members: Sequence[Member], metrics: Mapping[str, np.ndarray], before: np.ndarray
) -> np.ndarray:
  """Returns which models are finite after a step, of those that were finite before.

  A model that is no longer finite gets `diverged.json`.
  """
  finite = before & metrics['finite']
  # The keys are the task, the seed and the step, which determine the prompts.
  wrong: dict[str, UserError | None] = {}
  for i in np.flatnonzero(before & ~finite).tolist():
    (config, workdir), alone = members[i], metrics_of(metrics, i)
    lost_at = int(alone['step'])
    prompts = f'{config.seed} {lost_at} {to_json(config.task)}'
    if prompts not in wrong:
      wrong[prompts] = wrong_prompts(config, lost_at - 1)
    divergence = divergence_of(config, alone, wrong[prompts])
    logging.warning('%s: %s', workdir.name, divergence['reason'])
    write_divergence(workdir, divergence)
  return finite


def check_some_finite(members: Sequence[Member], finite: np.ndarray) -> None:
  """Checks that a model is finite; each model that is not has its `diverged.json`.

  Raises:
    NotFiniteError: If no model is finite. It has the record with the largest step.
  """
  if finite.any():
    return
  records = [read_divergence(workdir, config) for config, workdir in members]
  last = max(filter(None, records), key=lambda record: record['step'])
  raise NotFiniteError(
    f'no model is finite any more; of the one that was lost last: {last["reason"]}',
    last,
  )


def summarised_many(
  training: Training,
  members: Sequence[Member],
  loop: Loop,
  finite: np.ndarray,
  risks: Sequence[Risks],
  records: Sequence[Records],
) -> list[Summary | None]:
  """Returns the summaries of models after their last step; None for one not finite.

  The speed and the time are those of the whole program, and all summaries have the same
  ones (see `Summary`). `risks` are those of this step. They are empty if an earlier
  launch ended after this step, without summaries.
  """
  config, evaluation = training.config, training.evaluation
  model_state = loop.state['model']
  # The time of the comparison does not count, as in a run of one model.
  speed, seconds = loop.speed(), max(each.wall_time for each in records)
  with on_mesh(training.mesh, config):
    if not risks:
      measured = evaluate(config, evaluation, model_state, loop.step)
      risks = finish_many(evaluation, jax.device_get(measured))
    configs = [member.config for member in members]
    comparisons: list[Comparison | None] = [None] * len(configs)
    if not training.uses_statistics:  # Else exact theory compares them.
      comparisons = compare_models(
        configs, training.graph, training.mesh, model_state, is_stacked=True
      )
  summaries: list[Summary | None] = []
  for i, own_config in enumerate(configs):
    summary = None
    if finite[i]:
      summary = summarise(
        own_config, training.mesh, risks[i], speed, training.flops, seconds
      )
      summary['comparison'] = comparisons[i]
    summaries.append(summary)
  return summaries


def numbers_of_many(
  configs: Sequence[Config], tasks: Sequence[Task]
) -> tuple[Numbers, Any]:
  """Returns the numbers of the models, and along which axes they differ."""
  task, task_axes, moments = tasks[0], None, stacked_moments(tasks)
  structures = [jax.tree.structure(task) for task in tasks]
  if all(structure == structures[0] for structure in structures):
    task, task_axes = stack_tasks(tasks)  # Tasks that differ in more have moments only.
  optimizer = configs[0].optimizer
  rates = [config.optimizer.learning_rate for config in configs]
  axes = Numbers(task_axes, None if moments is None else 0)  # pyright: ignore
  numbers = Numbers(task, moments)
  # With such inputs one program can train at other rates and for other numbers of
  # steps.
  budgets = optimizer.schedule == 'wsd' and optimizer.warmup_share is None
  if budgets or len({*rates}) > 1:
    numbers = numbers._replace(learning_rate=np.array(rates, 'f'))
    axes = axes._replace(learning_rate=0)
  if budgets:
    numbers = numbers._replace(num_steps=np.float32(configs[0].train.num_steps))
  return numbers, axes


def stream_keys(configs: Sequence[Config], stream: int) -> Key[Array, ' n']:
  """Returns the key of one of the random streams of the seed of each config.

  All random numbers are a pure function of the seed, of one of its streams, and of the
  step.
  """
  return jnp.stack([stream_of(config.seed, stream) for config in configs])


def keys_of(configs: Sequence[Config], stream: int) -> Key[Array, '*n']:
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
  configs: Sequence[Config],
  tasks: Sequence[Task],
  graph: nnx.GraphDef,
  statistics: bool,
  mesh: Mesh,
) -> Evaluation:
  """Returns everything that measures many models, on held-out prompts of their tasks.

  Nothing is compiled yet. All models have the same key of held-out prompts. Only the
  tasks of learning rules may differ in more than numbers.
  """
  config, tasks = configs[0], [task.held_out() for task in tasks]
  moments = stacked_moments(tasks)
  key = stream_of(config.eval.seed, EVAL_STREAM)
  sample = functools.partial(sample_all, graph, config, tasks[0], statistics)
  groups: dict[object, list[int]] = {}  # Tasks of a group differ in numbers alone.
  for i, task in enumerate(tasks):
    groups.setdefault(jax.tree.structure(task), []).append(i)
  joint = [stack_tasks([tasks[i] for i in members]) for members in groups.values()]

  def sample_many(state: PyTree, inputs: Any) -> Sampled:
    parts, (key, tasks, moments) = [], inputs
    for members, task, (_, axis) in zip(groups.values(), tasks, joint, strict=True):
      at = np.array(members)
      few, constants = jax.tree.map(lambda leaf, at=at: leaf[at], (state, moments))
      run = jax.vmap(sample, (0, (None, axis, 0)))
      parts.append(run(few, (key, task, constants)))
    back = np.argsort(np.concatenate([*groups.values()]))
    return jax.tree.map(lambda *part: jnp.concatenate(part)[back], *parts)

  def exact(rules: Rule | None) -> list[float] | list[None]:
    if rules is None or moments is None:
      return [None] * len(tasks)
    if isinstance(rules, LearningRule):
      return np.asarray(theory.exact_risks(rules, moments)).tolist()
    return np.asarray(theory.exact_form_risks(rules, tasks[0])).tolist()

  whole = replicated(mesh)
  rules = jax.vmap(functools.partial(exact_rule, graph, tasks[0]))
  return Evaluation(
    sample=jax.jit(sample_many, out_shardings=whole),
    rule=jax.jit(rules, out_shardings=whole),
    exact=exact,
    inputs=(key, [task for task, _ in joint], moments),
    num_prompts=config.eval.num_batches * config.train.batch_size,
    is_sampled=bool(config.eval.num_batches or config.eval.metrics),
  )


def finish_many(evaluation: Evaluation, fetched: Fetched) -> list[Risks]:
  """Returns the risks of each model, from the fetched result of `evaluate`."""
  sampled, rules = fetched
  exact = evaluation.exact(rules)
  return [
    risks_of(
      jax.tree.map(lambda array, i=i: array[i], sampled),
      exact[i],
      evaluation.num_prompts,
    )
    for i in range(len(exact))
  ]


def unstack(configs: Sequence[Config], stacked: State) -> Iterator[State]:
  """Yields the states one by one, on the mesh of the first config."""
  shardings = shardings_of(abstract_state(configs[0], make_mesh(configs[0]))[1])
  # NumPy has no random keys.
  stacked = jax.tree.map(
    lambda leaf: leaf if _is_key(leaf) else np.asarray(leaf), stacked
  )
  for i in range(len(configs)):
    alone = jax.tree.map(lambda leaf, i=i: leaf[i], stacked)
    yield jax.device_put(alone, shardings)


def init_side_by_side(configs: Sequence[Config], abstract: State) -> State:
  """Returns the stacked states at step 0."""
  all_states = []
  for config in configs:  # To compile them together would take seconds.
    key, weights = stream_of(config.seed, INIT_STREAM), initial_weights(config)
    modules = create(config, key, weights)
    all_states.append({name: nnx.state(module) for name, module in modules.items()})

  def stack(*leaves: Any) -> Any:
    if _is_key(leaves[0]):
      return jnp.stack(leaves)
    return np.stack([np.asarray(leaf) for leaf in leaves])

  return jax.device_put(jax.tree.map(stack, *all_states), shardings_of(abstract))


def _is_key(leaf: Any) -> bool:
  """Returns whether an array holds random keys of JAX, which NumPy cannot hold."""
  return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
