"""The trainer: from a config to a compiled program, a trained model and its records.

It reads from top to bottom: `train` checks and opens the workdir; `make_program` builds
and `Trainer` compiles, restores, loops, evaluates and saves.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import copy
import dataclasses
import functools
import json
import math
import pathlib
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, Key, PyTree

from zoo.config import memory
from zoo.config.curricula import has_curriculum, log_unended
from zoo.config.mesh import make_mesh, replicate
from zoo.config.validation import (
  Config,
  build_task,
  differences,
  num_heads,
  to_json,
  validate,
)
from zoo.core.draws import TRAIN_STREAM, stream_of
from zoo.core.errors import RunError, UserError
from zoo.core.protocols import Model, Task
from zoo.host import processes
from zoo.host.files import workdir_path
from zoo.host.interruption import Interruption
from zoo.measure.comparison import Comparison
from zoo.measure.contracts import check_sampled
from zoo.storage.checkpointer import Checkpoints, run_metadata
from zoo.storage.saved_models import load
from zoo.storage.workdir import BEST, PROFILE, occupied
from zoo.theory import is_ours
from zoo.training.batch_parts import num_lanes
from zoo.training.comparison import compare_members
from zoo.training.evaluation import Evaluation, Measured, Risks
from zoo.training.layout import Layout, State
from zoo.training.objective import (
  Numbers,
  make_objective,
  numbers_of,
  stack_tasks,
  stacked_moments,
  uses_statistics,
)
from zoo.training.population import init_side_by_side, mesh_axis, stack_abstract
from zoo.training.records import (
  Progress,
  Records,
  copy_all,
  read_lines,
  risk_of,
)
from zoo.training.step import (
  abstract_state,
  initial_weights,
  keys_of,
  make_init,
  make_step,
  make_train_steps,
)
from zoo.training.summary import (
  SUMMARY,
  Summary,
  finished_summary,
  summarise,
  write_summary,
)
from zoo.training.trace import Steps, check_steps, steps_left, traced
from zoo.training.utilisation import describe, product_flops

# A recorded step, and the newest line of the first model.
Recorded = tuple[int, dict[str, Any]]


class NotFiniteError(RunError):
  """No model of a run has a finite loss, gradient and weights any more."""


@dataclasses.dataclass(frozen=True)
class Event:
  """A logged step of a run."""

  step: int
  metrics: dict[str, Any]  # its line of `metrics.jsonl`; None: not measured there
  summary: Summary | None  # of the whole run, at its last step
  _make_model: Callable[[], Model]

  @property
  def model(self) -> Model:
    """A copy of the model as it is after this step.

    Raises UserError once training has gone on.
    """
    return self._make_model()


def train(
  config: Config, workdir: str | pathlib.Path, profile: Steps | None = None
) -> Summary | None:
  """Trains the model of a config, or resumes from the workdir.

  `profile` holds the first and last step to trace into `workdir/profile`.

  Returns the summary, which is also in `summary.json`. After SIGTERM it returns None,
  and after Ctrl-C it raises KeyboardInterrupt; in both cases everything is saved, and
  the same call resumes. Raises UserError if the config or the workdir is invalid,
  before anything is written; RunError if the loss is not finite or the disk is full.
  The workdir may be in a bucket: gs://bucket/runs/a. If there are several processes,
  each must make the same call, with a workdir that they share; process 0 writes the
  records.
  """
  summary = None
  for event in _run(config, workdir, profile, ahead=True):
    summary = event.summary
  return summary


def training_run(
  config: Config, workdir: str | pathlib.Path
) -> Generator[Event, None, None]:
  """Trains like `train`, and yields each logged step, the last with the summary.

  A caller that stops early, by `break` or `close`, leaves a run whose state is saved at
  that step; the same call goes on from there. So does a call after SIGTERM, which ends
  the iteration. A finished run yields its last step. Raises what `train` raises; if
  there are several processes, all must stop at the same step.
  """
  return _run(config, workdir, None, ahead=False)


def _run(
  config: Config, workdir: str | pathlib.Path, profile: Steps | None, ahead: bool
) -> Generator[Event, None, None]:
  """Yields the logged steps; with `ahead` their models cannot be asked for."""
  config = copy.deepcopy(_validate_everywhere(config))  # the caller may change it
  check_steps(profile, config.train.num_steps)
  with processes.propagate_errors():
    workdir = workdir_path(workdir)
  program = None
  if processes.run_on_main(functools.partial(is_new, workdir)):
    processes.run_on_main(lambda: bool(initial_weights(config)))  # checks them
    with processes.propagate_errors():
      program = make_program([config])
      program.compile()  # so that nothing is written if it does not fit
  with occupied(workdir, config), Interruption() as interruption:
    yield from run_locked(config, workdir, interruption, profile, ahead, program)


def is_new(workdir: pathlib.Path) -> bool:
  """Whether a folder is missing or empty."""
  return not workdir.is_dir() or not any(workdir.iterdir())


def run_locked(
  config: Config,
  workdir: pathlib.Path,
  interruption: Interruption,
  profile: Steps | None = None,
  ahead: bool = True,
  program: Program | None = None,
) -> Generator[Event, None, None]:
  """Like `training_run`, in a workdir that belongs to this config and is locked.

  `program` is that of the config if it has been made.
  """
  metadata = run_metadata(config)
  with contextlib.ExitStack() as stack:
    keep, best = config.checkpoint.keep, None
    checkpoints = stack.enter_context(Checkpoints(workdir, keep, metadata))
    if config.checkpoint.keep_best:
      best = stack.enter_context(Checkpoints(workdir / BEST, 1, metadata))
    finished = functools.partial(_finished_summary, config, workdir, checkpoints)
    if summary := processes.run_on_main(finished):
      steps_left(profile, summary['step'])
      lines = read_lines(workdir)
      line = lines[-1] if lines else {}
      yield Event(summary['step'], line, summary, lambda: load(workdir).model)
      return
    program = make_program([config]) if program is None else program
    trainer = Trainer(program, [workdir], checkpoints, interruption, best)
    steps = trainer.steps(config.model.name, profile=profile, ahead=ahead)
    # Closed here, since Python drops the error of a generator that it has to close.
    stack.enter_context(contextlib.closing(steps))
    for step, line in steps:
      summary = None
      if trainer.summaries is not None:
        (summary,) = trainer.summaries
        assert summary is not None  # a single model that is not finite raises RunError
        write_summary(workdir, summary)
      yield Event(step, line, summary, functools.partial(trainer.model_after, step))


def _validate_everywhere(config: Config) -> Config:
  """The config, checked in every process; all must have the same one."""
  if jax.process_count() > 1 and not jax.distributed.is_initialized():
    raise UserError(
      f'this is one of {jax.process_count()} processes, which are not connected; '
      '--distributed is missing (in Python: jax.distributed.initialize)'
    )
  with processes.propagate_errors():
    config = validate(config)
    make_mesh(config)  # raises UserError if the devices cannot form it
  theirs = processes.run_on_main(functools.partial(to_json, config))
  with processes.propagate_errors():
    if to_json(config) != theirs:
      differing = differences(json.loads(theirs), config, resumes=False)
      raise UserError(
        f'the config differs from that of process 0 (there) in {", ".join(differing)}'
      )
  return config


def _finished_summary(
  config: Config, workdir: pathlib.Path, checkpoints: Checkpoints
) -> Summary | None:
  """The summary of a finished run; an outdated one is deleted."""
  # If the checkpoints of a finished run were deleted, return the saved result.
  deleted = checkpoints.latest is None and not checkpoints.set_aside
  at_end = deleted or checkpoints.latest == config.train.num_steps
  summary = finished_summary(workdir, config) if at_end else None
  if summary is None:
    (workdir / SUMMARY).unlink(missing_ok=True)
  return summary


@dataclasses.dataclass
class Program:
  """What trains one model, or many side by side, on a mesh.

  Nothing is compiled or on the devices before it is asked for: those of the mesh need
  not exist.
  """

  configs: Sequence[Config]  # one per model; they share all fields read here
  tasks: Sequence[Task]  # one per model
  mesh: Mesh
  layout: Layout
  graph: nnx.GraphDef  # of the model
  uses_statistics: bool  # whether models take sufficient statistics of prompts
  train_steps: jax.stages.Wrapped  # as `make_train_steps` compiles it
  key: Key[Array, '*n']  # of the training prompts, for all models or for each
  numbers: Numbers  # of one model, or of each along a first axis
  init: Callable[[], State]  # makes the state at step 0
  # The compiled steps, and the floating-point operations in their products of matrices.
  compiled: Callable[..., tuple[State, dict[str, Array]]] | None = None
  flops_per_step: int = 0

  @functools.cached_property
  def evaluation(self) -> Evaluation:
    """What measures the models."""
    given = self.configs, self.tasks, self.graph, self.uses_statistics, self.layout
    return Evaluation(*given, self.mesh)

  @functools.cached_property
  def _inputs(self) -> tuple[Key[Array, '*n'], Numbers]:
    """The key and the numbers, on the devices."""
    return replicate((self.key, self.numbers), self.mesh)

  def compile(self) -> None:
    """Compiles everything, unless it is compiled.

    Raises UserError if training needs more memory than there is.
    """
    if self.compiled is not None:
      return
    with on_mesh(self.mesh, self.configs[0]):
      self._log_what_may_surprise()
      evaluation = self.evaluation
    with concurrent.futures.ThreadPoolExecutor(1) as other_core:
      compiling = other_core.submit(self._compile_evaluation, evaluation)
      if processes.count() > 1:
        compiling.result()  # all processes must compile programs in the same order
      with on_mesh(self.mesh, self.configs[0]):
        traced = self.train_steps.trace(*self.arguments(self.layout.kept, 0, 0))
        self.flops_per_step = product_flops(traced.jaxpr.jaxpr)
        self.compiled = memory.compile_step(
          traced.lower(), self.mesh, self.configs, self.tasks[0]
        )
      compiling.result()

  def _compile_evaluation(self, evaluation: Evaluation) -> None:
    with on_mesh(self.mesh, self.configs[0]):
      evaluation.compile()

  def _log_what_may_surprise(self) -> None:
    """Warns if no weight is split over `model`, and of a curriculum without an end."""
    config, saved = self.configs[0], self.layout.saved['model']
    specs = (leaf.sharding.spec for leaf in jax.tree.leaves(self.layout.used['model']))
    if config.mesh.model > 1 and not any('model' in spec for spec in specs):
      logging.warning(
        'config.mesh.model is %d, but no weight of %r is split over this axis: its '
        'devices repeat the same work; use config.mesh.data',
        config.mesh.model,
        config.model.name,
      )
    log_unended(config, self.tasks[0], nnx.merge(self.graph, saved))

  def advance(
    self, state: State, start: int, stop: int
  ) -> tuple[State, dict[str, Array]]:
    """Starts the steps after `start`, up to `stop`; donates the given state."""
    self.compile()
    assert self.compiled is not None
    return self.compiled(*self.arguments(state, start, stop))

  def arguments(self, state: State, start: int, stop: int) -> tuple:
    """What `train_steps` takes for the steps after `start`, up to `stop`."""
    key, numbers = self._inputs
    limits = (replicate(np.int32(step), self.mesh) for step in (start, stop))
    return state, key, *limits, numbers

  def model_state(self, state: State) -> PyTree:
    """The arrays of the models in a state, in the form for evaluation."""
    return self.layout.saveable({'model': state['model']})['model']

  def evaluate(self, state: State, sampled: bool) -> Measured:
    """Starts the evaluation of a state, on held-out prompts if `sampled`."""
    return self.evaluation.start(self.model_state(state), sampled)

  def compare(self, state: State) -> list[Comparison | None]:
    """The comparison of each model with the baselines of its task; None if not done."""
    # Exact theory compares the models of a sweep with the optima of their tasks.
    if self.uses_statistics and len(self.configs) > 1:
      return [None] * len(self.configs)
    model = self.model_state(state)
    return compare_members(self.configs, self.tasks, self.graph, self.mesh, model)


def make_program(configs: Sequence[Config], mesh: Mesh | None = None) -> Program:
  """The program that trains a model for each config, by default on their own mesh.

  Several models share all that `zoo.training.population.side_by_side` compares, and
  their arrays are stacked along a first axis.
  """
  config, many = max(configs, key=num_heads), len(configs) > 1
  mesh = make_mesh(config) if mesh is None else mesh
  tasks = [build_task(one) for one in configs]
  # Outside `on_mesh`, since the devices of the mesh need not exist.
  key = keys_of(configs, TRAIN_STREAM)
  with on_mesh(mesh, config):
    graphs, abstract = abstract_state(config, mesh)
    model = nnx.merge(graphs['model'], abstract['model'])
    numbers, axes = _numbers_of(configs, tasks)
    if many:
      axis = mesh_axis(config, len(configs))
      abstract = stack_abstract(abstract, len(configs), axis)
    layout = Layout(abstract, config.mesh.fsdp)
    statistics = _may_use_statistics(config) and uses_statistics(
      model, tasks[0], len(configs)
    )
    lanes = 1 if statistics else num_lanes(config, tasks[0], mesh, abstract['model'])
    objective = make_objective(config, tasks[0], statistics, lanes)
    step = make_step(config, graphs, layout, objective)
    init = make_init(config, layout)
    if many:
      init = functools.partial(init_side_by_side, configs, layout.kept)
      step = jax.vmap(step, (0, 0 if key.ndim else None, axes))
    train_steps = make_train_steps(step, layout, mesh)
    return Program(
      configs=configs,
      tasks=tasks,
      mesh=mesh,
      layout=layout,
      graph=graphs['model'],
      uses_statistics=statistics,
      train_steps=train_steps,
      key=key,
      numbers=numbers,
      init=init,
    )


def _may_use_statistics(config: Config) -> bool:
  """Whether whole prompts, in parts or in another type, are not asked for."""
  return (
    config.train.num_parts == 1
    and config.train.compute_dtype == 'float32'
    and config.objective.positions == 'query'
    and config.objective.min_examples is None
    and not has_curriculum(config.curriculum)  # which leaves parts of prompts out
  )


def _numbers_of(
  configs: Sequence[Config], tasks: Sequence[Task]
) -> tuple[Numbers, Any]:
  """The numbers of the models of a program, and along which axes they differ."""
  if len(configs) == 1:
    return numbers_of(tasks[0]), None
  task, task_axes, moments = tasks[0], None, stacked_moments(tasks)
  if all(jax.tree.structure(one) == jax.tree.structure(task) for one in tasks):
    task, task_axes = stack_tasks(tasks)  # else the exact risk needs only the moments
  optimizer = configs[0].optimizer
  rates = [one.optimizer.learning_rate for one in configs]
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


@contextlib.contextmanager
def on_mesh(mesh: Mesh, config: Config) -> Iterator[None]:
  """Computes on a mesh, in the precision that the config asks for."""
  with jax.set_mesh(mesh), jax.default_matmul_precision(config.train.matmul_precision):
    yield


@dataclasses.dataclass
class Trainer:
  """Trains the models of a program: restores, loops, evaluates, records and saves."""

  program: Program
  workdirs: Sequence[pathlib.Path]  # of the records of each model
  checkpoints: Checkpoints
  interruption: Interruption
  best: Checkpoints | None = None  # of the best saved step of a single model
  step: int = 0  # the last one that was started
  state: State = dataclasses.field(init=False)
  finite: np.ndarray = dataclasses.field(init=False)  # [n], as last recorded
  risks: list[Risks] = dataclasses.field(init=False)  # of the models, as last recorded
  # After the last step; None for a model that became non-finite.
  summaries: list[Summary | None] | None = None

  @property
  def config(self) -> Config:
    """The fields that all models of the program share."""
    return self.program.configs[0]

  def steps(
    self,
    label: str,
    tensorboard: bool = True,
    profile: Steps | None = None,
    ahead: bool = True,
  ) -> Generator[Recorded, None, None]:
    """Trains from the newest checkpoint to the end, and yields each recorded step.

    With it comes the line of the first model. The last one comes with the `summaries`,
    unless SIGTERM ends the run before. With `ahead` a step is recorded while the
    devices compute the next ones; otherwise the state is that of the step. A caller
    that stops early leaves a run that is saved. The progress bar shows the `label`, and
    the first workdir gets the trace of the steps `profile`. Raises NotFiniteError once
    no model is finite; RunError if the state of a caller that stops early is not saved.
    """
    num_steps = self.config.train.num_steps
    with contextlib.ExitStack() as stack:
      with self._computing():
        start = processes.run_on_main(lambda: self.checkpoints.latest) or 0
        if start:
          self.checkpoints.check_precision(start, self.program.layout.saved)
        self._lowest = processes.run_on_main(self._lowest_saved)
        self._records = [
          stack.enter_context(Records(workdir, start, tensorboard))
          for workdir in self.workdirs
        ]
        self._progress = stack.enter_context(Progress(label, start, num_steps))
        self.prepare(start)
      try:
        for step, line in self._loop(steps_left(profile, start), ahead):
          if step < num_steps:
            yield step, line
      except GeneratorExit:  # the caller stops early
        try:
          with self._computing():
            self.save_last()
        except RunError as error:
          logging.error('%s', error)  # after `break` Python would not raise it
          raise
        raise
      with self._computing():
        self.save_last()
        self.stop_clock()
        if self.step == num_steps:
          self.summaries = self.summarise()
    if self.summaries is not None:
      yield num_steps, self.line
    elif processes.count() == 1:
      self.interruption.raise_if_ctrl_c()

  @contextlib.contextmanager
  def _computing(self) -> Iterator[None]:
    """Computes on the mesh of the config; not while a caller has the last step."""
    with memory.in_config(self.config), on_mesh(self.program.mesh, self.config):
      yield

  def prepare(self, start: int) -> None:
    """Loads the state saved at a step, or makes the initial state, and compiles."""
    program = self.program
    program.compile()
    if start:
      logging.info('resuming at step %d of %d', start, self.config.train.num_steps)
      saved = self.checkpoints.load(start, program.layout.saved)
      state = program.layout.opened(saved)
    else:
      state = program.init()
    state, metrics = program.advance(state, start, start)
    self.step, self._saved, self.state, self.risks = start, start, state, []
    if start and self.best is not None:  # a kill may have come before it was saved
      self._save_best(program.layout.saveable(state))
    self.finite = np.atleast_1d(jax.device_get(metrics['finite']))
    self._progress.start_clock(start)
    self._last_save = time.monotonic()

  def _loop(self, profile: Steps | None, ahead: bool) -> Iterator[Recorded]:
    """Advances, records and saves up to the last step, or to an interruption.

    Yields the recorded steps.
    """
    config, waiting = self.config, []  # measurements that are not recorded yet
    first, last = profile or (0, 0)
    with contextlib.ExitStack() as trace:
      while self.step < config.train.num_steps and not self.interruption.due():
        recorded, start = [], self.step
        with self._computing():
          if start + 1 == first:
            trace.enter_context(traced(self.workdirs[0] / PROFILE, (first, last)))
          ends = [end for end in (first - 1, last) if end > start]
          stop = min([_next_stop(start, config), *ends])
          measured = self.advance(stop)
          recorded += map(self.record, waiting)  # while the devices compute to `stop`
          waiting = [measured]
          due = stop % config.checkpoint.every == 0 or stop == config.train.num_steps
          due = due or self.waited_too_long()
          # Only a finite state is saved, and nothing of earlier steps is traced.
          if due or not ahead or first - 1 <= stop <= last:
            recorded += map(self.record, waiting)
            waiting = []
          if due:
            self.save()
          if self.step == last:
            trace.close()
        if not ahead:  # the caller may print
          self._progress.clear()
        yield from recorded
    with self._computing():
      recorded = [*map(self.record, waiting)]
    yield from recorded

  def advance(self, stop: int) -> dict[str, Any]:
    """Starts training up to a step, and returns its measurements without waiting."""
    self.state, metrics = self.program.advance(self.state, self.step, stop)
    at_end = stop == self.config.train.num_steps
    sampled = at_end or stop % self.config.eval.every == 0
    if self.best is not None:  # whose risk must be known where it is saved
      sampled |= stop % self.config.checkpoint.every == 0
    self.step = stop
    return {**metrics, 'evaluation': self.program.evaluate(self.state, sampled)}

  def record(self, measured: dict[str, Any]) -> Recorded:
    """Waits for a result of `advance`, records it, and returns its step and line.

    Raises NotFiniteError if no model is finite.
    """
    fetched: dict[str, Any] = jax.device_get(measured)
    lines = [_line(fetched, i) for i in range(len(self._records))]
    before, self.finite = self.finite, np.atleast_1d(fetched['finite'])
    done = int(fetched['step'])
    self._progress.advance(done)
    if not self.finite.any():
      self._raise_not_finite(lines[0])
    for i in np.flatnonzero(before & ~self.finite).tolist():
      logging.warning('%s: %s', self._records[i].workdir.name, _not_finite(lines[i]))
    self.risks = self.program.evaluation.finish(fetched['evaluation'])
    rate, _ = self._progress.speed(done)
    for i in np.flatnonzero(self.finite).tolist():
      risk = self.risks[i]
      lines[i] |= {
        'eval_risk': risk.sampled and risk.sampled.mean,
        'eval_accuracy': risk.accuracy and risk.accuracy.mean,
        'exact_risk': risk.exact,
        'curve': risk.curve,
        'steps_per_second': rate,
      }
      self._records[i].write(lines[i])
    shown = lines[int(np.argmax(self.finite))]
    self._progress.show(loss=shown['loss'], risk=risk_of(shown))
    return done, self.line

  @property
  def line(self) -> dict[str, Any]:
    """The newest line of the records of the first model, empty if there is none."""
    return dict(self._records[0].line)

  def model_after(self, step: int) -> Model:
    """A copy of the first model after the newest step; raises UserError for another."""
    if step != self.step:
      raise UserError(
        f'the model of step {step} is gone: training is at step {self.step}; take it '
        'before the next step is asked for'
      )
    with self._computing():
      state = self.program.model_state(self.state)
      return nnx.merge(self.program.graph, jax.tree.map(jnp.copy, state))

  def waited_too_long(self) -> bool:
    """Whether the last save was more than `checkpoint.every_minutes` ago.

    All processes of a run must call this at the same step; process 0 has the clock.
    """
    minutes = self.config.checkpoint.every_minutes
    if minutes is None:
      return False
    return processes.run_on_main(
      lambda: time.monotonic() > self._last_save + 60 * minutes
    )

  def save(self) -> None:
    """Saves the state, unless it is already saved."""
    self._last_save = time.monotonic()
    if self.step > self._saved:
      state = self.program.layout.saveable(self.state)
      self.checkpoints.save(self.step, state, lambda: copy_all(self._records))
      self._saved = self.step
      self._save_best(state)

  def _save_best(self, state: State) -> None:
    """Saves the state once more if its risk is the lowest of those saved so far."""
    if self.best is not None and processes.run_on_main(self._is_best):
      self.best.save(self.step, state)

  def _is_best(self) -> bool:
    risk, line = None, self.line
    if line.get('step') == self.step:
      risk = risk_of(line)
    if risk is None or risk >= self._lowest:
      return False
    self._lowest = risk
    # If newer steps were lost, the best may be one that training comes to again.
    assert self.best is not None
    return self.step > (self.best.latest or 0)

  def _lowest_saved(self) -> float:
    """The risk of the best step that is saved; infinite if there is none."""
    step = self.best.latest if self.best is not None else None
    lines = read_lines(self.workdirs[0]) if step is not None else []
    risks = [risk_of(line) for line in lines if line['step'] == step]
    return min((risk for risk in risks if risk is not None), default=math.inf)

  def save_last(self) -> None:
    """Saves the state, unless it is already saved, and waits until it is."""
    self.save()
    self.checkpoints.wait()
    if self.best is not None:
      self.best.wait()

  def stop_clock(self) -> None:
    """Notes the speed of this launch, and logs how fast the devices have computed."""
    self._speed = self._progress.speed(self.step)
    rate, _ = self._speed
    if rate is not None:
      devices = self.program.mesh.devices
      kind = devices.flat[0].device_kind
      logging.info(
        '%s', describe(rate * self.program.flops_per_step, kind, devices.size)
      )

  def summarise(self) -> list[Summary | None]:
    """The summary of each model at the end, None for one that is not finite."""
    if not self.risks:  # an earlier launch ended after the last step, without a summary
      measured = self.program.evaluate(self.state, sampled=True)
      self.risks = self.program.evaluation.finish(jax.device_get(measured))
    program, comparisons = self.program, self.program.compare(self.state)
    return [
      summarise(
        config,
        program.mesh,
        self.risks[i],
        comparisons[i],
        self._speed,
        program.flops_per_step,
        self._records[i].wall_time,
      )
      if self.finite[i]
      else None
      for i, config in enumerate(program.configs)
    ]

  def _raise_not_finite(self, line: dict[str, Any]) -> None:
    self.checkpoints.wait()
    latest = self.checkpoints.latest
    # A folder in which nothing was saved may be used with another config.
    other = ', in another folder,' if latest else ''
    good = f'last good checkpoint: step {latest}' if latest else 'no checkpoint yet'
    self._check_prompts_of(line['step'] - 1)
    raise NotFiniteError(
      f'{_not_finite(line)}: stopped, not saved; {good}; a smaller '
      f'config.optimizer.learning_rate or a config.optimizer.clip_norm{other} may help'
    )

  def _check_prompts_of(self, step: int) -> None:
    """Raises RunError if not the weights but the prompts of a step are not finite."""
    config, task = self.config, build_task(self.config)
    if is_ours(task):  # whose prompts are finite
      return
    key = jax.random.fold_in(stream_of(config.seed, TRAIN_STREAM), step)
    try:
      check_sampled(task, key, config.train.batch_size)
    except UserError as error:
      raise NotFiniteError(f'step {step + 1} is not finite: {error}') from None


def _line(measured: dict[str, Any], i: int) -> dict[str, Any]:
  """What a model's line of the records has of its training."""
  loss, norm = (np.atleast_1d(measured[name])[i] for name in ('loss', 'grad_norm'))
  return {'step': int(measured['step']), 'loss': float(loss), 'grad_norm': float(norm)}


def _not_finite(line: dict[str, Any]) -> str:
  return (
    f'step {line["step"]} is not finite (loss {line["loss"]:g}, gradient norm '
    f'{line["grad_norm"]:g}, or the weights after it)'
  )


def _next_stop(step: int, config: Config) -> int:
  """The step at which the next call ends: the next to log, evaluate or save at."""
  every = config.train.log_every, config.eval.every, config.checkpoint.every
  return min(config.train.num_steps, *((step // n + 1) * n for n in every))
