"""The training loop: from a config to a trained model, a workdir and a summary."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import json
import pathlib
import signal
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from absl import logging
from flax import nnx
from jax.sharding import Mesh

from zoo import processes
from zoo.checkpoints.checkpointer import Checkpoints
from zoo.checkpoints.metadata import run_metadata
from zoo.config import (
  Config,
  build_task,
  differences,
  mesh_shape,
  num_heads,
  to_json,
  validate,
)
from zoo.errors import RunError, UserError
from zoo.interruption import Interruption
from zoo.mesh import make_mesh, replicate
from zoo.training.evaluation import Evaluation, Risks
from zoo.training.layout import Layout
from zoo.training.objective import (
  make_objective,
  sees_statistics,
  setting_of,
  settings_of,
)
from zoo.training.records import Progress, Records
from zoo.training.step import (
  TRAIN_STREAM,
  abstract_state,
  init_stacked,
  init_state,
  make_train_steps,
  stacked,
  stream_key,
)
from zoo.training.summary import SUMMARY, read_summary, summarise, write_summary
from zoo.workdir import claim, locked


def train(config: Config, workdir: str | pathlib.Path) -> dict[str, Any] | None:
  """Trains what the config names, or goes on with what the workdir holds.

  Returns the summary, which is also in `summary.json`. After SIGTERM it returns None,
  after Ctrl-C it raises KeyboardInterrupt; all is saved, and the same call goes on.
  Raises UserError when the config or the workdir is wrong, before anything is written;
  RunError when the loss is not finite or the disk is full. Of several processes each
  has to call this alike, with a workdir that they share; process 0 writes the records.
  """
  _validate_everywhere(config)
  workdir = pathlib.Path(workdir).expanduser()
  claim(workdir, config)
  try:
    with (
      locked(workdir),
      Checkpoints(workdir, config.checkpoint.keep, run_metadata(config)) as checkpoints,
      Interruption() as interruption,
    ):

      def result() -> dict[str, Any] | None:
        # Who has deleted the checkpoints of a finished run wants its result, not a new
        # run.
        deleted = checkpoints.latest is None and not checkpoints.set_aside
        at_end = deleted or checkpoints.latest == config.train.num_steps
        summary = read_summary(workdir / SUMMARY) if at_end else None
        if summary is None:
          (workdir / SUMMARY).unlink(missing_ok=True)
        return summary

      if summary := processes.on_first(result):
        return summary
      ended = run([config], [workdir], checkpoints, interruption)
      if ended is None:
        return None
      write_summary(workdir, ended.summaries[0])
      return ended.summaries[0]
  except OSError as error:
    raise RunError(f'{workdir} could not be written: {error}') from error


def _validate_everywhere(config: Config) -> None:
  if jax.process_count() > 1 and not jax.distributed.is_initialized():
    raise UserError(
      f'this is one of {jax.process_count()} processes, which do not know of each '
      'other; --distributed is missing (in Python: jax.distributed.initialize)'
    )
  with processes.agreed():
    validate(config)
  theirs = processes.on_first(functools.partial(to_json, config))
  with processes.agreed():
    if to_json(config) != theirs:
      differing = differences(json.loads(theirs), config) or ['mesh']
      raise UserError(
        'the config is not that of process 0 (here and there): it differs in '
        f'{", ".join(differing)}'
      )


class Ended(NamedTuple):
  """Points that were trained to the end, and their state, stacked if it was."""

  summaries: list[Any]  # None for a point whose training ceased to be finite
  state: Any


def run(
  configs: Sequence[Config],
  workdirs: Sequence[pathlib.Path],
  checkpoints: Checkpoints,
  interruption: Interruption,
  stack_label: str | None = None,
) -> Ended | None:
  """Trains from the newest checkpoint to the end, with records in the workdirs.

  With a `stack_label`, which the progress bar shows, the states of all configs are
  stacked and trained side by side; they may differ as `zoo.training.sweeps`
  says. Without it there is one config. Returns None after SIGTERM. Raises RunError once
  no point is finite.
  """
  many_points = stack_label is not None
  config = max(configs, key=num_heads)
  mesh = make_mesh(config)
  in_mesh = functools.partial(_in_mesh, mesh, config)
  step = processes.on_first(lambda: checkpoints.latest) or 0
  num_steps = config.train.num_steps
  with contextlib.ExitStack() as stack:
    stack.enter_context(in_mesh())
    tasks = [build_task(config) for config in configs]
    graphs, abstract = abstract_state(config, mesh)
    model = nnx.merge(graphs['model'], abstract['model'])
    # The points of a stack share what they draw, whatever their prior means.
    statistics = many_points or sees_statistics(model, tasks[0])
    if statistics and (config.objective.name == 'sampled' or config.eval.num_batches):
      for c in sorted({task.context_length for task in tasks if task.has_long_context}):
        logging.info(
          'the second moment of each context of %d examples is drawn by itself, which '
          'has the same distribution and costs less (Bartlett)',
          c,
        )
    setting: Any = setting_of(tasks[0])
    if many_points:
      abstract = stacked(abstract, len(configs), _points_axis(config, configs))
      setting = settings_of(tasks)
    layout = Layout(abstract, config.mesh.fsdp)
    put = functools.partial(replicate, mesh=mesh)
    key, setting = put(stream_key(config, TRAIN_STREAM)), put(setting)

    def prepare_evaluation() -> Evaluation:
      with in_mesh():
        saved = layout.saved['model']
        sharding = jax.tree.map(lambda leaf: leaf.sharding, saved)
        model = graphs['model'], sharding
        evaluation = Evaluation(configs, tasks, *model, mesh, statistics, many_points)
        evaluation.compile(saved)
        return evaluation

    records = [
      # To tell TensorBoard of each line of each of many points takes longer than to
      # train them.
      stack.enter_context(Records(workdir, step, tensorboard=not many_points))
      for workdir in workdirs
    ]
    label = config.model.name
    if many_points:
      label = f'{stack_label}: {len(configs)} × {label}'
    progress = stack.enter_context(Progress(label, step, num_steps))
    with concurrent.futures.ThreadPoolExecutor(1) as beside:
      # On another core, while this one compiles the initial state and the steps.
      preparing = beside.submit(prepare_evaluation)
      if processes.count() > 1:
        preparing.result()  # all processes must start programs in the same order
      if step:
        logging.info('going on from step %d of %d', step, num_steps)
        state = layout.opened(checkpoints.load(step, layout.saved))
      elif many_points:
        state = init_stacked(configs, abstract)
      else:
        state = init_state(config, layout)
      objective = make_objective(config, tasks[0], statistics)
      train_steps = make_train_steps(graphs, layout, objective, mesh, many_points)
      start, stop = put(np.int32(step)), put(np.int32(step))
      # No step yet: it is compiled.
      state, before = train_steps(state, key, start, stop, setting)
      evaluation = preparing.result()
    progress.start_clock(step)
    risks: list[Risks] = []
    finite = np.atleast_1d(jax.device_get(before['finite']))

    def read(metrics: dict[str, Any]) -> None:
      """Fetches what a call returned, writes it down, and stops at a NaN."""
      nonlocal risks, finite
      if not metrics:
        return
      metrics = jax.device_get(metrics)
      lines = [_line(metrics, i) for i in range(len(configs))]
      done = max(line['step'] for line in lines)
      progress.advance(done)
      for line, path, before in zip(lines, workdirs, finite, strict=True):
        if many_points and before and not line['finite']:
          logging.warning('%s: %s', path.name, _not_finite(line))
      finite = np.array([line.pop('finite') for line in lines])
      if not finite.any():
        checkpoints.wait()
        latest = checkpoints.latest
        good = f'last good checkpoint: step {latest}' if latest else 'no checkpoint yet'
        raise RunError(
          f'{_not_finite(lines[0])}: stopped, not saved; {good}; a smaller '
          'config.optimizer.learning_rate or a config.optimizer.clip_norm may help'
        )
      risks = evaluation.finish(metrics['evaluation'])
      rate, _ = progress.speed(done)
      for i in np.flatnonzero(finite):
        sampled = risks[i].sampled
        lines[i]['eval_risk'] = sampled[0] if sampled else None
        lines[i]['exact_risk'] = risks[i].exact
        records[i].write({**lines[i], 'steps_per_second': rate})
      if not many_points:
        risk = lines[0]['exact_risk'] or lines[0]['eval_risk']
        progress.show(loss=lines[0]['loss'], risk=risk)

    def model_of(state: Any) -> Any:
      return layout.saveable({'model': state['model']})['model']

    saved, unread = step, {}
    while step < num_steps and not interruption.due():
      stop = _next_stop(step, config)
      limits = put(np.int32(step)), put(np.int32(stop))
      state, metrics = train_steps(state, key, *limits, setting)
      due = stop % config.eval.every == 0 or stop == num_steps
      metrics['evaluation'] = evaluation.start(model_of(state), draw_prompts=due)
      read(unread)  # of the call before, while this one runs
      unread, step = metrics, stop
      if step % config.checkpoint.every == 0 or step == num_steps:
        read(unread)  # waits: what is not finite must not be saved
        unread = {}
        checkpoints.save(step, layout.saveable(state))
        saved = step
    read(unread)
    if step > saved:
      checkpoints.save(step, layout.saveable(state))
    checkpoints.wait()
    if step < num_steps:
      if interruption.requested == signal.SIGINT and processes.count() == 1:
        raise KeyboardInterrupt
      return None
    if not risks:  # the last launch ended between the last step and here
      measured = evaluation.start(model_of(state), draw_prompts=True)
      risks = evaluation.finish(jax.device_get(measured))
    speed = progress.speed(step)
    summaries = [
      summarise(config, evaluation, i, risks[i], speed, records[i].wall_time)
      if finite[i]
      else None
      for i, config in enumerate(configs)
    ]
    return Ended(summaries, state)


def _line(metrics: dict[str, Any], i: int) -> dict[str, Any]:
  """What is known of a point behind its last step, for its records."""
  step, loss, grad_norm, finite = (
    np.atleast_1d(metrics[name]) for name in ('step', 'loss', 'grad_norm', 'finite')
  )
  return {
    'step': int(step.max()),
    'loss': float(loss[i]),
    'eval_risk': None,
    'exact_risk': None,
    'grad_norm': float(grad_norm[i]),
    'finite': bool(finite[i]),
  }


def _not_finite(line: dict[str, Any]) -> str:
  return (
    f'step {line["step"]} is not finite (loss {line["loss"]:g}, gradient norm '
    f'{line["grad_norm"]:g}, or the weights behind it)'
  )


def _points_axis(config: Config, configs: Sequence[Config]) -> str | None:
  """Over which axis of the mesh points are split: prompts leave none for them."""
  data, _ = mesh_shape(config)
  exact = config.objective.name == 'exact'
  return 'data' if exact and len(configs) % data == 0 else None


@contextlib.contextmanager
def _in_mesh(mesh: Mesh, config: Config) -> Iterator[None]:
  with jax.set_mesh(mesh), jax.default_matmul_precision(config.train.matmul_precision):
    yield


def _next_stop(step: int, config: Config) -> int:
  """The next step at which something is due, and so the end of the next call."""
  every = config.train.log_every, config.eval.every, config.checkpoint.every
  return min(config.train.num_steps, *((step // n + 1) * n for n in every))
