"""Signals that ask a program to save everything and stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType

import jax
import numpy as np
from absl import logging
from jax.experimental import multihost_utils

# Windows has no SIGHUP.
_SIGNALS = [
  getattr(signal, name)
  for name in ('SIGTERM', 'SIGHUP', 'SIGINT')
  if hasattr(signal, name)
]


class Stopped(Exception):
  """The error that ends work after a signal: all is saved, and a new call resumes."""


class Interruption:
  """Turns the first SIGTERM, SIGHUP or Ctrl-C into a request to stop.

  A second signal has its usual effect. A signal that is ignored stays ignored: nohup
  ignores SIGHUP, and a shell script ignores SIGINT for its background jobs. If any of
  several processes gets the signal, all stop after the same step.

  Attributes:
    requested: The number of the signal that was received; None before.
  """

  def __init__(self):
    self.requested: int | None = None
    self._before: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}

  def __enter__(self) -> Interruption:
    # Python allows signal handlers only in the main thread; other threads need none,
    # since the caller owns the process.
    if threading.current_thread() is threading.main_thread():
      for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
          self._before[number] = signal.signal(number, self._request)
    return self

  def due(self) -> bool:
    """Returns whether to stop here; all processes must call it at the same step."""
    requested = self.requested is not None
    if jax.process_count() == 1:
      return requested
    return bool(multihost_utils.process_allgather(np.array(requested)).any())

  def raise_if_ctrl_c(self) -> None:
    """Raises KeyboardInterrupt if the request was Ctrl-C."""
    if self.requested == signal.SIGINT:
      raise KeyboardInterrupt

  def __exit__(self, *exception: object) -> None:
    for number, handler in self._before.items():
      # A handler is None if other code than Python has set it.
      signal.signal(number, handler or signal.SIG_DFL)
    self._before = {}

  def _request(self, number: int, frame: FrameType | None) -> None:
    self.requested = number
    self.__exit__()  # A second signal has its usual effect.
    logging.info('stopping: saving everything; a second signal would prevent that')
