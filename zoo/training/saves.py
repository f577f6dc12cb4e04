"""When states are saved: at steps, after minutes, and the best once more."""

from __future__ import annotations

import contextlib
import math
import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

from zoo.config.validation import Config
from zoo.host import processes
from zoo.storage.checkpoints import Checkpoints, run_metadata
from zoo.storage.workdir import BEST
from zoo.training.records import Records, copy_all, read_lines, risk_of
from zoo.training.shardings import State


class Saves:
  """The checkpoints of a run in a workdir, and of its best step; a context manager."""

  def __init__(self, config: Config, workdir: pathlib.Path, checkpoints: Checkpoints):
    """The best step is saved, in the folder `best`, if the config asks for it."""
    self.checkpoints = checkpoints
    self._config = config
    self._saved, self._last_save = 0, time.monotonic()
    self._stack = contextlib.ExitStack()
    self._best: Checkpoints | None = None
    self._lowest = math.inf  # the risk of the best step that is saved
    if config.checkpoint.keep_best:
      best = Checkpoints(workdir / BEST, 1, run_metadata(config))
      self._best = self._stack.enter_context(best)
      self._lowest = processes.run_on_main(lambda: _risk_at(workdir, best.latest))

  def __enter__(self) -> Saves:
    return self

  def __exit__(self, *exception: object) -> None:
    self._stack.__exit__(*exception)  # pyright: ignore

  def start(self, step: int, state: State, records: Sequence[Records]) -> None:
    """Notes the step at which training starts; starts the clock."""
    self._saved, self._last_save = step, time.monotonic()
    if step:  # a kill may have come before the best was saved
      self._save_best(step, state, records[0].line)

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
      self.checkpoints.save(step, state, lambda: copy_all(records))
      self._saved = step
      self._save_best(step, state, records[0].line)

  def save_last(self, step: int, state: State, records: Sequence[Records]) -> None:
    """Saves the state, unless it is already saved, and waits until it is."""
    self.save(step, state, records)
    self.checkpoints.wait()
    if self._best is not None:
      self._best.wait()

  def _save_best(self, step: int, state: State, line: Mapping[str, Any]) -> None:
    """Saves the state once more if its risk is the lowest of those saved so far."""
    best = self._best
    if best is not None and processes.run_on_main(lambda: self._is_best(step, line)):
      best.save(step, state)

  def _is_best(self, step: int, line: Mapping[str, Any]) -> bool:
    risk = risk_of(line) if line.get('step') == step else None
    if risk is None or risk >= self._lowest:
      return False
    self._lowest = risk
    # If newer steps were lost, the best may be one that training comes to again.
    assert self._best is not None
    return step > (self._best.latest or 0)


def _risk_at(workdir: pathlib.Path, step: int | None) -> float:
  """The risk in the line of a step; infinite if there is none."""
  lines = read_lines(workdir) if step is not None else []
  risks = [risk_of(line) for line in lines if line['step'] == step]
  return min((risk for risk in risks if risk is not None), default=math.inf)
