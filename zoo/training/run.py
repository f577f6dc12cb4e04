"""A run: from a config to a trained model and its records, read from top to bottom."""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
import pathlib
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from flax import nnx
from jaxtyping import PyTree

from zoo.config.building import Config, build_task
from zoo.config.saved import differences, to_json
from zoo.config.sharding import State, make_mesh, on_mesh
from zoo.config.validation import validate
from zoo.core.draws import TRAIN_STREAM, stream_of
from zoo.core.errors import RunError, UserError
from zoo.core.protocols import Model
from zoo.host import processes
from zoo.host.files import workdir_path
from zoo.host.interruption import Interruption
from zoo.measure.agreement import check_agreement
from zoo.measure.contracts.checks import check_sampled
from zoo.storage.checkpoints import (
  Checkpoints,
  check_can_be_saved,
  kept_steps,
  run_metadata,
)
from zoo.storage.loading import load
from zoo.storage.workdir import occupied, open_workdir
from zoo.training.compilation import (
  Training,
  advance,
  compile_training,
  make_training,
)
from zoo.training.evaluation import (
  Fetched,
  Risks,
  evaluate,
  finish_evaluation,
  is_evaluated,
)
from zoo.training.hooks import Hook, numbers_of_hooks
from zoo.training.records import Progress, Records, Saves, read_lines, risk_of
from zoo.training.summary import (
  SUMMARY,
  Divergence,
  Summary,
  finished_summary,
  summarise,
  write_summary,
)


class NotFiniteError(RunError):
  """No model of a run has a finite loss, gradient and weights any more.

  `divergence` is what `diverged.json` says of a run that was trained alone.
  """

  def __init__(self, message: str, divergence: Divergence | None = None):
    super().__init__(message)
    self.divergence = divergence


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

    After the next event it raises UserError, unless a save still holds the arrays.
    """
    return self._make_model()


def train(
  config: Config, workdir: str | pathlib.Path, hooks: Sequence[Hook] = ()
) -> Summary | None:
  """Trains the model of a config, or resumes from the workdir.

  Returns the summary, which is also in `summary.json`. After SIGTERM it returns None,
  and after Ctrl-C it raises KeyboardInterrupt; in both cases everything is saved, and
  the same call resumes. Raises UserError if the config or the workdir is invalid,
  before anything is written; RunError if the loss is not finite or the disk is full.
  The workdir may be in a bucket: gs://bucket/runs/a. If there are several processes,
  each must make the same call, with a workdir that they share; process 0 writes the
  records. The hooks are called while the run trains, as `zoo.Hook` says.
  """
  summary = None
  for event in training_run(config, workdir, hooks):
    summary = event.summary
  return summary


def training_run(
  config: Config, workdir: str | pathlib.Path, hooks: Sequence[Hook] = ()
) -> Generator[Event, None, None]:
  """Trains like `train`, and yields each logged step, the last with the summary.

  A caller that stops early, by `break` or `close`, leaves a run whose state is saved at
  that step; the same call goes on from there. So does a call after SIGTERM, which ends
  the iteration. A finished run yields its last step. Raises what `train` raises;
  several processes must stop at the same step.
  """
  config, workdir = validate_everywhere(config, workdir)
  training, initial, summary = None, None, None
  if processes.run_on_main(functools.partial(is_new, workdir)):
    training, initial = check_and_compile(config)
  with (
    occupied(workdir, config),
    Interruption() as interruption,
    Checkpoints(
      workdir, config.checkpoint.keep, run_metadata(config), kept_steps(config)
    ) as checkpoints,
  ):
    if training is None:  # the folder has a run
      summary = processes.run_on_main(
        lambda: finished_run(config, workdir, checkpoints.latest)
      )
      if summary is not None:
        yield finished_event(workdir, summary)
        return
      resumes = processes.run_on_main(lambda: checkpoints.latest is not None)
      training, initial = compile_and_check(config, resumes)
      processes.run_on_main(lambda: begin(workdir, config))
    step, state = restored(training, checkpoints, initial)
    num_steps, risks = config.train.num_steps, None
    with (
      Records(workdir, step) as records,
      Progress(config.model.name, step, num_steps) as progress,
    ):
      saves = Saves(config, checkpoints, step)
      try:
        while step < num_steps and not interruption.due():
          with on_mesh(training.mesh, config):
            stop, called = next_stop(step, config), time.monotonic()
            state, metrics = advance(training, state, step, stop)
            step = stop
            measured = evaluate(config, training.evaluation, state['model'], step)
            metrics, measured = progress.fetch(called, metrics, measured)
            risks, line = risks_and_line(
              training, metrics, measured, progress, checkpoints
            )
          with progress.hidden():  # hooks and the caller may print
            event = record(training, state, step, line, records, hooks)
          progress.show(step, loss=line['loss'], risk=risk_of(line))
          with on_mesh(training.mesh, config):
            is_saved = saves.due(step)
            if is_saved:
              saves.save(step, state, [records])
          with progress.hidden():
            for hook in hooks if is_saved else ():
              hook.on_save(event)
            if step < num_steps:
              yield event
      except GeneratorExit:  # the caller stops early
        save_at_break(training, saves, step, state, records)
        raise
      with on_mesh(training.mesh, config):
        saves.save_last(step, state, [records])
        if step == num_steps:
          summary = summarised(training, state, risks, progress, records)
    if summary is not None:
      write_summary(workdir, summary)
      for hook in hooks:
        hook.on_end(summary)
      yield event_of(training, state, step, records.line, summary)
    elif jax.process_count() == 1:
      interruption.raise_if_ctrl_c()


def is_new(workdir: pathlib.Path) -> bool:
  """Whether a folder is missing or empty."""
  return not workdir.is_dir() or not any(workdir.iterdir())


def check_and_compile(config: Config) -> tuple[Training, State]:
  """What trains a new run, and its state at step 0, before anything is written.

  Raises UserError, in every process, if the ways in which the model predicts do not
  agree, if the memory is not enough, or if its initial weights cannot be read.
  """
  with processes.propagate_errors():
    training = make_training(config, make_mesh(config))
    try:
      state = checked_state(training)
      return compile_training(training), state
    except RunError as error:  # nothing is written yet
      raise UserError(str(error)) from error


def compile_and_check(config: Config, resumes: bool) -> tuple[Training, State | None]:
  """What trains a run whose folder is not new; its code may be new, and is checked.

  A run that resumes from a saved step is checked with random weights: those that
  `train.init_from` names were read when the run began, and may be gone. A run that has
  saved nothing begins anew, and its state at step 0 is returned, too.
  """
  training = compile_training(make_training(config, make_mesh(config)))
  with processes.propagate_errors():
    state = checked_state(training, from_source=not resumes)
  return training, None if resumes else state


def checked_state(training: Training, from_source: bool = True) -> State:
  """The state at step 0, of a model that can be saved and predicts in one way.

  Args:
    training: What trains the model.
    from_source: Whether its weights are those of `train.init_from`, if it names any.

  Raises:
    UserError: As `check_can_be_saved` and `check_agreement` do.
  """
  check_can_be_saved(training.abstract)
  with on_mesh(training.mesh, training.config):
    state = training.init(from_source=from_source)
    model = nnx.merge(training.graph, state['model'])
    check_agreement(model, training.task, training.config.train.batch_size)
  return state


def validate_everywhere(
  config: Config, workdir: str | pathlib.Path
) -> tuple[Config, pathlib.Path]:
  """A copy of the config, and the workdir as a path, checked in every process.

  All must have the same config.
  """
  if jax.process_count() > 1 and not jax.distributed.is_initialized():
    raise UserError(
      f'this is one of {jax.process_count()} processes, which are not connected; '
      '--distributed is missing (in Python: jax.distributed.initialize)'
    )
  with processes.propagate_errors():
    config = copy.deepcopy(validate(config))  # the caller may change it
    make_mesh(config)  # raises UserError if the devices cannot form it
    path = workdir_path(workdir)
  if jax.process_count() > 1:
    check_same_config(config)
  return config, path


def check_same_config(config: Config) -> None:
  """Raises UserError, in every process, unless all have the config of process 0."""
  theirs = processes.run_on_main(functools.partial(to_json, config))
  with processes.propagate_errors():
    if to_json(config) != theirs:
      differing = differences(json.loads(theirs), config, resumes=False)
      raise UserError(
        f'the config differs from that of process 0 (there) in {", ".join(differing)}'
      )


def finished_run(
  config: Config, workdir: pathlib.Path, latest: int | None
) -> Summary | None:
  """The summary of a finished run, to be called on process 0.

  `latest` is the newest step that is saved, None if the checkpoints were deleted.
  """
  if latest not in (None, config.train.num_steps):
    return None
  summary = finished_summary(workdir, config)
  measured = {name.partition('/')[0] for name in (summary or {}).get('metrics') or ()}
  if summary is not None and (missing := {*config.eval.metrics} - measured):
    logging.warning(
      'the run has ended, and its summary has no metric %s; give another folder, or '
      'more steps',
      ', '.join(sorted(missing)),
    )
  return summary


def begin(workdir: pathlib.Path, config: Config) -> None:
  """Begins to change the folder of an earlier run, which goes on; for process 0.

  It gets the config of this launch, and loses the summary of fewer steps.
  """
  open_workdir(workdir, config, held=True)
  (workdir / SUMMARY).unlink(missing_ok=True)


def finished_event(workdir: pathlib.Path, summary: Summary) -> Event:
  """The last event of a finished run."""
  line = (read_lines(workdir) or [{}])[-1]
  return Event(summary['step'], line, summary, lambda: load(workdir).model)


def restored(
  training: Training, checkpoints: Checkpoints, initial: State | None = None
) -> tuple[int, State]:
  """The newest step that is saved and its state; 0 and the initial state if none is."""
  step = processes.run_on_main(lambda: checkpoints.latest) or 0
  with on_mesh(training.mesh, training.config):
    if not step:
      return 0, training.init() if initial is None else initial
    logging.info('resuming at step %d of %d', step, training.config.train.num_steps)
    return step, checkpoints.load(step, training.abstract)


def next_stop(step: int, config: Config) -> int:
  """The step at which the next call ends: the next to log, evaluate or save at."""
  every = config.train.log_every, config.eval.every, config.checkpoint.every
  kept = [at for at in kept_steps(config) if at > step]
  return min(config.train.num_steps, *((step // n + 1) * n for n in every), *kept)


def risks_and_line(
  training: Training,
  metrics: Mapping[str, np.ndarray],
  measured: Fetched,
  progress: Progress,
  checkpoints: Checkpoints,
) -> tuple[Risks, dict[str, Any]]:
  """The risks after a step whose results are on the host, and its line of the log.

  Raises NotFiniteError.
  """
  if not metrics['finite']:
    raise not_finite(training.config, metrics, checkpoints)
  risks = finish_evaluation(training.evaluation, measured)
  rate, _ = progress.speed(int(metrics['step']))
  return risks, line_of(metrics, risks, rate)


def record(
  training: Training,
  state: State,
  step: int,
  line: dict[str, Any],
  records: Records,
  hooks: Sequence[Hook],
) -> Event:
  """Writes the line of a step, with what hooks add to it, and returns its event."""
  if is_evaluated(training.config, step):
    line |= numbers_of_hooks(hooks, event_of(training, state, step, line))
  records.write(line)
  event = event_of(training, state, step, records.line)
  for hook in hooks:
    hook.on_chunk(event)
  return event


def line_of(
  metrics: Mapping[str, Any], risks: Risks, steps_per_second: float | None
) -> dict[str, Any]:
  """The line of a logged step of one model in `metrics.jsonl`.

  `metrics` are those of the step, which are scalars on the host.
  """
  return {
    'step': int(metrics['step']),
    'loss': float(metrics['loss']),
    'grad_norm': float(metrics['grad_norm']),
    'eval_risk': risks.sampled and risks.sampled.mean,
    'eval_accuracy': risks.accuracy and risks.accuracy.mean,
    'exact_risk': risks.exact,
    'curve': risks.curve,
    'steps_per_second': steps_per_second,
    **risks.metrics,
  }


def event_of(
  training: Training,
  state: State,
  step: int,
  line: Mapping[str, Any],
  summary: Summary | None = None,
) -> Event:
  """The event of a step, with its state and its line of the log."""
  make_model = functools.partial(model_of, training, state['model'], step)
  return Event(step, dict(line), summary, make_model)


def model_of(training: Training, arrays: PyTree, step: int) -> Model:
  """A copy of the model with these arrays; UserError once the next step has them."""
  if any(array.is_deleted() for array in jax.tree.leaves(arrays)):
    raise UserError(
      f'the model of step {step} is gone, since training has gone on; take it before '
      'the next step is asked for'
    )
  with on_mesh(training.mesh, training.config):
    return nnx.merge(training.graph, jax.tree.map(jnp.copy, arrays))


def save_at_break(
  training: Training, saves: Saves, step: int, state: State, records: Records
) -> None:
  """Saves the state for a caller that stops early, and waits; raises RunError."""
  try:
    with on_mesh(training.mesh, training.config):
      saves.save_last(step, state, [records])
  except RunError as error:
    logging.error('%s', error)  # after `break` Python cannot raise it
    raise


def summarised(
  training: Training,
  state: State,
  risks: Risks | None,
  progress: Progress,
  records: Records,
) -> Summary:
  """The summary of a run after its last step."""
  config, evaluation = training.config, training.evaluation
  num_steps = config.train.num_steps
  speed = progress.speed(num_steps)  # before the comparison, which takes seconds
  if risks is None:  # an earlier launch ended after the last step, without a summary
    measured = evaluate(config, evaluation, state['model'], num_steps)
    risks = finish_evaluation(evaluation, jax.device_get(measured))
  comparison = training.compare(state['model'])
  return summarise(
    config, training.mesh, risks, comparison, speed, training.flops, records.wall_time
  )


def not_finite(
  config: Config, metrics: Mapping[str, Any], checkpoints: Checkpoints
) -> NotFiniteError:
  """The error of a run whose newest step, of these metrics, is not finite."""
  checkpoints.wait()
  step, latest = int(metrics['step']), checkpoints.latest
  # A folder in which nothing was saved may be used with another config.
  other = ', in another folder,' if latest else ''
  good = f'last good checkpoint: step {latest}' if latest else 'no checkpoint yet'
  wrong = wrong_prompts(config, step - 1)
  divergence = divergence_of(config, metrics, wrong)
  said = divergence['reason']
  if wrong is None:
    said += (
      f': stopped, not saved; {good}; a smaller config.optimizer.learning_rate or a '
      f'config.optimizer.clip_norm{other} may help'
    )
  return NotFiniteError(said, divergence)


def divergence_of(
  config: Config, metrics: Mapping[str, Any], wrong: UserError | None
) -> Divergence:
  """The record of a model whose step, of these metrics, is not finite.

  `wrong` is what `wrong_prompts` says of the prompts of this step.
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
    loss=loss,
    reason=reason,
  )


def wrong_prompts(config: Config, step: int) -> UserError | None:
  """What is wrong with the prompts of a step, not with the weights; None if nothing."""
  task = build_task(config)
  key = jax.random.fold_in(stream_of(config.seed, TRAIN_STREAM), step)
  try:
    check_sampled(task, key, config.train.batch_size)
  except UserError as error:
    return error
  return None
