"""Trains and measures the cells of an atlas, and keeps what each has found so far.

A cell has one compiled program, in which models train side by side at any learning
rates, from any seeds and for any number of steps.
"""

import copy
import dataclasses
import functools
import json
import math
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np
from flax import nnx

from zoo.config.building import abstract_model
from zoo.config.mesh import on_mesh, replicate
from zoo.config.validation import Config, build_task, to_json, validate
from zoo.core.draws import TRAIN_STREAM
from zoo.core.errors import UserError
from zoo.host.files import delete_folder, finite_or_null, read_json, write_atomically
from zoo.host.interruption import Interruption, Stopped
from zoo.models import LinearAttention
from zoo.storage.checkpoints import Checkpoints, run_metadata, save_result
from zoo.studies.atlas import measure
from zoo.studies.atlas.results import LOWEST, NOTHING, AtlasRow, Cell, LossScale
from zoo.studies.atlas.search import RATES, double, find_rate, why_grey
from zoo.studies.runner import version_digest
from zoo.training.compilation import Training, advance
from zoo.training.many import compile_many, init_side_by_side, stream_keys, unstack
from zoo.training.records import Progress
from zoo.training.shardings import State

# Its weights, prompts and held-out prompts are used in the search alone.
SEARCH_SEED = 10**6
_NOTES = 'notes.json'  # in the folder of a cell
_HELD_OUT = 8192  # prompts for the loss of a learning rate
_CHUNK = 100  # steps between two looks at the signals


class Settings(NamedTuple):
  """How cells are trained; `num_seeds` may differ from cell to cell."""

  scale: str
  num_seeds: int
  num_steps: int  # of the first budget
  search_steps: int  # of the first round of the search
  minutes: float  # of training, after which a cell starts no further budget

  @property
  def key(self) -> str:
    """What results depend on: all but the minutes."""
    return json.dumps(self[:-1])


@dataclasses.dataclass
class Budget:
  """What was measured after a number of steps."""

  losses: list[float | None]  # of the seeds
  by_length: list[float | None]  # their means, after each of `measure.lengths_of`
  minutes: float  # of the cell at its end


@dataclasses.dataclass
class Notes:
  """What is known of a cell so far, as its file has it; None: not finite."""

  settings: str
  digest: str = ''  # of the config, the numbers of prompts and the version
  reason: str = ''  # why the model cannot do the task
  lowest: float | None = None
  context_length: int = 0
  weights: int = 0
  operations: float = 0.0
  step_operations: float = 0.0  # of a step of training of one model
  search: dict[int, dict[float, float | None]] = dataclasses.field(default_factory=dict)
  budgets: dict[int, Budget] = dataclasses.field(default_factory=dict)
  searched: float = 0.0  # minutes at the end of the search
  minutes: float = 0.0


def _of_seed(config: Config, seed: int) -> Config:
  config = copy.deepcopy(config)
  config.seed = seed
  return config


def _digest(get_config: Callable[[], Config]) -> str:
  """What the numbers of a cell depend on beside its settings, as a digest."""
  try:
    config = to_json(get_config())
  except UserError as error:  # the cell has no loss, for this reason
    config = str(error)
  return version_digest(config + json.dumps([SEARCH_SEED, _HELD_OUT, *measure.key()]))


def read_notes(
  folder: pathlib.Path, settings: Settings, get_config: Callable[[], Config]
) -> Notes:
  """The notes of a cell in its folder; new ones if it has none.

  Raises UserError if they are of other settings, another config or version, or of
  losses on other numbers of prompts.
  """
  new = Notes(settings.key, _digest(get_config))
  file = folder / _NOTES
  if not file.is_file():
    return new
  notes = read_json(file, Notes)
  if notes.settings != new.settings:
    raise UserError(
      f'{folder} was trained with the settings {notes.settings}, not '
      f'{new.settings}; give another --out'
    )
  if notes.digest != new.digest:
    raise UserError(
      f'{folder} was trained with another config, numbers of prompts or version of '
      'the library; give another --out'
    )
  return notes


class Lanes(NamedTuple):
  """Models that train side by side in the program of a cell."""

  training: Training
  configs: list[Config]  # one for each lane


def _in_lanes(
  training: Training, number: int, seeds: list[int], rates: list[float], num_steps: int
) -> Lanes:
  """The lanes with these seeds and learning rates, for a number of steps.

  Of the `number` of lanes those that are left over repeat the last seed and rate.
  """
  left, config = number - len(seeds), training.config
  configs = [_of_seed(config, seed) for seed in [*seeds, *seeds[-1:] * left]]
  numbers = training.numbers._replace(
    learning_rate=np.array([*rates, *rates[-1:] * left], 'f'),
    num_steps=np.float32(num_steps),
  )
  with on_mesh(training.mesh, config):
    keys = stream_keys(configs, TRAIN_STREAM)
    keys, numbers = replicate((keys, numbers), training.mesh)
  init = functools.partial(init_side_by_side, configs, training.abstract)
  return Lanes(training._replace(key=keys, numbers=numbers, init=init), configs)


def _each(lanes: Lanes, state: State) -> list[State]:
  """The states of the models in the lanes, one by one."""
  return [*unstack(lanes.configs, jax.device_get(state))]


def _or_nan(numbers: Sequence[float | None]) -> tuple[float, ...]:
  """The numbers, with NaN for what was not finite."""
  return tuple(math.nan if number is None else number for number in numbers)


class CellRun:
  """A cell that is trained, or goes on from its folder."""

  def __init__(
    self,
    cell: Cell,
    settings: Settings,
    get_config: Callable[[], Config],
    folder: pathlib.Path,
    interruption: Interruption,
  ):
    """Raises UserError as `read_notes` does."""
    self.cell, self._settings, self._folder = cell, settings, folder
    self._get_config, self._interruption = get_config, interruption
    self._file = folder / _NOTES
    self.notes = read_notes(folder, settings, get_config)

  @functools.cached_property
  def config(self) -> Config:
    """The validated config; raises UserError if the model cannot do the task."""
    return validate(self._get_config())

  @property
  def _number(self) -> int:
    """The number of lanes."""
    return max(self._settings.num_seeds, 2)  # a rate may differ only between lanes

  @functools.cached_property
  def training(self) -> Training:
    """What trains the lanes, compiled when something is to be trained."""
    return compile_many([_of_seed(self.config, seed) for seed in range(self._number)])

  def rows(self, get_scale: Callable[[], LossScale]) -> list[AtlasRow]:
    """Trains what is missing, and returns a row for each budget.

    `get_scale` returns the scale of the losses. Raises Stopped after a signal.
    """
    notes = self.notes
    if not notes.weights:
      self._begin()
    row = functools.partial(
      AtlasRow,
      model=self.cell.model,
      task=self.cell.task,
      guess=self.cell.guess or '',
      context_length=notes.context_length,
      weights=notes.weights,
      operations=notes.operations,
    )
    if notes.reason:
      return [row(known=NOTHING, grey=notes.reason)]
    if notes.lowest is not None:
      return [row(known=LOWEST, losses=(notes.lowest,))]
    search = find_rate(self._try_rates, RATES, self._settings.search_steps)
    if math.isinf(search.losses[search.rate]):
      return [row(known=NOTHING, grey='diverged at every rate')]
    notes.searched = notes.searched or notes.minutes
    train = functools.partial(self._train, search.rate)
    scale = get_scale()
    trained = double(train, self._settings.num_steps, scale, self._may_train)
    edge = 'rate at the edge' if search.at_edge else ''
    rows = []
    for steps, losses in trained.items():
      budget = notes.budgets[steps]
      grey = why_grey(losses, trained.get(steps // 2), scale)
      rows.append(
        row(
          steps=steps,
          training_operations=steps * notes.step_operations,
          rate=search.rate,
          half_rate_loss=search.losses.get(search.rate / 2, math.nan),
          rate_loss=search.losses[search.rate],
          twice_rate_loss=search.losses.get(2 * search.rate, math.nan),
          losses=tuple(losses),
          grey=', '.join(filter(None, [edge, grey])),
          lengths=measure.lengths_of(notes.context_length),
          by_length=_or_nan(budget.by_length),
          minutes=budget.minutes,
        )
      )
    return rows

  def _begin(self) -> None:
    """Notes what is known before training."""
    notes = self.notes
    notes.reason = ''
    try:
      notes.context_length = self._get_config().task.context_length
      notes.weights, notes.operations = measure.sizes(self.config)
      if isinstance(abstract_model(self.config), LinearAttention):
        notes.lowest = measure.lowest_known(self.config)
    except UserError as error:
      notes.reason = str(error)
    self._write()

  def _may_train(self, num_steps: int) -> bool:
    """Whether a budget is there, or likely to end within the minutes of the cell."""
    budgets = self.notes.budgets
    if num_steps in budgets:
      return True
    last, before = budgets[num_steps // 2], budgets.get(num_steps // 4)
    took = last.minutes - (self.notes.searched if before is None else before.minutes)
    return last.minutes + 2 * took <= self._settings.minutes

  def _try_rates(self, rates: Sequence[float], num_steps: int) -> list[float]:
    """The held-out loss at each rate after all steps, infinite where one diverged."""
    by_rate = self.notes.search.setdefault(num_steps, {})
    missing = [rate for rate in rates if rate not in by_rate]
    while missing:
      few, missing = missing[: self._number], missing[self._number :]
      start, seeds = time.monotonic(), [SEARCH_SEED] * len(few)
      lanes = _in_lanes(self.training, self._number, seeds, few, num_steps)
      with on_mesh(lanes.training.mesh, self.config):
        state = lanes.training.init()
      label = f'{self.cell.name}: {len(few)} rates'
      step, state = self._advance(lanes.training, state, (0, num_steps), label)
      if step < num_steps:
        raise Stopped  # these rates are tried again
      states = _each(lanes, state)[: len(few)]
      losses = self._losses(states, seeds, _HELD_OUT)
      by_rate.update(zip(few, finite_or_null(losses), strict=True))
      self._spend(start)
    known = (by_rate[rate] for rate in rates)
    return [math.inf if loss is None else loss for loss in known]

  def _train(self, rate: float, num_steps: int) -> tuple[float, ...]:
    """The loss of each seed after a budget.

    Its constant part goes on from that of the budget before; its decay does not.
    """
    if num_steps not in self.notes.budgets:
      start, seeds = time.monotonic(), [*range(self._settings.num_seeds)]
      rates = [rate] * len(seeds)
      lanes = _in_lanes(self.training, self._number, seeds, rates, num_steps)
      state = self._trained(lanes.training, num_steps, start)
      states = _each(lanes, state)[: len(seeds)]
      losses = self._losses(states, seeds, measure.NUM_PROMPTS)
      curves = [
        measure.losses_by_length(self._model(state), self.config) for state in states
      ]
      by_length = np.mean(curves, axis=0).tolist()
      self._save_models(states, rate, num_steps)
      self.notes.step_operations = self.training.flops / self._number
      self._spend(start)
      self.notes.budgets[num_steps] = Budget(
        finite_or_null(losses), finite_or_null(by_length), self.notes.minutes
      )
      self._write()
    return _or_nan(self.notes.budgets[num_steps].losses)

  def _trained(self, training: Training, num_steps: int, clock: float) -> State:
    """The states after a budget; raises Stopped, with the constant part saved."""
    constant = num_steps - round(self.config.optimizer.decay_share * num_steps)
    label = f'{self.cell.name}: {num_steps} steps'
    with Checkpoints(self._folder, 1, run_metadata(self.config)) as checkpoints:
      start = checkpoints.latest or 0
      with on_mesh(training.mesh, self.config):
        state = training.init()
        if start:
          state = checkpoints.load(start, training.abstract)
      step, state = self._advance(training, state, (start, constant), label)
      if step > start:
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
    """Trains from the first to the last of the steps.

    Returns the step that was reached, which is earlier after a signal.
    """
    step, last = steps
    with on_mesh(training.mesh, self.config), Progress(label, step, last) as progress:
      while step < last and not self._interruption.due():
        stop = min(last, (step // _CHUNK + 1) * _CHUNK)
        state, metrics = advance(training, state, step, stop)
        jax.block_until_ready(metrics)
        step = stop
        progress.show(step)
    return step, state

  def _model(self, state: State) -> nnx.Module:
    return nnx.merge(self.training.graph, state['model'])

  def _losses(
    self, states: Sequence[State], seeds: Sequence[int], num_prompts: int
  ) -> list[float]:
    """The loss of each model on prompts of its seed; NaN if it is not finite."""
    task = build_task(self.config)
    return [
      measure.loss(self._model(state), task, num_prompts, seed)
      for state, seed in zip(states, seeds, strict=True)
    ]

  def _save_models(self, states: Sequence[State], rate: float, num_steps: int) -> None:
    """Saves the models of the last budget, for `zoo.load`."""
    delete_folder(self._folder / 'models')
    for seed, state in enumerate(states):
      config = _of_seed(self.config, seed)
      config.optimizer.learning_rate, config.train.num_steps = rate, num_steps
      folder = self._folder / 'models' / f'seed={seed}'
      folder.mkdir(parents=True)
      save_result(folder, num_steps, state, run_metadata(config))

  def _spend(self, start: float) -> None:
    """Adds the time since the start to that of the cell, and writes the notes."""
    self.notes.minutes += (time.monotonic() - start) / 60
    self._write()

  def _write(self) -> None:
    content = json.dumps(dataclasses.asdict(self.notes), indent=1)
    write_atomically(self._file, content + '\n')
