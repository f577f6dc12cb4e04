"""Programs that are timed in one process and in turns.

Their ratios are meaningful even if the speed of the machine drifts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax
import jax.extend
import numpy as np
from jaxtyping import PyTree
from tqdm import tqdm

from zoo.config.read import Readable
from zoo.sharding import on_mesh, replicate
from zoo.training.compilation import make_training
from zoo.training.experiment import build


class Timing(NamedTuple):
  """The speed of one run of a program.

  Attributes:
    steps_per_second: Steps per second of wall-clock time.
    cpu_ms_per_step: CPU time of all threads of the process, in milliseconds per step.
  """

  steps_per_second: float
  cpu_ms_per_step: float


@dataclasses.dataclass
class Contender:
  """A program that is compared with others, and its timings.

  Attributes:
    label: What the progress bar shows.
    time: A function that times the program for about so many seconds.
    timings: The timings so far.
  """

  label: str
  time: Callable[[float], Timing]
  timings: list[Timing] = dataclasses.field(default_factory=list)

  @property
  def rates(self) -> dict[str, float]:
    """The least, the median and the largest number of steps per second."""
    rates = [timing.steps_per_second for timing in self.timings]
    return {
      'min': min(rates),
      'median': statistics.median(rates),
      'max': max(rates),
    }

  @property
  def cpu_ms_per_step(self) -> float:
    """The median over the timings, in milliseconds."""
    return statistics.median(timing.cpu_ms_per_step for timing in self.timings)


def time_steps(run: Callable[[int], object], seconds: float) -> Timing:
  """Measures the speed of `run`, which runs a number of steps, for about `seconds`."""
  # The first call compiles and warms caches; the second gives the number of steps.
  run(2)
  start = time.perf_counter()
  run(2)
  steps = max(2, round(2 * seconds / (time.perf_counter() - start)))
  start, cpu_start = time.perf_counter(), time.process_time()
  run(steps)
  wall, cpu = time.perf_counter() - start, time.process_time() - cpu_start
  return Timing(steps / wall, 1e3 * cpu / steps)


def of_steps(label: str, run: Callable[[int], object]) -> Contender:
  """Returns a contender for `run`, which runs a number of steps."""
  return Contender(label, functools.partial(time_steps, run))


def time_in_turns(
  contenders: Sequence[Contender], repeats: int, seconds: float
) -> None:
  """Adds `repeats` timings to each contender, in turns; shows a progress bar."""
  with tqdm(total=repeats * len(contenders), unit='timing') as bar:
    for _ in range(repeats):
      for contender in contenders:
        bar.set_description(contender.label)
        contender.timings.append(contender.time(seconds))
        bar.update()


class Steps:
  """The compiled training steps of a config, as `launch.main` runs them."""

  def __init__(self, config: Readable):
    experiment = build(config)
    self.config, self.mesh = experiment.config, experiment.mesh
    self.task, training = experiment.task, make_training(experiment)
    self.uses_statistics = training.uses_statistics
    self._steps = training.steps
    self.key, self._numbers = replicate((training.key, training.inputs), self.mesh)
    with self.computing():
      self.state = training.init(True)

  @contextlib.contextmanager
  def computing(self) -> Iterator[None]:
    """Computes on the mesh of the config, in its precision."""
    with on_mesh(self.mesh, self.config):
      yield

  def jaxpr(self) -> jax.extend.core.Jaxpr:
    """Returns the program of the steps, whose `while` loop has one step."""
    with self.computing():
      arguments = self.state, self.key, np.int32(0), np.int32(1), self._numbers
      return jax.make_jaxpr(self._steps)(*arguments).jaxpr

  def run(self, steps: int) -> PyTree:
    """Runs steps from the state of the last call, and returns the new state.

    It waits until the steps are done. The memory of the old state is reused.
    """
    with self.computing():
      start, stop = replicate((np.int32(0), np.int32(steps)), self.mesh)
      self.state, _ = self._steps(self.state, self.key, start, stop, self._numbers)
      return jax.block_until_ready(self.state)
