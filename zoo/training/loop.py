"""The training loop: from a config to a trained model, a workdir and a summary."""

from __future__ import annotations

import contextlib
import functools
import json
import pathlib
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from absl import logging

from zoo.config import memory
from zoo.config.mesh import make_mesh
from zoo.config.validation import (
  Config,
  build_task,
  differences,
  minutes_between_saves,
  minutes_of_patience,
  to_json,
  validate,
)
from zoo.core.errors import RunError, UserError
from zoo.host import processes
from zoo.host.files import user_path
from zoo.host.interruption import Interruption
from zoo.measure.contracts import check_sampled
from zoo.storage.bucket_checkpoints import AnyCheckpoints, BucketCheckpoints
from zoo.storage.bucket_workdir import bucket_workdir
from zoo.storage.buckets import is_url
from zoo.storage.checkpointer import Checkpoints
from zoo.storage.metadata import run_metadata
from zoo.storage.workdir import locked, open_workdir
from zoo.theory import is_ours
from zoo.training.comparison import log_fewer_prompts
from zoo.training.evaluation import Risks
from zoo.training.layout import State
from zoo.training.program import Program, on_mesh, program_of
from zoo.training.records import Progress, Records
from zoo.training.step import TRAIN_STREAM, stream_key
from zoo.training.summary import (
  SUMMARY,
  Summary,
  abstract_models,
  finished_summary,
  summarise,
  write_summary,
)
from zoo.training.trace import Steps, Trace, check_steps, log_no_trace
from zoo.training.utilisation import describe


class NotFiniteError(RunError):
  """No model of a run has a finite loss, gradient and weights any more."""


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
  _validate_everywhere(config)
  check_steps(profile, config.train.num_steps)
  if is_url(workdir):
    program_of(config).compile()
    return _train_in_bucket(config, str(workdir), profile)
  workdir = user_path(workdir)
  if not workdir.is_dir() or not any(workdir.iterdir()):
    program_of(config).compile()  # so that nothing is written if it does not fit
  open_workdir(workdir, config)
  try:
    with locked(workdir), Interruption() as interruption:
      open_workdir(workdir, config)  # another program may have taken it just before
      return train_locked(config, workdir, interruption, profile)
  except OSError as error:
    raise RunError(f'{workdir} could not be written: {error}') from error


def _train_in_bucket(config: Config, url: str, profile: Steps | None) -> Summary | None:
  patience = 60 * minutes_of_patience(config)
  with (
    bucket_workdir(url, config, patience) as mirror,
    Interruption() as interruption,
  ):
    checkpoints = BucketCheckpoints(
      mirror, config.checkpoint.keep, run_metadata(config)
    )
    return _train_with(config, mirror.stage, checkpoints, interruption, profile)


def train_locked(
  config: Config,
  workdir: pathlib.Path,
  interruption: Interruption,
  profile: Steps | None = None,
) -> Summary | None:
  """Like `train`, in a workdir that belongs to this config and is locked."""
  checkpoints = Checkpoints(workdir, config.checkpoint.keep, run_metadata(config))
  return _train_with(config, workdir, checkpoints, interruption, profile)


def _train_with(
  config: Config,
  workdir: pathlib.Path,
  checkpoints: AnyCheckpoints,
  interruption: Interruption,
  profile: Steps | None,
) -> Summary | None:
  with checkpoints:
    finished = functools.partial(_finished_summary, config, workdir, checkpoints)
    if summary := processes.run_on_main(finished):
      if profile is not None:
        log_no_trace(profile, 'the run is finished')
      return summary
    program = program_of(config)
    label = config.model.name
    result = run(program, [workdir], checkpoints, interruption, label, profile=profile)
  if result is None:
    return None
  (summary,) = result.summaries
  assert summary is not None  # a single model that is not finite raises RunError
  write_summary(workdir, summary)
  return summary


def _validate_everywhere(config: Config) -> None:
  """Checks the config in every process, and that all processes have the same one."""
  if jax.process_count() > 1 and not jax.distributed.is_initialized():
    raise UserError(
      f'this is one of {jax.process_count()} processes, which are not connected; '
      '--distributed is missing (in Python: jax.distributed.initialize)'
    )
  with processes.propagate_errors():
    validate(config)
    make_mesh(config)  # raises UserError if the devices cannot form it
  theirs = processes.run_on_main(functools.partial(to_json, config))
  with processes.propagate_errors():
    if to_json(config) != theirs:
      differing = differences(json.loads(theirs), config) or ['mesh']
      raise UserError(
        f'the config differs from that of process 0 (there) in {", ".join(differing)}'
      )


def _finished_summary(
  config: Config, workdir: pathlib.Path, checkpoints: AnyCheckpoints
) -> Summary | None:
  """The summary of a finished run; an outdated one is deleted."""
  # If the checkpoints of a finished run were deleted, return the saved result.
  deleted = checkpoints.latest is None and not checkpoints.set_aside
  at_end = deleted or checkpoints.latest == config.train.num_steps
  summary = finished_summary(workdir / SUMMARY, config) if at_end else None
  if summary is None:
    (workdir / SUMMARY).unlink(missing_ok=True)
  return summary


class TrainResult(NamedTuple):
  """The summaries of models after their last step, and the state."""

  summaries: list[Summary | None]  # None for a model that became non-finite
  state: State


def run(
  program: Program,
  workdirs: Sequence[pathlib.Path],
  checkpoints: AnyCheckpoints,
  interruption: Interruption,
  label: str,
  tensorboard: bool = True,
  profile: Steps | None = None,
) -> TrainResult | None:
  """Trains from the newest checkpoint to the end, with records in the workdirs.

  Each model of the program has a workdir; the first one gets the trace of the steps
  `profile`. The progress bar shows the `label`. Returns None after SIGTERM. Raises
  NotFiniteError once no model is finite.
  """
  config = program.configs[0]
  num_steps = config.train.num_steps
  with contextlib.ExitStack() as stack:
    stack.enter_context(memory.in_config(config))
    stack.enter_context(on_mesh(program.mesh, config))
    start = processes.run_on_main(lambda: checkpoints.latest) or 0
    records = [
      stack.enter_context(Records(workdir, start, tensorboard)) for workdir in workdirs
    ]
    progress = stack.enter_context(Progress(label, start, num_steps))
    training = Training(program, checkpoints, records, progress)
    training.prepare(start)
    trace = stack.enter_context(Trace(workdirs[0] / 'profile', profile, start))
    measured = None
    while training.step < num_steps and not interruption.due():
      if trace.starts_after(training.step):
        training.record(measured)  # waits, so that no earlier step is traced
        measured = None
        trace.start()
      stop = trace.next_stop(training.step, _next_stop(training.step, config))
      before, measured = measured, training.advance(stop)
      training.record(before)  # while the devices compute the steps to `stop`
      if trace.ends_after(stop):
        training.record(measured)  # waits, so that the whole step is traced
        measured = None
        trace.end()
      by_steps = stop % config.checkpoint.every == 0 or stop == num_steps
      if by_steps or training.waited_too_long():
        training.record(measured)  # waits, since only a finite state is saved
        measured = None
        training.save()
    training.record(measured)
    training.save_last()
    training.stop_clock()
    if training.step < num_steps:
      if processes.count() == 1:
        interruption.raise_if_ctrl_c()
      return None
    return TrainResult(training.summarise(), training.state)


class Training:
  """Models in training: prepared, advanced in several calls, and recorded."""

  step: int  # the last one that was started
  state: State
  finite: np.ndarray  # [n]: which models are finite, as last recorded
  risks: list[Risks]  # of the models, as last recorded

  def __init__(
    self,
    program: Program,
    checkpoints: AnyCheckpoints,
    records: Sequence[Records],
    progress: Progress,
  ):
    self._program = program
    self._config = program.configs[0]
    self._checkpoints = checkpoints
    self._records = records
    self._progress = progress

  def prepare(self, step: int) -> None:
    """Loads the state saved at a step, or makes the initial state, and compiles."""
    self.step = self._saved = step
    self.state, self.finite = self._program.prepare(step, self._checkpoints)
    self.risks = []
    self._flops = self._program.flops_per_step
    self._progress.start_clock(step)
    self._last_save = time.monotonic()

  def advance(self, stop: int) -> dict[str, Any]:
    """Starts training up to a step, and returns its measurements without waiting."""
    self.state, metrics = self._program.advance(self.state, self.step, stop)
    at_end = stop == self._config.train.num_steps
    sampled = at_end or stop % self._config.eval.every == 0
    self.step = stop
    return {**metrics, 'evaluation': self._program.evaluate(self.state, sampled)}

  def record(self, measured: dict[str, Any] | None) -> None:
    """Waits for a result of `advance` and records it.

    Raises NotFiniteError if no model is finite.
    """
    if measured is None:
      return
    fetched: dict[str, Any] = jax.device_get(measured)
    lines = [_line(fetched, i) for i in range(len(self._records))]
    before, self.finite = self.finite, np.array([line.pop('finite') for line in lines])
    done = max(line['step'] for line in lines)
    self._progress.advance(done)
    if not self.finite.any():
      self._raise_not_finite(lines[0])
    for i in np.flatnonzero(before & ~self.finite).tolist():
      logging.warning('%s: %s', self._records[i].workdir.name, _not_finite(lines[i]))
    self.risks = self._program.evaluation.finish(fetched['evaluation'])
    rate, _ = self._progress.speed(done)
    for i in np.flatnonzero(self.finite).tolist():
      risk = self.risks[i]
      lines[i]['eval_risk'] = risk.sampled and risk.sampled.mean
      lines[i]['exact_risk'] = risk.exact
      lines[i]['curve'] = risk.curve
      self._records[i].write({**lines[i], 'steps_per_second': rate})
    shown = lines[int(np.argmax(self.finite))]
    risk = shown['eval_risk'] if shown['exact_risk'] is None else shown['exact_risk']
    self._progress.show(loss=shown['loss'], risk=risk)

  def waited_too_long(self) -> bool:
    """Whether the last save was more than `checkpoint.every_minutes` ago.

    All processes of a run must call this at the same step; process 0 has the clock.
    """
    minutes = minutes_between_saves(self._config)
    if minutes is None:
      return False
    return processes.run_on_main(
      lambda: time.monotonic() > self._last_save + 60 * minutes
    )

  def save(self) -> None:
    """Saves the state, unless it is already saved."""
    self._last_save = time.monotonic()
    if self.step > self._saved:
      self._checkpoints.save(self.step, self._program.layout.saveable(self.state))
      self._saved = self.step

  def save_last(self) -> None:
    """Saves the state, unless it is already saved, and waits until it is."""
    self.save()
    while not self._checkpoints.wait():  # a bucket could not be reached
      self._saved = -1
      self.save()

  def stop_clock(self) -> None:
    """Notes the speed of this launch, and logs how fast the devices have computed."""
    self._speed = self._progress.speed(self.step)
    rate, _ = self._speed
    if rate is not None:
      devices = self._program.mesh.devices
      kind = devices.flat[0].device_kind
      logging.info('%s', describe(rate * self._flops, kind, devices.size))

  def summarise(self) -> list[Summary | None]:
    """The summary of each model at the end, None for one that is not finite."""
    if not self.risks:  # an earlier launch ended after the last step, without a summary
      measured = self._program.evaluate(self.state, sampled=True)
      self.risks = self._program.evaluation.finish(jax.device_get(measured))
    if self._program.comparisons is not None:
      log_fewer_prompts(self._config)
    comparisons = self._program.compare(self.state)
    models = abstract_models(self._program.configs)
    return [
      summarise(
        self._program,
        i,
        models[i],
        self.risks[i],
        comparisons[i],
        self._speed,
        self._flops,
        self._records[i].wall_time,
      )
      if self.finite[i]
      else None
      for i in range(len(self._records))
    ]

  def _raise_not_finite(self, line: dict[str, Any]) -> None:
    self._checkpoints.wait()
    latest = self._checkpoints.latest
    # A folder in which nothing was logged or saved may be used with another config.
    other = ', in another folder,' if latest or self.risks else ''
    good = f'last good checkpoint: step {latest}' if latest else 'no checkpoint yet'
    self._check_prompts_of(line['step'] - 1)
    raise NotFiniteError(
      f'{_not_finite(line)}: stopped, not saved; {good}; a smaller '
      f'config.optimizer.learning_rate or a config.optimizer.clip_norm{other} may help'
    )

  def _check_prompts_of(self, step: int) -> None:
    """Raises RunError if not the weights but the prompts of a step are not finite."""
    config, task = self._config, build_task(self._config)
    if is_ours(task):  # whose prompts are finite
      return
    key = jax.random.fold_in(stream_key(config, TRAIN_STREAM), step)
    try:
      check_sampled(task, key, config.train.batch_size)
    except UserError as error:
      raise NotFiniteError(f'step {step + 1} is not finite: {error}') from None


def _line(measured: dict[str, Any], i: int) -> dict[str, Any]:
  """The line of a model's records, with measurements still to be filled in."""
  loss, grad_norm, finite = (
    np.atleast_1d(measured[name])[i] for name in ('loss', 'grad_norm', 'finite')
  )
  return {
    'step': int(measured['step']),
    'loss': float(loss),
    'eval_risk': None,
    'exact_risk': None,
    'curve': None,
    'grad_norm': float(grad_norm),
    'finite': bool(finite),
  }


def _not_finite(line: dict[str, Any]) -> str:
  return (
    f'step {line["step"]} is not finite (loss {line["loss"]:g}, gradient norm '
    f'{line["grad_norm"]:g}, or the weights after it)'
  )


def _next_stop(step: int, config: Config) -> int:
  """The step at which the next call ends: the next to log, evaluate or save at."""
  every = config.train.log_every, config.eval.every, config.checkpoint.every
  return min(config.train.num_steps, *((step // n + 1) * n for n in every))
