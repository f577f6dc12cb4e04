"""A run: from a config to a trained model and its records, read from top to bottom.

`train` and `training_run` are what users call. Both go through `events_of`, which
checks and compiles everything, restores the newest saved step, trains, saves, and
writes the summary. The functions below it are its parts: they prepare a run, restore a
step, make the events, and end the run.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import pathlib
from collections.abc import Generator, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from flax import nnx
from jaxtyping import PyTree

from zoo.config.read import Readable, read, to_content, to_json, with_fields
from zoo.config.run import Run
from zoo.config.saved import differences
from zoo.contracts.agreement import check_agreement, has_own_classes
from zoo.contracts.checks import check_sampled
from zoo.core.draws import TRAIN_STREAM, stream_of
from zoo.core.errors import RunError, UserError, shown
from zoo.core.protocols import Model
from zoo.core.saved_arrays import check_can_be_saved
from zoo.host import processes
from zoo.host.devices import memory_of, start_devices
from zoo.host.files import finite_or_null, workdir_path
from zoo.host.interruption import Interruption
from zoo.host.progress import hidden, progress_bar
from zoo.measure.comparison import checked_baselines
from zoo.objectives import OfFunction
from zoo.sharding import State, on_mesh
from zoo.storage.checkpoints import (
  Checkpoints,
  kept_steps,
)
from zoo.storage.loading import load
from zoo.storage.steps import Launch
from zoo.storage.workdir import open_workdir
from zoo.training.against_baselines import compare_with_baselines, num_compared
from zoo.training.compilation import Training, compile_training, make_training
from zoo.training.evaluation import Risks, evaluate, finish_evaluation
from zoo.training.experiment import Experiment, build
from zoo.training.hooks import Event, Hook, checked_hooks, record
from zoo.training.initial import source_of
from zoo.training.loop import Chunk, Loop
from zoo.training.measured_anew import fields_without_effect, with_missing_metrics
from zoo.training.records import (
  Records,
  Saves,
  TensorBoard,
  read_lines,
  show,
)
from zoo.training.summary import (
  Divergence,
  Summary,
  finished_summary,
  summarise,
  write_summary,
)


class NotFiniteError(RunError):
  """The error of a run whose loss, gradient or weights are not finite any more.

  If several models are trained side by side, it is raised when no model is finite any
  more, and it is about the model that was lost last.

  Attributes:
    divergence: The record that a sweep writes into `diverged.json` for this model: the
      step, its loss and the reason.
  """

  def __init__(self, message: str, divergence: Divergence):
    super().__init__(message)
    self.divergence = divergence


def train(
  config: Readable,
  workdir: str | pathlib.Path,
  hooks: Sequence[Hook] = (),
  compare: bool = False,
) -> Summary | None:
  """Trains the model of a config, or resumes the run that the workdir holds.

  If there are several processes, each must make the same call, with a workdir that they
  share; process 0 writes the records.

  Args:
    config: The config of the run, such as `zoo.default_config` returns.
    workdir: The folder of the run. It may be in a bucket: gs://bucket/runs/a. A missing
      or empty folder begins a new run. A folder with a run of the same config resumes
      it from its newest checkpoint, or returns its summary if it has ended. A run that
      has ended goes on if the config has more steps. Its config, its summary and its
      log stay as they are until the first new step is saved.
    hooks: Objects that are called while the run trains (see `zoo.Hook`). Without hooks
      the next steps start while the last ones are being recorded, which is faster.
    compare: Whether the model is also compared with the baselines of its task at the
      end, as `summary['comparison']`, on `config.eval.num_compared` prompts. A run that
      has ended is compared again if this number has changed. There is no comparison if
      there are fewer than two prompts or too little memory, or if
      `config.eval.num_batches` is 0.

  Returns:
    The summary, which is also in `summary.json`. After SIGTERM or SIGHUP, and after
    Ctrl-C if there are several processes, the result is None. The newest step is then
    saved, and the same call resumes from it.

  Raises:
    UserError: If the config or the workdir is invalid, if another process is training
      in the workdir, or if checks or compilation show that the memory is not enough for
      a new run. Nothing is written then.
    RunError: If the loss, the gradient or the weights are not finite, if the newest
      checkpoint is damaged, if the folder cannot be written, or if the memory is not
      enough and this shows only while a run resumes or trains.
    KeyboardInterrupt: If Ctrl-C was pressed and there is one process. The newest step
      is saved, and the same call resumes from it.

  Example:
    >>> config = zoo.default_config('yq_lsa')
    >>> config.train.num_steps = config.eval.every = 10
    >>> summary = zoo.train(config, 'runs/a')
    >>> summary['step'], summary['exact_risk'] > summary['optimal_risk']
    (10, True)
  """
  experiment, folder = build_everywhere(config, workdir)
  return run_to_end(experiment, folder, checked_hooks(hooks), compare)


def run_to_end(
  experiment: Experiment, workdir: pathlib.Path, hooks: Sequence[Hook], compare: bool
) -> Summary | None:
  """Goes through all events of a run, as `train` does for a config.

  Returns:
    The summary. None if a signal has ended the run before.
  """
  last = None
  for event in events_of(
    experiment, workdir, hooks, looks_ahead=not hooks, compare=compare
  ):
    last = event
  return None if last is None else last.summary


def training_run(
  config: Readable, workdir: str | pathlib.Path, hooks: Sequence[Hook] = ()
) -> Generator[Event, None, None]:
  """Trains like `train`, and yields an event after each logged step.

  A logged step is one after which the run logs, evaluates or saves: a multiple of
  `train.log_every`, `eval.every` or `checkpoint.every`, one of `checkpoint.steps`, or
  the last step.

  The caller drives the loop: training continues only when the caller asks for the next
  event. The caller may stop early by closing the iterator. The newest step is then
  saved, the workdir is free again, and the same call resumes from this step. If there
  are several processes, all of them must stop at the same step.

  The config, the workdir and the hooks are checked by the call itself. The folder is
  opened when the first event is asked for, and errors about what is in it are raised
  then.

  In `for event in zoo.training_run(...)` a `break` closes the iterator, because no
  variable holds it. If a variable holds it, as after `events = zoo.training_run(...)`,
  a `break` leaves it open: nothing is saved, and the workdir stays locked. Call
  `events.close()` then, or put the loop into the block
  `with contextlib.closing(zoo.training_run(...)) as events:`.

  Args:
    config: The config of the run, such as `zoo.default_config` returns.
    workdir: The folder of the run. It may be in a bucket: gs://bucket/runs/a. A missing
      or empty folder begins a new run, and a folder with a run of the same config
      resumes it.
    hooks: Objects that are called before the event is yielded (see `zoo.Hook`).

  Returns:
    An iterator over the events of the logged steps. The last event has the summary. A
    run that has ended already yields its last event only. SIGTERM and SIGHUP end the
    iteration without a summary, and so does Ctrl-C if there are several processes.

  Raises:
    UserError: If the config or the workdir is invalid, if another process is training
      in the workdir, or if checks or compilation show that the memory is not enough for
      a new run. Nothing is written then.
    RunError: If the loss, the gradient or the weights are not finite, if the newest
      checkpoint is damaged, if the folder cannot be written, or if the memory is not
      enough and this shows only while a run resumes or trains.
    KeyboardInterrupt: If Ctrl-C was pressed and there is one process. The newest step
      is saved, and the same call resumes from it.

  Example:
    >>> config = zoo.default_config('yq_lsa')
    >>> config.train.num_steps = config.eval.every = 10
    >>> for event in zoo.training_run(config, 'runs/a'):
    ...   print(event.step, event.summary is not None)
    10 True
  """
  experiment, folder = build_everywhere(config, workdir)
  return events_of(experiment, folder, checked_hooks(hooks), looks_ahead=False)


def events_of(
  experiment: Experiment,
  workdir: pathlib.Path,
  hooks: Sequence[Hook],
  looks_ahead: bool,
  compare: bool = False,
) -> Generator[Event, None, None]:
  """Yields the events of a run: the whole course of `train` and `training_run`.

  Args:
    experiment: The experiment of the run.
    workdir: The full path of the folder of the run.
    hooks: The hooks of the caller.
    looks_ahead: Whether the loop starts the steps of the next chunk before the results
      of this chunk are read (see `Loop`).
    compare: Whether the model is compared with the baselines of its task at the end.

  Yields:
    An event for each logged step; the last one has the summary.
  """  # noqa: DOC501 (it raises what `train` and `training_run` list)
  config = experiment.config
  new = processes.run_on_main(functools.partial(is_new, workdir))
  training, initial = prepare_new(experiment) if new else (None, None)
  summary = None
  with (
    open_workdir(workdir, config),
    Interruption(of_iterator=True) as interruption,
    Checkpoints(
      workdir,
      config.checkpoint.keep,
      to_content(config),
      kept_steps(config),
    ) as checkpoints,
  ):
    # A folder that is not new has a run, or only the lock or the config of a run that
    # ended before its first step was saved.
    if not new:
      summary = processes.run_on_main(
        lambda: finished_run(config, workdir, checkpoints.latest)
      )
      if summary is not None:
        event = finished_event(config, workdir, summary)
        event = with_missing_metrics(experiment, event)
        yield compare_with_baselines(experiment, event) if compare else event
        interruption.raise_if_ctrl_c()
        return
      resumes = processes.run_on_main(lambda: checkpoints.latest is not None)
      training, initial = prepare(experiment, resumes)
    assert training is not None  # It comes from `prepare_new` or from `prepare`.
    step, state = restored(training, checkpoints, initial)
    num_steps, risks, event = config.train.num_steps, None, None
    with (
      Records(workdir, step, config) as records,
      TensorBoard(records, step) as board,
      progress_bar(config.model.name, num_steps, 'step', initial=step) as bar,
    ):
      saves = Saves(config, checkpoints, step, [records])
      loop = Loop(training, state, step, saves.due, interruption, looks_ahead)
      try:
        for chunk in loop:
          if not chunk.metrics['finite']:
            raise not_finite(experiment, chunk.metrics, checkpoints)
          if event is None and chunk.metrics['grad_norm'] == 0:
            logging.warning(
              'the gradient of step %d is 0 for all trained weights of %s, which may '
              'never learn',
              chunk.step,
              config.model.name,
            )
          (risks,) = finish_evaluation(training.evaluation, chunk.measured)
          event = event_of(training, config, loop, chunk, risks, records)
          with hidden(bar):  # Hooks may print.
            event = record(event, [records, board, *hooks])
          show(bar, event.metrics)
          if chunk.must_save:
            saves.save(loop.step, loop.state)
            with hidden(bar):
              for hook in hooks:
                hook.on_save(event)
          if chunk.step < num_steps:
            with hidden(bar):  # The caller may print.
              yield event
      except GeneratorExit:  # The caller stops early.
        save_at_break(saves, loop)
        raise
      saves.save_last(loop.step, loop.state)
      if loop.step == num_steps:
        records.replace()  # They still wait if no step was left to be trained.
        seconds, history = records.wall_time, checkpoints.history
        summary = summarised(training, loop, risks, seconds, history)
    if summary is not None:
      event = event or finished_event(config, workdir, summary)
      del state, loop  # The memory of the optimizer is free for the comparison.
      event = dataclasses.replace(event, summary=summary)
      yield ended(experiment, event, hooks, compare)
    interruption.raise_if_ctrl_c()


def is_new(workdir: pathlib.Path) -> bool:
  """Returns whether a folder is missing or empty. A file is not new."""
  return not workdir.exists() or (workdir.is_dir() and not any(workdir.iterdir()))


def prepare_new(experiment: Experiment) -> tuple[Training, State | None]:
  """Returns what `prepare` returns for a new run, before anything is written.

  Raises:
    UserError: If `prepare` raises it, or if the memory is not enough: nothing is lost
      yet, so that the user can change the config. Every process raises it.
  """
  with processes.propagate_errors():
    try:
      return prepare(experiment, resumes=False)
    except RunError as error:  # Nothing is written yet.
      raise UserError(str(error)) from error


def prepare(experiment: Experiment, resumes: bool) -> tuple[Training, State | None]:
  """Checks and compiles what trains a run.

  A run that resumes is checked, too, since its code may be new. The model of such a
  check has random weights, because the weights that `train.init_from` names were read
  when the run began, and may be gone.

  Args:
    experiment: The experiment of the run.
    resumes: Whether the run goes on from a saved step.

  Returns:
    The compiled training, and the state at step 0, which is None if the run resumes.

  Raises:
    UserError: If the ways in which the model predicts do not agree, or if its initial
      weights cannot be read. Every process raises it.
    RunError: If the memory is not enough.
  """
  logging.info('checking and compiling %s', experiment.config.model.name)
  with processes.propagate_errors():
    training = make_training(experiment)
    state: State | None = checked_state(training, from_source=not resumes)
    if resumes:
      state = None  # This frees its memory before the steps need it.
  return compile_training(training), state


def checked_state(training: Training, from_source: bool = True) -> State:
  """Returns the state at step 0, after checking that it can be saved and used.

  The memory must be enough for the weights, there must be weights to train, all arrays
  must be of types that can be saved, and all ways in which a model of the user's own
  predicts must agree. The baselines of the task are asked for, too, if the run begins
  and is compared with them: a mistake in them would otherwise show after the last step.

  Args:
    training: The compiled or uncompiled training of the model.
    from_source: Whether the weights are read from `train.init_from`, if it names any.

  Raises:
    UserError: If the model has no `nnx.Param`, if a leaf of the state cannot be saved,
      if two ways of predicting disagree or one reads the target of the query, if the
      objective changes variables of the model, if the baselines are not predictors by
      name, or if the initial weights cannot be read.
    RunError: If the memory is not enough.
  """
  experiment = training.experiment
  config, task = experiment.config, experiment.task
  check_can_be_saved(training.abstract)
  if from_source and num_compared(config) >= 2:
    checked_baselines(task)
  with on_mesh(experiment.mesh, config):
    check_memory(experiment)
    state = training.init(from_source)
    model = nnx.merge(experiment.graphs['model'], state['model'])
    if not jax.tree.leaves(nnx.state(model, nnx.Param)):
      name = type(model).__name__
      raise UserError(f'{name} has no nnx.Param; there is nothing to train')
    if has_own_classes(model, task):
      check_agreement(model, task, config.train.batch_size)
    if isinstance(experiment.objective, OfFunction):
      experiment.objective.check_variables(model)
  return state


def check_memory(experiment: Experiment) -> None:
  """Checks that memory can hold the state and the gradient of each weight.

  Later releases of jaxlib abort the process where arrays are far too large.

  Raises:
    MemoryError: If the memory of a device, or of the CPU that has it, is less.
  """
  model = nnx.merge(experiment.graphs['model'], experiment.abstract['model'])
  gradients = nnx.state(model, nnx.Param)
  devices = experiment.mesh.local_devices
  needed = sum(
    math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
    for leaf in jax.tree.leaves((experiment.abstract, gradients))
  )
  if devices[0].platform == 'cpu':  # They share one memory.
    needed *= len(devices)
  memory = memory_of(devices[0])
  if memory is not None and needed > memory:
    raise MemoryError(
      'the weights, their gradients and the state of the optimizer take '
      f'{needed / 2**30:,.1f} GiB of {memory / 2**30:,.1f} GiB'
    )


def build_everywhere(
  config: Readable, workdir: str | pathlib.Path
) -> tuple[Experiment, pathlib.Path]:
  """Returns the experiment of a config, and the full path of the workdir.

  Every process makes the same call.

  Raises:
    UserError: If the processes are not connected, if the config or the workdir is
      invalid, or if a process has another config than process 0.
  """
  start_devices()
  if jax.process_count() > 1 and not jax.distributed.is_initialized():
    raise UserError(
      f'this is one of {jax.process_count()} processes, which are not connected; '
      '--distributed is missing (in Python: jax.distributed.initialize)'
    )
  with processes.propagate_errors():
    read_config, path = read(config), workdir_path(workdir)
  source = processes.run_on_main(lambda: source_of(read_config, path))
  with processes.propagate_errors():
    experiment = build(with_fields(read_config, source))
  if jax.process_count() > 1:
    check_same_config(experiment.config)
  return experiment, path


def check_same_config(config: Run) -> None:
  """Checks that all processes have the same config.

  Raises:
    UserError: If a process has another config than process 0. Every process raises it.
  """
  theirs = processes.run_on_main(functools.partial(to_json, config))
  with processes.propagate_errors():
    if to_json(config) != theirs:
      differing = differences(json.loads(theirs), to_content(config), resumes=False)
      raise UserError(
        f'the config differs from that of process 0 (there) in {", ".join(differing)}'
      )


def finished_run(
  config: Run, workdir: pathlib.Path, latest: int | None
) -> Summary | None:
  """Returns the summary of a run that has ended, and None if it has not.

  It is called on process 0.

  Args:
    config: The config of this launch.
    workdir: The folder of the run.
    latest: The newest saved step; None if the checkpoints were deleted.
  """
  if latest not in (None, config.train.num_steps):
    return None
  summary = finished_summary(workdir, config)
  if summary is not None and (fields := fields_without_effect(config, workdir)):
    logging.warning('the run has ended and keeps its config: %s', shown(fields))
  return summary


def ended(
  experiment: Experiment, event: Event, hooks: Sequence[Hook], compare: bool
) -> Event:
  """Writes the summary of a run after its last step, and tells the hooks.

  The summary is written before the comparison: a run that has taken its last step must
  not lose its result for want of a comparison.

  Returns:
    The event, whose summary has the comparison if `compare` is set.
  """
  assert event.summary is not None  # The run has ended.
  write_summary(event.workdir, event.summary)
  if compare:
    event = compare_with_baselines(experiment, event)
  for hook in hooks:
    hook.on_end(event)
  return event


def finished_event(config: Run, workdir: pathlib.Path, summary: Summary) -> Event:
  """Returns the last event of a run that has ended."""
  line = (read_lines(workdir) or [{}])[-1]
  return Event(
    config, workdir, summary['step'], line, summary, lambda: load(workdir).model
  )


def restored(
  training: Training, checkpoints: Checkpoints, initial: State | None = None
) -> tuple[int, State]:
  """Returns the newest saved step and its state.

  If no step is saved, the result is 0 and the initial state, which is `initial` or, if
  that is None, made anew.
  """
  step = processes.run_on_main(lambda: checkpoints.latest) or 0
  config, mesh = training.experiment.config, training.experiment.mesh
  with on_mesh(mesh, config):
    if not step:
      return 0, training.init(True) if initial is None else initial
    logging.info('resuming at step %d of %d', step, config.train.num_steps)
    return step, checkpoints.load(step, training.abstract)


def event_of(
  training: Training,
  config: Run,
  loop: Loop,
  chunk: Chunk,
  risks: Risks,
  records: Records,
  at: int | None = None,
) -> Event:
  """Returns the event of a model after a chunk.

  Args:
    training: The training of the model.
    config: The config of the model.
    loop: The loop that has trained it.
    chunk: The chunk.
    risks: What was measured of the model after the chunk.
    records: The records of the model.
    at: The number of the model among many models; None if there is only one.

  Returns:
    The event, whose metrics are the line of the step in `metrics.jsonl`. A number that
    was not measured, or that overflows, is None. If nothing was measured, the names of
    registered metrics and `eval_nll` are absent.
  """
  metrics = chunk.metrics if at is None else metrics_of(chunk.metrics, at)
  line = {
    'step': int(metrics['step']),
    'loss': float(metrics['loss']),
    'grad_norm': float(metrics['grad_norm']),
    'eval_risk': risks.sampled and risks.sampled.mean,
    'eval_risk_stderr': risks.sampled and risks.sampled.stderr,
    'eval_num_prompts': risks.sampled and risks.sampled.num,
    'eval_accuracy': risks.accuracy and risks.accuracy.mean,
    'exact_risk': risks.exact,
    'curve': risks.curve,
    'steps_per_second': loop.speed()[0],
    **({} if risks.nll is None else {'eval_nll': risks.nll.mean}),
    **risks.metrics,
    'wall_time': records.wall_time,
  }
  arrays = loop.state['model']
  return Event(
    config,
    records.workdir,
    chunk.step,
    finite_or_null(line),
    None,
    functools.partial(model_of, training.experiment, arrays, chunk.step, at),
  )


def metrics_of(metrics: Mapping[str, np.ndarray], at: int) -> dict[str, np.generic]:
  """Returns the metrics of one of many models, which are scalars."""
  return {name: values[at] for name, values in metrics.items()}


def model_of(
  experiment: Experiment, arrays: PyTree, step: int, at: int | None = None
) -> Model:
  """Returns a copy of the model that has these arrays.

  Args:
    experiment: The experiment whose training made the arrays.
    arrays: The arrays of the model, or of many models along a first axis.
    step: The number of steps after which the arrays were taken, for the message.
    at: The number of the model among many models; None if there is only one.

  Raises:
    UserError: If the arrays are deleted, since the next step has started.
  """
  if any(array.is_deleted() for array in jax.tree.leaves(arrays)):
    raise UserError(
      f'the model of step {step} is gone, since training has gone on; read event.model '
      'before the next event'
    )
  with on_mesh(experiment.mesh, experiment.config):
    if at is not None:
      arrays = jax.tree.map(lambda array: array[at], arrays)
    return nnx.merge(experiment.graphs['model'], jax.tree.map(jnp.copy, arrays))


def save_at_break(saves: Saves, loop: Loop) -> None:
  """Saves the state for a caller that stops early, and waits until it is written.

  Raises:
    RunError: If the state cannot be written. It is logged as well, since Python drops
      an exception that a generator raises after `break`.
  """
  try:
    saves.save_last(loop.step, loop.state)
  except RunError as error:
    logging.error('%s', error)
    raise


def summarised(
  training: Training,
  loop: Loop,
  risks: Risks | None,
  wall_time: float,
  history: list[Launch],
) -> Summary:
  """Returns the summary of a run after its last step.

  `risks` is None if an earlier launch ended after the last step, before it wrote a
  summary; the model is measured again then.
  """
  experiment, evaluation = training.experiment, training.evaluation
  if risks is None:
    config = experiment.config
    with on_mesh(experiment.mesh, config):
      measured = evaluate(config, evaluation, loop.state['model'], loop.step)
    (risks,) = finish_evaluation(evaluation, jax.device_get(measured))
  speed = loop.speed()
  return summarise(experiment, risks, speed, training.flops, wall_time, history)


def not_finite(
  experiment: Experiment, metrics: Mapping[str, np.ndarray], checkpoints: Checkpoints
) -> NotFiniteError:
  """Returns the error of a run whose newest step is not finite.

  Args:
    experiment: The experiment of the run.
    metrics: The metrics of that step.
    checkpoints: The checkpoints, whose newest step the message names.
  """
  checkpoints.wait()
  step, latest = int(metrics['step']), checkpoints.latest
  # A folder in which nothing was saved may be used with another config.
  other = ', in another folder,' if latest else ''
  good = f'last good checkpoint: step {latest}' if latest else 'no checkpoint yet'
  wrong = wrong_prompts(experiment, step - 1)
  divergence = divergence_of(experiment.config, metrics, wrong)
  said = divergence['reason']
  if wrong is None and step == 1 and divergence['loss'] is None:
    said += (
      ': stopped, not saved; the loss is not finite with the initial weights, so that '
      'another learning rate does not help; look at the model, the objective, the size '
      'of the labels and config.train.compute_dtype'
    )
  elif wrong is None:
    said += (
      f': stopped, not saved; {good}; a smaller config.optimizer.learning_rate or a '
      f'config.optimizer.clip_norm{other} may help'
    )
  return NotFiniteError(said, divergence)


def divergence_of(
  config: Run,
  metrics: Mapping[str, np.ndarray | np.generic],
  wrong: UserError | None,
) -> Divergence:
  """Returns the record of a model that is not finite after a step.

  Args:
    config: The config of the model.
    metrics: The metrics of the step.
    wrong: The error in the prompts of this step, as `wrong_prompts` finds it.
  """
  step, loss = int(metrics['step']), float(metrics['loss'])
  reason = f'step {step} is not finite'
  if wrong is None:
    norm = float(metrics['grad_norm'])
    reason += f' (loss {loss:g}, gradient norm {norm:g}, or the weights after it)'
  else:
    reason += f': {wrong}'
  return Divergence(
    model=config.model.name,
    num_steps=config.train.num_steps,
    step=step,
    loss=loss if math.isfinite(loss) else None,
    reason=reason,
  )


def wrong_prompts(experiment: Experiment, step: int) -> UserError | None:
  """Returns the error in the prompts of a step; None if the prompts are valid.

  A loss that is not finite may come from the task instead of the weights.
  """
  config = experiment.config
  key = jax.random.fold_in(stream_of(config.seed, TRAIN_STREAM), step)
  try:
    check_sampled(experiment.task, key, config.train.batch_size)
  except UserError as error:
    return error
  return None
