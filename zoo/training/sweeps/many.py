"""The run of many models that are trained side by side, in one program.

Each model is trained as it would be alone, except that sums are added in another order.
`zoo.training.sweeps.stacking` makes the program. A model that is not finite any more is
lost, and the others go on.
"""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np
from absl import logging

from zoo.core.errors import UserError
from zoo.host.interruption import Interruption
from zoo.host.progress import hidden, progress_bar
from zoo.measure.comparison import Comparison
from zoo.sharding import State, on_mesh
from zoo.storage.checkpoints import Checkpoints
from zoo.storage.steps import Launch
from zoo.training.against_baselines import compare_models
from zoo.training.compilation import Training
from zoo.training.evaluation import Risks, evaluate, finish_evaluation
from zoo.training.experiment import Experiment
from zoo.training.hooks import Hook, record
from zoo.training.loop import Loop
from zoo.training.records import Records, Saves, show
from zoo.training.run import (
  NotFiniteError,
  divergence_of,
  event_of,
  metrics_of,
  restored,
  wrong_prompts,
)
from zoo.training.step import finite_models
from zoo.training.summary import (
  Divergence,
  Summary,
  finished_summary,
  read_divergence,
  summarise,
  write_divergence,
)


class Member(NamedTuple):
  """One of the models that are trained side by side.

  Attributes:
    experiment: The experiment of the model.
    workdir: The folder of the model.
  """

  experiment: Experiment
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
    training: The compiled steps and the compiled evaluation of all models.
    members: The experiment and the folder of each model.
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
  config, mesh = training.experiment.config, training.experiment.mesh
  step, state = restored(training, checkpoints)
  with on_mesh(mesh, config):
    finite = finite_so_far(members, state, step)
  check_some_finite(members, finite)
  with contextlib.ExitStack() as stack:
    # There is no TensorBoard: to write the lines of all points would take longer than
    # training.
    records = [
      stack.enter_context(Records(folder, step, experiment.config))
      for experiment, folder in members
    ]
    bar = progress_bar(label, config.train.num_steps, 'step', initial=step)
    stack.enter_context(bar)
    saves = Saves(config, checkpoints, step, records)
    loop = Loop(training, state, step, saves.due, interruption, looks_ahead=not hooks)
    risks: list[Risks] = []
    for chunk in loop:
      finite = still_finite(members, chunk.metrics, finite)
      check_some_finite(members, finite)
      risks = finish_evaluation(training.evaluation, chunk.measured)
      events = []
      with hidden(bar):  # Hooks may print.
        for i in np.flatnonzero(finite).tolist():
          of_point = members[i].experiment.config
          event = event_of(training, of_point, loop, chunk, risks[i], records[i], at=i)
          events.append(record(event, [records[i], *hooks]))
      show(bar, events[0].metrics)
      if chunk.must_save:
        saves.save(loop.step, loop.state)
        with hidden(bar):
          for hook in hooks:
            for event in events:
              hook.on_save(event)
    saves.save_last(loop.step, loop.state)
    if loop.step < config.train.num_steps:
      interruption.raise_if_ctrl_c()
      return None
    for (experiment, folder), own in zip(members, records, strict=True):
      # An earlier launch that took the last step may have finished some of them.
      if finished_summary(folder, experiment.config) is None:
        own.replace()
    return loop.state, summarised_many(
      training, members, loop, finite, risks, records, checkpoints.history
    )


def finite_so_far(members: Sequence[Member], state: State, step: int) -> np.ndarray:
  """Returns which models are finite, and have no record that they were not.

  A model that is not finite and has no record gets one. Its numbers were not finite at
  an earlier step, or it belongs to a run that was given more steps.
  """
  finite = np.array(jax.jit(finite_models, static_argnums=1)(state['model'], 1))
  for i, (experiment, workdir) in enumerate(members):
    config = experiment.config
    if read_divergence(workdir, config) is not None:
      finite[i] = False
    elif not finite[i]:
      divergence = Divergence(
        model=config.model.name,
        num_steps=config.train.num_steps,
        step=step,
        loss=None,
        reason=f'the weights at step {step} are not finite',
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
    (experiment, workdir), alone = members[i], metrics_of(metrics, i)
    config, lost_at = experiment.config, int(alone['step'])
    prompts = f'{config.seed} {lost_at} {config.task.text()}'
    if prompts not in wrong:
      wrong[prompts] = wrong_prompts(experiment, lost_at - 1)
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
  records = [
    read_divergence(workdir, experiment.config) for experiment, workdir in members
  ]
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
  history: list[Launch],
) -> list[Summary | None]:
  """Returns the summaries of models after their last step; None for one not finite.

  The speed and the time are those of the whole program, and all summaries have the same
  ones (see `Summary`). `risks` are those of this step. They are empty if an earlier
  launch ended after this step, without summaries.
  """
  first, evaluation = training.experiment, training.evaluation
  model_state = loop.state['model']
  # The time of the comparison does not count, as in a run of one model.
  speed, seconds = loop.speed(), max(each.wall_time for each in records)
  with on_mesh(first.mesh, first.config):
    if not risks:
      measured = evaluate(first.config, evaluation, model_state, loop.step)
      risks = finish_evaluation(evaluation, jax.device_get(measured))
    experiments = [member.experiment for member in members]
    comparisons: list[Comparison | None] = [None] * len(experiments)
    if not training.uses_statistics:  # Else exact theory compares them.
      comparisons = compare_models(experiments, model_state, is_stacked=True)
  summaries: list[Summary | None] = []
  for i, experiment in enumerate(experiments):
    summary = None
    if finite[i]:
      summary = summarise(experiment, risks[i], speed, training.flops, seconds, history)
      summary['comparison'] = comparisons[i]
    summaries.append(summary)
  return summaries
