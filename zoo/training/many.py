"""Many models in one program: the same step and evaluation under `jax.vmap`.

The models share one computation over a first axis of their arrays and their numbers.
They may have other seeds, learning rates and initial weights, and tasks that differ in
numbers. Each is trained as it would be alone, except that sums are added in another
order.
"""

from __future__ import annotations

import contextlib
import functools
import pathlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

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
  where_compared,
)
from zoo.core.draws import EVAL_STREAM, INIT_STREAM, TRAIN_STREAM, stream_of
from zoo.core.errors import UserError
from zoo.core.learning_rule import LearningRule
from zoo.core.protocols import Task
from zoo.host import processes
from zoo.host.interruption import Interruption
from zoo.measure.comparison import Comparison, compare_all
from zoo.storage.checkpoints import Checkpoints
from zoo.training.batch_parts import num_lanes
from zoo.training.compilation import Training, advance, compile_training
from zoo.training.evaluation import (
  Evaluation,
  Fetched,
  Measured,
  Risks,
  Rule,
  Sampled,
  evaluate,
  exact_rule,
  risks_of,
  sample_all,
)
from zoo.training.objective import (
  Numbers,
  make_objective,
  uses_statistics,
)
from zoo.training.records import Progress, Records, Saves, risk_of
from zoo.training.run import (
  divergence_of,
  line_of,
  next_stop,
  not_finite,
  restored,
  wrong_prompts,
)
from zoo.training.step import (
  abstract_state,
  create,
  finite_models,
  initial_weights,
  make_steps,
  train_step,
)
from zoo.training.summary import (
  Divergence,
  Summary,
  if_memory_allows,
  num_compared,
  read_divergence,
  summarise,
  write_divergence,
)


def make_many(configs: Sequence[Config], mesh: Mesh) -> Training:
  """What trains a model for each config side by side; nothing is compiled.

  They share all that `zoo.training.sweeps.side_by_side` compares, and their arrays are
  stacked along a first axis.
  """
  config, tasks = configs[0], [build_task(config) for config in configs]
  key = keys_of(configs, TRAIN_STREAM)
  with on_mesh(mesh, config):
    graphs, alone = abstract_state(config, mesh)
    model = nnx.merge(graphs['model'], alone['model'])
    abstract = stack_abstract(alone, len(configs), axis_of_models(config, len(configs)))
    statistics = uses_statistics(config, model, tasks[0], len(configs))
    lanes = 1 if statistics else num_lanes(config, tasks[0], mesh, abstract['model'])
    objective = make_objective(config, tasks[0], statistics, lanes)
    in_shape = stays_in_shape(config, mesh, abstract)
    step = functools.partial(
      train_step,
      config=config,
      graphs=graphs,
      asked=alone['model'],
      objective=objective,
      in_shape=in_shape,
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
    evaluation=evaluate_many(configs, tasks, graph, statistics, mesh),
    compare=functools.partial(compare_many, configs, tasks, graph, mesh, statistics),
  )


def compile_many(configs: Sequence[Config]) -> Training:
  """What trains and measures a model for each config, compiled; raises RunError."""
  return compile_training(make_many(configs, make_mesh(configs[0])))


def train_many(
  training: Training,
  configs: Sequence[Config],
  folders: Sequence[pathlib.Path],
  checkpoints: Checkpoints,
  interruption: Interruption,
  label: str,
) -> tuple[State, list[Summary | None]] | None:
  """Trains models side by side to the end, or resumes them from the checkpoints.

  Each has its records in its folder, and one that is not finite has `diverged.json`.
  Returns the state and a summary of each model, None for one that is not finite; None
  after a signal. Raises KeyboardInterrupt after Ctrl-C, NotFiniteError once no model is
  finite.
  """
  config, num_steps = training.config, training.config.train.num_steps
  risks, waiting = [], None
  with on_mesh(training.mesh, config), contextlib.ExitStack() as stack:
    step, state = restored(training, checkpoints)
    finite = finite_so_far(configs, folders, state, step)
    # Writing all lines of all points for TensorBoard would take longer than training.
    records = [
      stack.enter_context(Records(folder, step, tensorboard=False))
      for folder in folders
    ]
    progress = stack.enter_context(Progress(label, step, num_steps))
    saves = Saves(config, checkpoints, step)
    record = functools.partial(
      record_many, training, configs, records, progress, checkpoints
    )
    while step < num_steps and not interruption.due():
      stop, called = next_stop(step, config), time.monotonic()
      state, metrics = advance(training, state, step, stop)
      step = stop
      measured = evaluate(config, training.evaluation, state['model'], step)
      if waiting is not None:  # recorded while the devices compute
        finite, risks = record(finite, *waiting)
      waiting = called, metrics, measured
      if saves.due(step):  # only a finite state is saved
        finite, risks = record(finite, *waiting)
        waiting = None
        saves.save(step, state, records)
    if waiting is not None:
      finite, risks = record(finite, *waiting)
    saves.save_last(step, state, records)
    if step < num_steps:
      interruption.raise_if_ctrl_c()
      return None
    speed = progress.speed(step)
    if not risks:  # an earlier launch ended after the last step, without summaries
      measured = jax.device_get(
        evaluate(config, training.evaluation, state['model'], step)
      )
      risks = finish_many(training.evaluation, measured)
    comparisons, flops = training.compare(state['model']), training.flops
    times = [record.wall_time for record in records]
    measurements = zip(configs, finite, risks, comparisons, times, strict=True)
    return state, [
      summarise(config, training.mesh, risk, comparison, speed, flops, seconds)
      if is_finite
      else None
      for config, is_finite, risk, comparison, seconds in measurements
    ]


def finite_so_far(
  configs: Sequence[Config], folders: Sequence[pathlib.Path], state: State, step: int
) -> np.ndarray:
  """Which models are finite, and have no record of an earlier step that was not.

  A model that is not finite, and has no record, gets one: its numbers were not finite
  before the first of these steps, or are those of a run that was given more steps.
  """
  finite = np.array(jax.jit(finite_models, static_argnums=1)(state, 1))
  for i, (config, folder) in enumerate(zip(configs, folders, strict=True)):
    if read_divergence(folder, config) is not None:
      finite[i] = False
    elif not finite[i]:
      divergence = Divergence(
        model=config.model.name,
        num_steps=config.train.num_steps,
        step=step,
        loss=None,
        reason=f'the weights at step {step}, or the optimizer, are not finite',
      )
      write_divergence(folder, divergence)
  return finite


def record_many(
  training: Training,
  configs: Sequence[Config],
  records: Sequence[Records],
  progress: Progress,
  checkpoints: Checkpoints,
  before: np.ndarray,
  called: float,
  metrics: Mapping[str, Array],
  measured: Measured,
) -> tuple[np.ndarray, list[Risks]]:
  """Waits for the results of a step, and records those of the finite models.

  `before` says which models were finite before, and `called` when the steps up to this
  one were called, as for `Progress.fetch`. A model that is no longer finite gets
  `diverged.json`, and stays lost. Returns which models are finite, and the risks.
  Raises NotFiniteError if none is.
  """
  values, fetched = progress.fetch(called, metrics, measured)
  finite = before & values['finite']
  alone = [{name: values[name][i] for name in values} for i in range(len(finite))]
  step = int(values['step'].max())
  wrong: dict[str, UserError | None] = {}  # the prompts of each task, seed and step
  for i in np.flatnonzero(before & ~finite).tolist():
    lost_at = int(alone[i]['step'])
    prompts = f'{configs[i].seed} {lost_at} {to_json(configs[i].task)}'
    if prompts not in wrong:
      wrong[prompts] = wrong_prompts(configs[i], lost_at - 1)
    divergence = divergence_of(configs[i], alone[i], wrong[prompts])
    logging.warning('%s: %s', records[i].workdir.name, divergence['reason'])
    write_divergence(records[i].workdir, divergence)
  if not finite.any():
    raise not_finite(training.config, alone[0], checkpoints)
  risks = finish_many(training.evaluation, fetched)
  rate, _ = progress.speed(step)
  for i in np.flatnonzero(finite).tolist():
    records[i].write(line_of(alone[i], risks[i], rate))
  shown = records[int(np.argmax(finite))].line
  progress.show(step, loss=shown['loss'], risk=risk_of(shown))
  return finite, risks


def numbers_of_many(
  configs: Sequence[Config], tasks: Sequence[Task]
) -> tuple[Numbers, Any]:
  """The numbers of the models, and along which axes they differ."""
  task, task_axes, moments = tasks[0], None, stacked_moments(tasks)
  structures = [jax.tree.structure(task) for task in tasks]
  if all(structure == structures[0] for structure in structures):
    task, task_axes = stack_tasks(tasks)  # else the exact risk needs only the moments
  optimizer = configs[0].optimizer
  rates = [config.optimizer.learning_rate for config in configs]
  axes = Numbers(task_axes, None if moments is None else 0)  # pyright: ignore
  numbers = Numbers(task, moments)
  # Such a program can also train at other rates, and for other numbers of steps.
  budgets = optimizer.schedule == 'wsd' and optimizer.warmup_share is None
  if budgets or len({*rates}) > 1:
    numbers = numbers._replace(learning_rate=np.array(rates, 'f'))
    axes = axes._replace(learning_rate=0)
  if budgets:
    numbers = numbers._replace(num_steps=np.float32(configs[0].train.num_steps))
  return numbers, axes


def stream_keys(configs: Sequence[Config], stream: int) -> Key[Array, ' n']:
  """The key of one of the random streams of the seed of each config.

  All random numbers are a pure function of the seed, one of its streams, and the step.
  """
  return jnp.stack([stream_of(config.seed, stream) for config in configs])


def keys_of(configs: Sequence[Config], stream: int) -> Key[Array, '*n']:
  """The key of one of the streams: one for all if they have one seed, or one of each.

  Models with the same key see the same prompts, which are then sampled once.
  """
  if len({config.seed for config in configs}) == 1:
    return stream_of(configs[0].seed, stream)
  return stream_keys(configs, stream)


def stacked_moments(tasks: Sequence[Task]) -> theory.Moments | None:
  """The moments of tasks along a new first axis.

  None unless exact theory covers all of them.
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
  """Tasks that differ in numbers as one value, and the axis of each of its leaves.

  Numbers in which the tasks differ are stacked along a new first axis, 0; those that
  all share are as they are, None, so that what is drawn from them is drawn once.
  """
  leaves, (structure, *_) = zip(*map(jax.tree.flatten, tasks), strict=True)
  joint, axes = [], []
  for leaves_of_tasks in zip(*leaves, strict=True):
    arrays = [np.asarray(leaf) for leaf in leaves_of_tasks]
    is_shared = all(np.array_equal(arrays[0], array) for array in arrays)
    joint.append(leaves_of_tasks[0] if is_shared else np.stack(arrays))
    axes.append(None if is_shared else 0)
  return jax.tree.unflatten(structure, joint), jax.tree.unflatten(structure, axes)


def evaluate_many(
  configs: Sequence[Config],
  tasks: Sequence[Task],
  graph: nnx.GraphDef,
  statistics: bool,
  mesh: Mesh,
) -> Evaluation:
  """What measures many models, each on held-out prompts of its task.

  All have the same key. Only the tasks of learning rules may differ in more than
  numbers.
  """
  config, tasks = configs[0], [task.held_out() for task in tasks]
  moments = stacked_moments(tasks)
  key = stream_of(config.eval.seed, EVAL_STREAM)
  sample = functools.partial(sample_all, graph, config, tasks[0], statistics)
  groups: dict[object, list[int]] = {}  # of tasks that differ in numbers alone
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
  """The risks of each model, from the fetched result of `evaluate`."""
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


def compare_many(
  configs: Sequence[Config],
  tasks: Sequence[Task],
  graph: nnx.GraphDef,
  mesh: Mesh,
  statistics: bool,
  state: PyTree,
) -> list[Comparison | None]:
  """As `compare_model`, for each of many models.

  Those of one task are compared on the same prompts, whatever their seeds. With
  `statistics` exact theory compares them with the optima of their tasks, and there is
  no comparison.
  """
  number = 0 if statistics else num_compared(configs[0])
  comparisons: list[Comparison | None] = [None] * len(configs)
  if number < 2:
    return comparisons
  groups: dict[str, list[int]] = {}
  for i, config in enumerate(configs):
    groups.setdefault(to_json(config.task), []).append(i)

  def measure(stacked: PyTree) -> list[Comparison | None]:
    for members in groups.values():
      states = [jax.tree.map(lambda leaf, i=i: leaf[i], stacked) for i in members]
      models = [nnx.merge(graph, arrays) for arrays in states]
      task, seed = tasks[members[0]], configs[0].eval.seed
      compare = functools.partial(compare_all, models, task, number, seed)
      compared = if_memory_allows(compare)
      if compared is None:  # the task or the models are too large
        continue
      for i, comparison in zip(members, compared, strict=True):
        comparisons[i] = comparison
    return comparisons

  def measure_whole() -> list[Comparison | None]:
    with where_compared(mesh, state) as stacked:
      return processes.run_on_main(functools.partial(measure, stacked))

  return if_memory_allows(measure_whole) or comparisons


def unstack(configs: Sequence[Config], stacked: State) -> Iterator[State]:
  """The states one by one, on the mesh of the first config."""
  shardings = shardings_of(abstract_state(configs[0], make_mesh(configs[0]))[1])
  # Random keys have no form on the host.
  stacked = jax.tree.map(
    lambda leaf: leaf if _is_key(leaf) else np.asarray(leaf), stacked
  )
  for i in range(len(configs)):
    alone = jax.tree.map(lambda leaf, i=i: leaf[i], stacked)
    yield jax.device_put(alone, shardings)


def init_side_by_side(configs: Sequence[Config], abstract: State) -> State:
  """The stacked states at step 0."""
  all_states = []
  for config in configs:  # one by one, since compiling them together takes seconds
    key, weights = stream_of(config.seed, INIT_STREAM), initial_weights(config)
    modules = create(config, key, weights)
    all_states.append({name: nnx.state(module) for name, module in modules.items()})

  def stack(*leaves: Any) -> Any:
    if _is_key(leaves[0]):
      return jnp.stack(leaves)
    return np.stack([np.asarray(leaf) for leaf in leaves])

  return jax.device_put(jax.tree.map(stack, *all_states), shardings_of(abstract))


def _is_key(leaf: Any) -> bool:
  """Whether an array holds random keys of JAX, which NumPy cannot hold."""
  return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
