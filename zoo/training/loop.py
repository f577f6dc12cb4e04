"""The loop of training: it calls the compiled steps of one model, or of many models."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import numpy as np

from zoo.config.building import within_memory
from zoo.config.run import Run
from zoo.host.interruption import Interruption
from zoo.sharding import State, on_mesh, replicate
from zoo.storage.checkpoints import kept_steps
from zoo.training.compilation import Training
from zoo.training.evaluation import Measured, evaluate


class Chunk(NamedTuple):
  """The results of one call of the compiled steps, on the host.

  Attributes:
    step: The number of steps that are done after the call.
    metrics: The metrics of the last step, as `run_steps` returns them.
    measured: The evaluation after the last step, with arrays of NumPy.
    must_save: Whether the caller must save `Loop.state` before it asks for the next
      chunk.
  """

  step: int
  metrics: dict[str, np.ndarray]
  measured: Measured
  must_save: bool


class _Call(NamedTuple):
  """A chunk whose results may still be being computed.

  Attributes:
    started: When the steps were started, in seconds of `time.monotonic`.
    step: The number of steps that are done after the call.
    metrics: The metrics of the last step, on the devices.
    measured: The evaluation after the last step, on the devices.
  """

  started: float
  step: int
  metrics: dict[str, jax.Array]
  measured: Measured


class Loop:
  """The loop up to the last step, or until a signal: an iterable of chunks.

  Training goes on when the next chunk is asked for, so that the caller may save or read
  the state between two chunks. A loop that looks ahead starts the steps of the next
  chunk before it waits for the results of this one: the devices compute while the
  caller records. Its state may then be newer than the chunk, except after a chunk that
  is to be saved.

  Attributes:
    state: The newest state, which may still be being computed.
    step: The number of steps that this state has done.
  """

  def __init__(
    self,
    training: Training,
    state: State,
    step: int,
    must_save: Callable[[int], bool],
    interruption: Interruption,
    looks_ahead: bool,
  ):
    """Starts the clocks.

    Args:
      training: The compiled steps and the compiled evaluation.
      state: The state from which training goes on. The first steps donate it.
      step: The number of steps that this state has done.
      must_save: Whether the state after a number of steps is to be saved.
      interruption: Ends the loop at the end of a chunk.
      looks_ahead: Whether the steps of the next chunk are started before the results
        of this chunk are read.
    """
    self.state, self.step = state, step
    self._training, self._must_save = training, must_save
    self._interruption, self._looks_ahead = interruption, looks_ahead
    self._start = step, time.process_time()
    self._fetched_step = step
    self._seconds_of_steps = 0.0
    self._last_fetch = 0.0

  def __iter__(self) -> Iterator[Chunk]:
    """Yields each chunk when its results are on the host."""
    call = self._advance()
    while call is not None:
      must_save = self._must_save(call.step)
      ahead = self._advance() if self._looks_ahead and not must_save else None
      yield Chunk(call.step, *self._fetch(call), must_save)
      call = ahead or self._advance()

  def _advance(self) -> _Call | None:
    """Starts the steps up to the next stop.

    Returns:
      The call, whose results are not there yet. None at the last step and after a
      signal.
    """
    training, experiment = self._training, self._training.experiment
    config = experiment.config
    if self.step >= config.train.num_steps or self._interruption.due():
      return None
    started, stop = time.monotonic(), next_stop(self.step, config)
    limits = replicate((np.int32(self.step), np.int32(stop)), experiment.mesh)
    with on_mesh(experiment.mesh, config):
      self.state, metrics = training.steps(
        self.state, training.key, *limits, training.inputs
      )
      measured = evaluate(config, training.evaluation, self.state['model'], stop)
    self.step = stop
    return _Call(started, stop, metrics, measured)

  def _fetch(self, call: _Call) -> tuple[dict[str, np.ndarray], Measured]:
    """Waits for the results of a call, and adds the time of its steps to the total.

    The time begins when the steps were started, and ends when the metrics of the last
    step are there. Steps that were started ahead first waited for the devices, which
    were still busy with the previous call. For these steps the time begins when the
    results of the previous call had been copied to the host.

    Returns:
      The metrics and the evaluation, on the host.

    Raises:
      RunError: If the memory was not enough for the steps or for the evaluation. Some
        backends find this out only while they compute.
    """
    results = call.metrics, call.measured
    with within_memory(self._training.experiment.config):
      for leaf in jax.tree.leaves(results):
        leaf.copy_to_host_async()  # The copy begins as soon as a result is there.
      jax.block_until_ready(call.metrics)
      began = max(call.started, self._last_fetch)
      self._seconds_of_steps += time.monotonic() - began
      metrics, measured = jax.device_get(results)
    self._last_fetch, self._fetched_step = time.monotonic(), call.step
    return metrics, measured

  def speed(self) -> tuple[float | None, float | None]:
    """Returns steps per second and CPU-ms per step; both are None without steps.

    The rate counts the time of the steps alone. It leaves out evaluation, records, the
    work of the caller between two chunks, and the time in which a save stops training.
    A save that is written in the background may slow the steps down. The CPU time
    counts all threads of this process since the start, whatever they do.
    """
    start, cpu = self._start
    num_steps = self._fetched_step - start
    if num_steps <= 0:
      return None, None
    cpu_seconds = time.process_time() - cpu
    # A coarse clock may say that a few steps took no time.
    rate = num_steps / self._seconds_of_steps if self._seconds_of_steps else None
    return rate, 1e3 * cpu_seconds / num_steps


def next_stop(step: int, config: Run) -> int:
  """Returns the step at which the next call of the compiled steps ends.

  It is the next step at which the run logs, evaluates or saves, or the last step.
  """
  every = config.train.log_every, config.eval.every, config.checkpoint.every
  kept = [at for at in kept_steps(config) if at > step]
  return min(config.train.num_steps, *((step // n + 1) * n for n in every), *kept)
