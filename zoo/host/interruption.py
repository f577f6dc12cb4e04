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
# The interruptions of the main thread that are open, in the order in which they were
# opened. They may be closed in another order: two runs may be iterated over in turn.
_open: list[Interruption] = []
# The handlers that signals had before those of this module, by signal. It is empty
# while this module has set none: while nothing is open, and after a signal.
_handlers_before: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}


class Stopped(Exception):
  """The error that ends work after a signal: all is saved, and a new call resumes."""


class Interruption:
  """Turns the first SIGTERM, SIGHUP or Ctrl-C into a request to stop.

  A second signal has its usual effect. A signal that is ignored stays ignored: nohup
  ignores SIGHUP, and a shell script ignores SIGINT for its background jobs. If any of
  several processes gets the signal, all stop after the same step.

  A request is given to all interruptions that are open, such as that of a sweep and
  that of the run which it trains. One that is opened within a block that has a request,
  such as the next run of this sweep, has the request from the start.

  Args:
    of_iterator: Whether it belongs to an iterator, such as `zoo.training_run` returns.
      The iterator may stay open after the code that made it, so code that runs
      meanwhile does not take over its request.

  Attributes:
    requested: The number of the signal that was received; None before.
  """

  def __init__(self, *, of_iterator: bool = False):
    self.requested: int | None = None
    self._of_iterator = of_iterator

  def __enter__(self) -> Interruption:
    # Python allows signal handlers only in the main thread; other threads need none,
    # since the caller owns the process.
    if threading.current_thread() is threading.main_thread():
      around = [other.requested for other in _open if not other._of_iterator]
      self.requested = next((number for number in around if number is not None), None)
      _open.append(self)  # From here on it gets the requests that the handlers take.
      try:
        if self.requested is None and not _handlers_before:
          for number in _SIGNALS:
            before = signal.getsignal(number)
            if before is not signal.SIG_IGN:
              # A signal may come right after the handler is set.
              _handlers_before[number] = before
              signal.signal(number, _request)
      except BaseException:
        self.__exit__()
        raise
    return self

  def due(self) -> bool:
    """Returns whether to stop here; all processes must call it at the same step."""
    requested = self.requested is not None
    if jax.process_count() == 1:
      return requested
    return bool(multihost_utils.process_allgather(np.array(requested)).any())

  def raise_if_ctrl_c(self) -> None:
    """Raises KeyboardInterrupt if the request was Ctrl-C, and there is one process."""
    if self.requested == signal.SIGINT and jax.process_count() == 1:
      raise KeyboardInterrupt

  def __exit__(self, *exception: object) -> None:
    if self in _open:
      _open.remove(self)
      # An iterator may be closed in another thread, in which Python sets no handlers.
      is_main = threading.current_thread() is threading.main_thread()
      if not _open and is_main:
        _restore_handlers()


def _restore_handlers() -> None:
  """Gives signals the effects that they had before; a second call does nothing."""
  for number, handler in [*_handlers_before.items()]:
    # A handler is None if other code than Python has set it.
    signal.signal(number, handler or signal.SIG_DFL)
  _handlers_before.clear()


def _request(number: int, frame: FrameType | None) -> None:
  """Handles a signal: all that is open is asked to stop."""
  _restore_handlers()  # A second signal has its usual effect.
  if not _open:  # The last one was closed in another thread.
    signal.raise_signal(number)
    return
  for interruption in _open:
    interruption.requested = number
  logging.info('stopping: saving everything; a second signal would prevent that')
