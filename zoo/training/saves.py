"""When the states of a run are saved: at steps, and after minutes."""

from __future__ import annotations

import time
from collections.abc import Sequence

from zoo.config.validation import Config
from zoo.host import processes
from zoo.storage.checkpoints import Checkpoints
from zoo.training.records import Records, copy_all
from zoo.training.shardings import State


class Saves:
  """Saves the states of a run from `step` on, whose clock starts now."""

  def __init__(self, config: Config, checkpoints: Checkpoints, step: int):
    self._config, self._checkpoints = config, checkpoints
    self._saved, self._last_save = step, time.monotonic()

  def due(self, step: int) -> bool:
    """Whether to save here; all processes must call this at the same step.

    Process 0 has the clock.
    """
    every, minutes = (
      self._config.checkpoint.every,
      self._config.checkpoint.every_minutes,
    )
    if step % every == 0 or step == self._config.train.num_steps:
      return True
    if minutes is None:
      return False
    return processes.run_on_main(
      lambda: time.monotonic() > self._last_save + 60 * minutes
    )

  def save(self, step: int, state: State, records: Sequence[Records]) -> None:
    """Saves the state, unless it is already saved; raises RunError.

    When all is written, the records of a run in a bucket are copied into it.
    """
    self._last_save = time.monotonic()
    if step > self._saved:
      self._checkpoints.save(step, state, lambda: copy_all(records))
      self._saved = step

  def save_last(self, step: int, state: State, records: Sequence[Records]) -> None:
    """Saves the state, unless it is already saved, and waits until it is."""
    self.save(step, state, records)
    self._checkpoints.wait()
