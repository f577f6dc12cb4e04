"""The training loop: from a config to a trained model, a workdir and a summary."""

from __future__ import annotations

import concurrent.futures
import functools
import importlib.metadata
import json
import pathlib
import platform
import signal
import threading
from typing import Any

import jax
import numpy as np
from absl import logging
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from zoo.errors import RunError
from zoo.training.checkpoints import Checkpoints
from zoo.training.config import Config, build_task, to_json, validate
from zoo.training.evaluation import Evaluation
from zoo.training.objective import make_objective
from zoo.training.records import Records
from zoo.training.step import (
  TRAIN_STREAM,
  abstract_state,
  init_state,
  make_mesh,
  make_train_steps,
  stream_key,
)
from zoo.training.summary import read_summary, summarise
from zoo.training.workdir import claim, locked, write_atomically


def train(config: Config, workdir: str | pathlib.Path) -> dict[str, Any] | None:
  """Trains what the config names, or goes on with what the workdir holds.

  Returns the summary, which is also in `summary.json`. After SIGTERM it returns None,
  after Ctrl-C it raises KeyboardInterrupt; all is saved, and the same call goes on.
  Raises UserError when the config or the workdir is wrong, before anything is written;
  RunError when the loss is not finite or the disk is full.
  """
  validate(config)
  workdir = pathlib.Path(workdir).expanduser()
  claim(workdir, config)
  mesh = make_mesh(config)
  try:
    with (
      locked(workdir),
      jax.set_mesh(mesh),
      jax.default_matmul_precision(config.train.matmul_precision),
      Checkpoints(workdir, config.checkpoint.keep, _origin(config)) as checkpoints,
      Interruption() as interruption,
    ):
      return _train(config, workdir, mesh, checkpoints, interruption)
  except OSError as error:
    raise RunError(f'{workdir} could not be written: {error}') from error


def _train(
  config: Config,
  workdir: pathlib.Path,
  mesh: Mesh,
  checkpoints: Checkpoints,
  interruption: Interruption,
) -> dict[str, Any] | None:
  step, num_steps = checkpoints.latest or 0, config.train.num_steps
  summary_file = workdir / 'summary.json'
  # Who has deleted the checkpoints of a finished run wants its result, not a new run.
  deleted = checkpoints.latest is None and not checkpoints.set_aside
  if (step == num_steps or deleted) and (summary := read_summary(summary_file)):
    return summary
  if jax.process_index() == 0:
    summary_file.unlink(missing_ok=True)

  task = build_task(config)
  graphs, abstract = abstract_state(config, mesh)
  shardings = jax.tree.map(lambda leaf: leaf.sharding, abstract)
  put = functools.partial(jax.device_put, device=NamedSharding(mesh, P()))
  key = put(stream_key(config, TRAIN_STREAM))

  def prepare_evaluation() -> Evaluation:
    with (
      jax.set_mesh(mesh),
      jax.default_matmul_precision(config.train.matmul_precision),
    ):
      model = graphs['model'], shardings['model']
      evaluation = Evaluation(config, task, *model, mesh)
      evaluation.compile(abstract['model'])
      return evaluation

  risks = None
  with Records(workdir, config, step) as records:
    with concurrent.futures.ThreadPoolExecutor(1) as beside:
      # On another core, while this one compiles the initial state and the steps.
      preparing = beside.submit(prepare_evaluation)
      if step:
        logging.info('going on from step %d of %d in %s', step, num_steps, workdir)
        state = checkpoints.load(step, abstract)
      else:
        state = init_state(config, shardings)
      objective = make_objective(config, task)
      train_steps = make_train_steps(graphs, shardings, objective, mesh)
      start, stop = put(np.int32(step)), put(np.int32(step))
      state, _ = train_steps(state, key, start, stop)  # no step yet: it is compiled
      evaluation = preparing.result()
    records.start_clock(step)

    def read(metrics: dict[str, Any]) -> None:
      """Fetches what a call returned, writes it down, and stops at a NaN."""
      nonlocal risks
      if not metrics:
        return
      metrics = jax.device_get(metrics)
      done = int(metrics['step'])
      records.advance(done)
      if not metrics['finite']:
        checkpoints.wait()
        latest = checkpoints.latest
        good = f'last good checkpoint: step {latest}' if latest else 'no checkpoint yet'
        raise RunError(
          f'step {done} is not finite (loss {metrics["loss"]:g}, gradient norm '
          f'{metrics["grad_norm"]:g}, or the weights behind it): stopped, not saved; '
          f'{good}; a smaller config.optimizer.learning_rate or a '
          'config.optimizer.clip_norm may help'
        )
      risks = evaluation.finish(metrics['evaluation'])
      records.write(
        {
          'step': done,
          'loss': float(metrics['loss']),
          'eval_risk': risks.sampled[0] if risks.sampled else None,
          'exact_risk': risks.exact,
          'grad_norm': float(metrics['grad_norm']),
        }
      )

    saved, unread = step, {}
    while step < num_steps and not interruption.requested:
      stop = _next_stop(step, config)
      state, metrics = train_steps(state, key, put(np.int32(step)), put(np.int32(stop)))
      due = stop % config.eval.every == 0 or stop == num_steps
      metrics['evaluation'] = evaluation.start(state['model'], draw_prompts=due)
      read(unread)  # of the call before, while this one runs
      unread, step = metrics, stop
      if step % config.checkpoint.every == 0 or step == num_steps:
        read(unread)  # waits: what is not finite must not be saved
        unread = {}
        checkpoints.save(step, state)
        saved = step
    read(unread)
    if step > saved:
      checkpoints.save(step, state)
    checkpoints.wait()
    if step < num_steps:
      if interruption.requested == signal.SIGINT:
        raise KeyboardInterrupt
      return None
    wall_time = records.wall_time
    speed = records.speed(step)

  if risks is None:  # the last launch ended between the last step and here
    measured = evaluation.start(state['model'], draw_prompts=True)
    risks = evaluation.finish(jax.device_get(measured))
  summary = summarise(config, abstract['model'], evaluation, risks, speed, wall_time)
  if jax.process_index() == 0:
    write_atomically(summary_file, json.dumps(summary, indent=2) + '\n')
  return summary


def _next_stop(step: int, config: Config) -> int:
  """The next step at which something is due, and so the end of the next call."""
  every = config.train.log_every, config.eval.every, config.checkpoint.every
  return min(config.train.num_steps, *((step // n + 1) * n for n in every))


def _origin(config: Config) -> dict[str, Any]:
  """What a checkpoint says of itself: its config, and the versions that made it."""
  packages = 'icl-zoo', 'jax', 'flax', 'optax', 'orbax-checkpoint'
  versions = {name: importlib.metadata.version(name) for name in packages}
  return {
    'config': json.loads(to_json(config)),
    'versions': {'python': platform.python_version(), **versions},
  }


class Interruption:
  """Turns the first SIGTERM, SIGHUP or Ctrl-C into a request; a second acts."""

  def __init__(self):
    self.requested: int | None = None  # the signal's number
    self._before: dict[int, Any] = {}

  def __enter__(self) -> Interruption:
    # Python allows signal handlers in the main thread only; elsewhere none is needed,
    # since the caller owns the process.
    if threading.current_thread() is threading.main_thread():
      for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        self._before[number] = signal.signal(number, self._request)
    return self

  def __exit__(self, *exception: object) -> None:
    self._restore()

  def _request(self, number: int, frame: object) -> None:
    self.requested = number
    self._restore()
    logging.info('stopping, and saving all; a second signal would lose it')

  def _restore(self) -> None:
    for number, handler in self._before.items():
      signal.signal(number, handler)
    self._before = {}
