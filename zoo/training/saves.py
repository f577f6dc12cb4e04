"""When the state of a run is saved."""

from __future__ import annotations

import time
from collections.abc import Sequence

from zoo.config.run import Run
from zoo.host import processes
from zoo.sharding import State
from zoo.storage.checkpoints import Checkpoints, kept_steps
from zoo.training.records import Records, copy_all


class Saves:
  """Saves the states of one run, or of many models side by side.

  The clock of `checkpoint.every_minutes` starts when the object is made.
  """

  def __init__(
    self,
    config: Run,
    checkpoints: Checkpoints,
    step: int,
    records: Sequence[Records],
  ):
    """Starts the clock.

    Args:
      config: The config of the run, or that of one of the models.
      checkpoints: The checkpoints into which states are saved.
      step: The newest saved step; 0 if none is saved.
      records: The records of the run, or of each of the models.
    """
    self._config, self._checkpoints, self._records = config, checkpoints, records
    self._saved, self._last_save = step, time.monotonic()

  def due(self, step: int) -> bool:
    """Returns whether to save here; all processes must call this at the same step.

    Process 0 has the clock.
    """
    every, minutes = (
      self._config.checkpoint.every,
      self._config.checkpoint.every_minutes,
    )
    if step % every == 0 or step == self._config.train.num_steps:
      return True
    if step in kept_steps(self._config):
      return True
    if minutes is None:
      return False
    return processes.run_on_main(
      lambda: time.monotonic() > self._last_save + 60 * minutes
    )

  def save(self, step: int, state: State) -> None:
    """Saves the state, unless it is already saved.

    When everything is written, the records of a run in a bucket are copied into it.
    Records that wait for the first save are replaced when it is complete.

    Raises:
      RunError: If this save or the previous one cannot be written.
    """
    self._last_save = time.monotonic()
    if step > self._saved:
      self._checkpoints.save(step, state, lambda: copy_all(self._records))
      self._saved = step
      if any(records.waits for records in self._records):
        self._checkpoints.wait()
        for records in self._records:
          records.replace()
        copy_all(self._records)

  def save_last(self, step: int, state: State) -> None:
    """Saves the state, unless it is already saved, and waits until it is written."""
    self.save(step, state)
    self._checkpoints.wait()
