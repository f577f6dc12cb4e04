"""Trains and measures the cells of an atlas, and keeps what each has found so far.

A cell has one compiled program, in which models train side by side at any learning
rates, from any seeds and for any number of steps.
"""

from __future__ import annotations

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
from zoo.config.validation import Config, build_task, validate
from zoo.core.draws import TRAIN_STREAM
from zoo.core.errors import UserError
from zoo.host.files import delete_folder, finite_or_null, read_as, write_atomically
from zoo.host.interruption import Interruption, Stopped
from zoo.models import LinearAttention
from zoo.storage.checkpointer import Checkpoints, run_metadata, save_result
from zoo.studies.atlas import measure
from zoo.studies.atlas.results import LOWEST, NOTHING, Cell, Row
from zoo.studies.atlas.search import (
  RATES,
  Search,
  double,
  find_rate,
  why_grey,
)
from zoo.training.layout import State
from zoo.training.population import init_side_by_side, unstack
from zoo.training.records import Progress
from zoo.training.step import stream_keys
from zoo.training.trainer import make_program, on_mesh

# Its weights, prompts and held-out prompts are used in the search alone.
SEARCH_SEED = 10**6
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
  reason: str = ''  # why the model cannot do the task
  lowest: float | None = None
  context_length: int = 0
  weights: int = 0
  operations: float = 0.0
  step_operations: float = 0.0  # of a step of training of one model
  search: dict[str, dict[str, float | None]] = dataclasses.field(default_factory=dict)
  budgets: dict[str, Budget] = dataclasses.field(default_factory=dict)
  searched: float = 0.0  # minutes at the end of the search
  minutes: float = 0.0


class Lanes:
  """Models of one config side by side in one program."""

  def __init__(self, config: Config, number: int, interruption: Interruption):
    self.number = max(number, 2)
    self._config, self._interruption = config, interruption
    self._program = make_program(self._configs([*range(self.number)]))
    self._program.compile()

  @property
  def step_operations(self) -> float:
    """The operations in products of matrices of a step of one model."""
    return self._program.flops_per_step / self.number

  def _configs(self, seeds: Sequence[int]) -> list[Config]:
    """A config for each lane; the lanes that no seed needs have the last one."""
    found = []
    for seed in [*seeds, *[seeds[-1]] * (self.number - len(seeds))]:
      found.append(copy.deepcopy(self._config))
      found[-1].seed = seed
    return found

  def start(self, seeds: Sequence[int]) -> State:
    """The states at step 0."""
    program = self._program
    with on_mesh(program.mesh, self._config):
      return init_side_by_side(self._configs(seeds), program.layout.kept)

  def saved(self, checkpoints: Checkpoints, seeds: Sequence[int]) -> tuple[int, State]:
    """The newest saved step and its states; step 0 if there is none."""
    step = checkpoints.latest
    if not step:
      return 0, self.start(seeds)
    with on_mesh(self._program.mesh, self._config):
      layout = self._program.layout
      return step, layout.opened(checkpoints.load(step, layout.saved))

  def train(
    self,
    state: State,
    steps: tuple[int, int],
    budget: int,
    seeds: Sequence[int],
    rates: Sequence[float],
    label: str,
  ) -> tuple[int, State]:
    """Trains from the first to the last of the `steps`, of as many as the `budget` has.

    Returns the step that was reached, which is earlier after a signal.
    """
    step, last = steps
    rates = [*rates, *[rates[-1]] * (self.number - len(rates))]
    numbers = self._program.numbers._replace(
      learning_rate=np.array(rates, 'f'), num_steps=np.float32(budget)
    )
    mesh = self._program.mesh
    with on_mesh(mesh, self._config), Progress(label, step, last) as progress:
      keys = stream_keys(self._configs(seeds), TRAIN_STREAM)
      program = dataclasses.replace(self._program, key=keys, numbers=numbers)
      while step < last and not self._interruption.due():
        stop = min(last, (step // _CHUNK + 1) * _CHUNK)
        state, metrics = program.advance(state, step, stop)
        jax.block_until_ready(metrics)
        step = stop
        progress.advance(step)
    return step, state

  def models(self, state: State, seeds: Sequence[int]) -> list[State]:
    """The states of the models one by one."""
    return [*unstack(self._configs(seeds), jax.device_get(state))][: len(seeds)]

  def predictor(self, state: State) -> nnx.Module:
    """The model of one of these states."""
    return nnx.merge(self._program.graph, state['model'])


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
    """Raises UserError if the folder has a cell of other settings."""
    self.cell, self._settings, self._folder = cell, settings, folder
    self._get_config, self._interruption = get_config, interruption
    self._file = folder / 'notes.json'
    self.notes = Notes(settings.key)
    if self._file.is_file():
      self.notes = read_as(self._file, Notes)
    if self.notes.settings != settings.key:
      raise UserError(
        f'{folder} was trained with the settings {self.notes.settings}, not '
        f'{settings.key}; give another --out'
      )

  @functools.cached_property
  def config(self) -> Config:
    """The validated config; raises UserError if the model cannot do the task."""
    return validate(self._get_config())

  @functools.cached_property
  def lanes(self) -> Lanes:
    """The program, compiled when something is to be trained."""
    return Lanes(self.config, self._settings.num_seeds, self._interruption)

  def rows(self, unit: Callable[[], float]) -> list[Row]:
    """Trains what is missing, and returns a row for each budget.

    `unit` returns the loss that can be learned. Raises Stopped after a signal.
    """
    notes = self.notes
    if not (notes.weights or notes.reason):
      self._begin()
    row = Row(*self.cell[:2], self.cell.guess or '', notes.context_length)
    row = dataclasses.replace(row, weights=notes.weights, operations=notes.operations)
    if notes.reason:
      return [dataclasses.replace(row, known=NOTHING, grey=notes.reason)]
    if notes.lowest is not None:
      return [dataclasses.replace(row, known=LOWEST, losses=(notes.lowest,))]
    search = find_rate(self._try_rates, RATES, self._settings.search_steps)
    if math.isinf(search.losses[search.rate]):
      return [dataclasses.replace(row, known=NOTHING, grey='diverged at every rate')]
    notes.searched = notes.searched or notes.minutes
    train = functools.partial(self._train, search.rate)
    learnable = unit()
    found = double(train, self._settings.num_steps, learnable, self._may_train)
    return self._rows(row, search, found, learnable)

  def _begin(self) -> None:
    """Notes what is known before training."""
    notes = self.notes
    try:
      notes.context_length = self.config.task.context_length
      notes.weights, notes.operations = measure.sizes(self.config)
      if isinstance(abstract_model(self.config), LinearAttention):
        notes.lowest = measure.lowest_known(self.config)
    except UserError as error:
      notes.reason = str(error)
    self._write()

  def _rows(
    self,
    row: Row,
    search: Search,
    found: dict[int, Sequence[float]],
    learnable: float,
  ) -> list[Row]:
    rows = []
    for steps, losses in found.items():
      budget = self.notes.budgets[str(steps)]
      before = {one: found[one] for one in found if one <= steps}
      grey = why_grey(before, learnable)
      rows.append(
        dataclasses.replace(
          row,
          steps=steps,
          training_operations=steps * self.notes.step_operations,
          rate=search.rate,
          half_rate_loss=search.losses.get(search.rate / 2, math.nan),
          rate_loss=search.losses[search.rate],
          twice_rate_loss=search.losses.get(2 * search.rate, math.nan),
          losses=tuple(losses),
          grey=', '.join(filter(None, ['rate at the edge' * search.at_edge, grey])),
          lengths=measure.lengths_of(row.context_length),
          by_length=tuple(math.nan if x is None else x for x in budget.by_length),
          minutes=budget.minutes,
        )
      )
    return rows

  def _may_train(self, num_steps: int) -> bool:
    """Whether a budget is there, or likely to end within the minutes of the cell."""
    if str(num_steps) in self.notes.budgets:
      return True
    last, before = (self.notes.budgets.get(str(num_steps // n)) for n in (2, 4))
    assert last is not None  # budgets double
    took = last.minutes - (self.notes.searched if before is None else before.minutes)
    return last.minutes + 2 * took <= self._settings.minutes

  def _try_rates(self, rates: Sequence[float], num_steps: int) -> list[float]:
    """The held-out loss at each rate after all steps, infinite where one diverged."""
    found = self.notes.search.setdefault(str(num_steps), {})
    missing = [rate for rate in rates if repr(rate) not in found]
    while missing:
      few, missing = missing[: self.lanes.number], missing[self.lanes.number :]
      start, seeds = time.monotonic(), [SEARCH_SEED] * len(few)
      label = f'{self.cell.name}: {len(few)} rates'
      state, steps = self.lanes.start(seeds), (0, num_steps)
      step, state = self.lanes.train(state, steps, num_steps, seeds, few, label)
      if step < num_steps:
        raise Stopped  # these rates are tried again
      losses = self._losses(self.lanes.models(state, seeds), seeds, _HELD_OUT)
      found.update(zip(map(repr, few), finite_or_null(losses), strict=True))
      self._spend(start)
    known = (found[repr(rate)] for rate in rates)
    return [math.inf if one is None else one for one in known]

  def _train(self, rate: float, num_steps: int) -> list[float]:
    """The loss of each seed after a budget.

    Its constant part goes on from that of the budget before; its decay does not.
    """
    if (known := self.notes.budgets.get(str(num_steps))) is None:
      start = time.monotonic()
      state = self._trained_to(rate, num_steps, start)
      seeds = [*range(self._settings.num_seeds)]
      states = self.lanes.models(state, seeds)
      losses = self._losses(states, seeds, measure.NUM_PROMPTS)
      curves = [
        measure.losses_by_length(self.lanes.predictor(one), self.config)
        for one in states
      ]
      self._save_models(states, rate, num_steps)
      self.notes.step_operations = self.lanes.step_operations
      by_length = finite_or_null(np.mean(curves, axis=0).tolist())
      known = Budget(finite_or_null(losses), by_length, 0.0)
      self.notes.budgets[str(num_steps)] = known
      self._spend(start)
      known.minutes = self.notes.minutes
      self._write()
    return [math.nan if loss is None else loss for loss in known.losses]

  def _trained_to(self, rate: float, num_steps: int, clock: float) -> State:
    """The states after a budget; raises Stopped, with the constant part saved."""
    seeds, lanes = [*range(self._settings.num_seeds)], self.lanes
    constant = num_steps - round(self.config.optimizer.decay_share * num_steps)
    rates, label = [rate] * len(seeds), f'{self.cell.name}: {num_steps} steps'
    train = functools.partial(
      lanes.train, budget=num_steps, seeds=seeds, rates=rates, label=label
    )
    with Checkpoints(self._folder, 1, run_metadata(self.config)) as checkpoints:
      start, state = lanes.saved(checkpoints, seeds)
      step, state = train(state, (start, constant))
      if step > start:
        checkpoints.save(step, state)
    if step == constant:
      step, state = train(state, (constant, num_steps))
    if step < num_steps:
      self._spend(clock)
      raise Stopped
    return state

  def _losses(
    self, states: Sequence[State], seeds: Sequence[int], num_prompts: int
  ) -> list[float]:
    """The loss of each model on prompts of its seed; NaN if it is not finite."""
    task = build_task(self.config)
    return [
      measure.loss(self.lanes.predictor(state), task, num_prompts, seed)
      for state, seed in zip(states, seeds, strict=True)
    ]

  def _save_models(self, states: Sequence[State], rate: float, num_steps: int) -> None:
    """Saves the models of the last budget, for `zoo.load`."""
    delete_folder(self._folder / 'models')
    for seed, state in enumerate(states):
      config = copy.deepcopy(self.config)
      config.seed, config.optimizer.learning_rate = seed, rate
      config.train.num_steps = num_steps
      folder = self._folder / 'models' / f'seed={seed}'
      folder.mkdir(parents=True)
      save_result(folder, num_steps, state, run_metadata(config))

  def _spend(self, start: float) -> None:
    """Adds the time since the start to that of the cell, and writes the notes."""
    self.notes.minutes += (time.monotonic() - start) / 60
    self._write()

  def _write(self) -> None:
    self._folder.mkdir(parents=True, exist_ok=True)
    content = json.dumps(dataclasses.asdict(self.notes), indent=1)
    write_atomically(self._file, content + '\n')
