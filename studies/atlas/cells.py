"""The training and measurement of one cell of an atlas.

Each cell compiles one training program, in which three models train side by side. Their
learning rates, seeds and number of steps are inputs, so that the search for a rate and
the training of the seeds use the same program.
"""

import dataclasses
import functools
import math
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from flax import nnx

from studies.atlas import measure, search
from studies.atlas.notes import MOST_STEPS, Found, Settings, read_notes, write_notes
from studies.atlas.results import LOWEST, NOTHING, AtlasRow, Cell
from zoo.config.building import build_task
from zoo.config.read import to_content, with_fields
from zoo.config.run import Run
from zoo.core.draws import TRAIN_STREAM
from zoo.core.errors import UserError
from zoo.host.files import finite_or_null
from zoo.host.interruption import Interruption, Stopped
from zoo.host.progress import progress_bar
from zoo.models import DeepLSA, LinearAttention
from zoo.sharding import State, on_mesh, replicate
from zoo.storage.checkpoints import Checkpoints, save_result
from zoo.training.compilation import Training, compile_training
from zoo.training.experiment import Experiment, build
from zoo.training.loop import Loop
from zoo.training.sweeps.stacking import (
  init_side_by_side,
  make_many,
  stream_keys,
  unstack,
)

_CHUNK = 100  # steps between two checks for SIGTERM and Ctrl-C
_LANES = search.AT_ONCE  # the number of models that train side by side


def _of_seed(experiment: Experiment, seed: int) -> Experiment:
  config = with_fields(experiment.config, {'seed': seed})
  return dataclasses.replace(experiment, config=config)


class Lanes(NamedTuple):
  """The models that train side by side; each one is a lane.

  Attributes:
    training: The compiled training of all lanes.
    experiments: The experiment of each lane.
  """

  training: Training
  experiments: list[Experiment]


def _in_lanes(
  training: Training, seeds: Sequence[int], rates: Sequence[float], num_steps: int
) -> Lanes:
  """Returns lanes with the given seeds and learning rates, for a number of steps.

  Seeds and rates are at most as many as there are lanes. Further lanes repeat the last
  seed and rate, and their results are ignored.
  """
  left, first = _LANES - len(seeds), training.experiment
  experiments = [_of_seed(first, seed) for seed in [*seeds, *[seeds[-1]] * left]]
  inputs = training.inputs._replace(
    learning_rate=np.array([*rates, *[rates[-1]] * left], 'f'),
    num_steps=np.float32(num_steps),
  )
  configs = [experiment.config for experiment in experiments]
  with on_mesh(first.mesh, first.config):
    keys = stream_keys(configs, TRAIN_STREAM)
    keys, inputs = replicate((keys, inputs), first.mesh)
  init = functools.partial(init_side_by_side, experiments, training.abstract)
  return Lanes(training._replace(key=keys, inputs=inputs, init=init), experiments)


def _until(training: Training, last: int) -> Training:
  """Returns the training up to a last step, in chunks between which it can stop.

  It evaluates nothing, since a cell measures its models in its own way.
  """
  stops = {'train.num_steps': last, 'train.log_every': _CHUNK}
  never = {'eval.every': last, 'checkpoint.every': last}
  config = with_fields(training.experiment.config, {**stops, **never})
  experiment = dataclasses.replace(training.experiment, config=config)
  evaluation = training.evaluation._replace(is_sampled=False, rule=lambda state: None)
  return training._replace(experiment=experiment, evaluation=evaluation)


def _each(lanes: Lanes, state: State) -> list[State]:
  """Returns the state of the model in each lane."""
  return [*unstack(lanes.experiments, state)]


def _models(training: Training, states: Sequence[State]) -> list[nnx.Module]:
  """Builds the models that have these states."""
  graph = training.experiment.graphs['model']
  return [nnx.merge(graph, state['model']) for state in states]


def _or_nan(numbers: Sequence[float | None]) -> tuple[float, ...]:
  """Replaces None, which stands for a number that is infinite or NaN, by NaN."""
  return tuple(math.nan if number is None else number for number in numbers)


def _mean(losses: Sequence[float | None]) -> float:
  """Returns the mean loss, which is infinite if one loss is None."""
  return float(np.mean([math.inf if loss is None else loss for loss in losses]))


class CellRun:
  """The training of one cell, which resumes from the notes in its folder."""

  def __init__(
    self,
    cell: Cell,
    settings: Settings,
    get_config: Callable[[], Run],
    folder: pathlib.Path,
    interruption: Interruption,
  ):
    """Reads the notes of the cell, and trains nothing yet.

    Args:
      cell: The model, the task and the guess.
      settings: The scale, the seeds and the budgets.
      get_config: Returns the config of the cell.
      folder: The folder of the cell.
      interruption: Tells whether SIGTERM or Ctrl-C has come.

    Raises:
      UserError: If the notes are of other settings, or of another config, numbers of
        prompts or version of the library.
    """
    self.cell, self._settings, self._folder = cell, settings, folder
    self._get_config, self._interruption = get_config, interruption
    self._measuring = measure.Programs()
    self.notes = read_notes(folder, settings, get_config)

  @functools.cached_property
  def experiment(self) -> Experiment:
    """The experiment. Raises UserError if the model cannot do the task."""
    return build(self._get_config())

  @property
  def config(self) -> Run:
    """The valid config. Raises UserError if the model cannot do the task."""
    return self.experiment.config

  @functools.cached_property
  def training(self) -> Training:
    """The training of the lanes, which is compiled when it is first needed."""
    experiments = [_of_seed(self.experiment, seed) for seed in range(_LANES)]
    return compile_training(make_many(experiments))

  def rows(self) -> list[AtlasRow]:
    """Trains what is missing, and returns the rows of the cell.

    Returns:
      A row for each budget. A single row if the model cannot do the task, or if theory
      gives the lowest risk and nothing is trained.

    Raises:
      Stopped: After SIGTERM or Ctrl-C.
    """
    notes = self.notes
    if not notes.weights:
      self._begin()
    if notes.reason:
      return [self._row(known=NOTHING, reason=notes.reason)]
    if notes.lowest is not None:
      return [self._row(known=LOWEST, losses=(notes.lowest,))]
    if not notes.step_operations:
      start = time.monotonic()
      notes.step_operations = self.training.flops / _LANES
      self._spend(start)
    least, *larger = self._settings.budgets
    first_seed = functools.partial(self._try_rates, 1)
    all_seeds = functools.partial(self._try_rates, self._settings.search_seeds)
    if self._settings.search_seeds == 1:
      begin = search.screen(first_seed, search.RATES, self._steps(least))
    else:
      begin = search.screen_seeds(
        first_seed, all_seeds, search.RATES, self._steps(least)
      )
    first = search.refine(all_seeds, begin, self._steps(least))
    rows = [self._row_of(least, first)]
    for budget in larger:
      found = search.refine(all_seeds, first.rate, self._steps(budget))
      rows.append(self._row_of(budget, found))
    return rows

  def _begin(self) -> None:
    """Writes what is known without training into the notes."""
    notes = self.notes
    notes.reason = ''
    try:
      notes.context_length = build_task(self._get_config()).context_length
      notes.weights, notes.operations = measure.sizes(self.config)
      if isinstance(self.experiment.model, LinearAttention):
        notes.lowest = measure.lowest_known(self.config)
    except UserError as error:
      notes.reason = str(error)
    write_notes(self._folder, self.notes)

  def _row(self, **fields: Any) -> AtlasRow:
    """Returns a row of this cell with further fields."""
    notes = self.notes
    return AtlasRow(
      model=self.cell.model,
      task=self.cell.task,
      guess=self.cell.guess or '',
      context_length=notes.context_length,
      weights=notes.weights,
      operations=notes.operations,
      **fields,
    )

  @functools.cached_property
  def _most_steps(self) -> float:
    """The cap on the steps, which only networks of linear attention have."""
    small = isinstance(self.experiment.model, (LinearAttention, DeepLSA))
    return float(MOST_STEPS) if small else math.inf

  def _steps(self, budget: float) -> int:
    """Returns the number of steps that a budget pays for, at most `_most_steps`."""
    steps = max(1, round(budget / self.notes.step_operations))
    return int(min(steps, self._most_steps))

  def _row_of(self, budget: float, best: search.Search) -> AtlasRow:
    """Returns the row of a budget, and trains the seeds at the rate that was found."""
    notes, steps = self.notes, self._steps(budget)
    row = functools.partial(
      self._row,
      budget=budget,
      steps=steps,
      training_operations=steps * notes.step_operations,
      rate=best.rate,
      half_rate_loss=best.losses.get(best.rate / 2, math.nan),
      rate_loss=best.losses[best.rate],
      twice_rate_loss=best.losses.get(2 * best.rate, math.nan),
      at_edge=best.at_edge,
    )
    if math.isinf(best.losses[best.rate]):
      return row(known=NOTHING, reason='diverged at every rate')
    found = notes.found.get(steps)
    # A folder may have losses at another rate, which an earlier search had chosen.
    if found is None or found.rate != best.rate:
      found = notes.found[steps] = self._train(best.rate, steps)
      write_notes(self._folder, self.notes)
    return row(
      losses=_or_nan(found.losses),
      lengths=measure.lengths_of(notes.context_length),
      by_length=_or_nan(found.by_length),
      minutes=found.minutes,
    )

  def _try_rates(
    self, num_seeds: int, rates: Sequence[float], num_steps: int
  ) -> list[float]:
    """Trains each seed of the search at each rate, as far as the notes lack it.

    Returns:
      The mean held-out loss over seeds at each rate. It is infinite if training
      diverged with one of the seeds.

    Raises:
      Stopped: After a signal.
    """
    by_rate = self.notes.tried.setdefault(num_steps, {})
    missing = [
      (rate, search.SEED + index)
      for rate in rates
      for index in range(len(by_rate.get(rate, [])), num_seeds)
    ]
    while missing:
      few, missing = missing[:_LANES], missing[_LANES:]
      start, seeds = time.monotonic(), [seed for _, seed in few]
      lanes = _in_lanes(self.training, seeds, [rate for rate, _ in few], num_steps)
      with on_mesh(self.experiment.mesh, self.config):
        state = lanes.training.init(True)
      label = f'{self.cell.name}: search, {len(few)} models'
      step, state = self._advance(lanes.training, state, (0, num_steps), label)
      if step < num_steps:
        raise Stopped  # the next call begins these rates again
      models = _models(self.training, _each(lanes, state)[: len(few)])
      losses = self._losses(models, seeds, search.HELD_OUT)
      for (rate, _), loss in zip(few, finite_or_null(losses), strict=True):
        by_rate.setdefault(rate, []).append(loss)
      self._spend(start)
    return [_mean(by_rate[rate][:num_seeds]) for rate in rates]

  def _train(self, rate: float, num_steps: int) -> Found:
    """Trains each seed at a rate, measures the models and saves them."""
    losses: list[float] = []
    curves: list[np.ndarray] = []
    lengths = measure.lengths_of(self.notes.context_length)
    for first in range(0, len(self._settings.seeds), _LANES):
      start, seeds = time.monotonic(), self._settings.seeds[first : first + _LANES]
      lanes = _in_lanes(self.training, seeds, [rate] * len(seeds), num_steps)
      state = self._trained(lanes.training, rate, seeds, num_steps)
      states = _each(lanes, state)[: len(seeds)]
      models = _models(self.training, states)
      losses += self._losses(models, seeds, measure.NUM_PROMPTS)
      curves += [
        measure.losses_by_length(
          model, self.config, lengths, measure.FEWER_PROMPTS, self._measuring
        )
        for model in models
      ]
      self._save_models(seeds, states, rate, num_steps)
      self._spend(start)
    by_length = np.mean(curves, axis=0).tolist()
    return Found(
      rate, finite_or_null(losses), finite_or_null(by_length), self.notes.minutes
    )

  def _trained(
    self, training: Training, rate: float, seeds: Sequence[int], num_steps: int
  ) -> State:
    """Trains some seeds for a budget and returns their states.

    The learning rate is constant at first and decays at the end. A checkpoint is saved
    when the constant part ends, so that a larger budget with the same rate continues
    from it. After a signal within the constant part the state reached is saved.

    Returns:
      The state of the seeds, trained side by side.

    Raises:
      Stopped: After a signal.
    """
    clock = time.monotonic()
    constant = num_steps - round(self.config.optimizer.decay_share * num_steps)
    label = f'{self.cell.name}: {num_steps} steps'
    folder = self._folder / f'rate={rate:g}' / f'seed={seeds[0]}'
    with Checkpoints(folder, 1, to_content(self.config)) as checkpoints:
      latest = checkpoints.latest or 0
      # A checkpoint of a larger budget may lie behind the end of this constant part.
      start = latest if latest <= constant else 0
      with on_mesh(self.experiment.mesh, self.config):
        state = training.init(True)
        if start:
          state = checkpoints.load(start, training.abstract)
      step, state = self._advance(training, state, (start, constant), label)
      if step > latest:
        checkpoints.save(step, state)
    if step == constant:
      step, state = self._advance(training, state, (constant, num_steps), label)
    if step < num_steps:
      self._spend(clock)
      raise Stopped
    return state

  def _advance(
    self, training: Training, state: State, steps: tuple[int, int], label: str
  ) -> tuple[int, State]:
    """Trains from the first of two steps to the second.

    Returns:
      The step that was reached, which is earlier after a signal, and the state there.
    """
    step, last = steps
    loop = Loop(
      _until(training, last),
      state,
      step,
      must_save=lambda step: False,
      interruption=self._interruption,
      looks_ahead=True,
    )
    with progress_bar(label, last, 'step', initial=step) as bar:
      for chunk in loop:
        bar.update(chunk.step - bar.n)
    return loop.step, loop.state

  def _losses(
    self, models: Sequence[nnx.Module], seeds: Sequence[int], num_prompts: int
  ) -> list[float]:
    """Returns the loss of each model on prompts of its seed; NaN if not finite."""
    task = self.experiment.task
    return [
      measure.loss(model, task, num_prompts, seed, self._measuring)
      for model, seed in zip(models, seeds, strict=True)
    ]

  def _save_models(
    self, seeds: Sequence[int], states: Sequence[State], rate: float, num_steps: int
  ) -> None:
    """Saves the models of a budget in folders that `zoo.load` reads."""
    for seed, state in zip(seeds, states, strict=True):
      fields = {
        'seed': seed,
        'optimizer.learning_rate': rate,
        'train.num_steps': num_steps,
      }
      content = to_content(with_fields(self.config, fields))
      folder = self._folder / 'models' / f'steps={num_steps}' / f'seed={seed}'
      folder.mkdir(parents=True, exist_ok=True)
      save_result(folder, num_steps, state, content)

  def _spend(self, start: float) -> None:
    """Adds the time since `start` to the minutes of the cell, and writes the notes."""
    self.notes.minutes += (time.monotonic() - start) / 60
    write_notes(self._folder, self.notes)
