"""Signals that ask a program to stop: it saves all, and then ends."""

from __future__ import annotations

import signal
import threading
from typing import Any

from absl import logging

from zoo import processes


class Interruption:
  """Turns the first SIGTERM, SIGHUP or Ctrl-C into a request; a second acts.

  Of several processes any may get the signal, and all stop behind the same step, all as
  after SIGTERM: JAX, which handles that one then, agrees on the step.
  """

  def __init__(self):
    self.requested: int | None = None  # the signal's number
    self._before: dict[int, Any] = {}

  def __enter__(self) -> Interruption:
    # Python allows signal handlers in the main thread only; elsewhere none is needed,
    # since the caller owns the process.
    if threading.current_thread() is threading.main_thread():
      numbers = {signal.SIGTERM, signal.SIGHUP, signal.SIGINT}
      if processes.count() > 1:
        numbers.remove(signal.SIGTERM)
      for number in numbers:
        self._before[number] = signal.signal(number, self._request)
    return self

  def due(self) -> bool:
    """Whether to stop here; all processes have to ask at the same places."""
    if processes.count() > 1:
      return processes.to_stop()
    return self.requested is not None

  def __exit__(self, *exception: object) -> None:
    self._restore()

  def _request(self, number: int, frame: object) -> None:
    self.requested = number
    self._restore()
    logging.info('stopping, and saving all; a second signal would lose it')
    if processes.count() > 1:
      signal.raise_signal(signal.SIGTERM)  # tells JAX, and so the others

  def _restore(self) -> None:
    for number, handler in self._before.items():
      signal.signal(number, handler)
    self._before = {}
