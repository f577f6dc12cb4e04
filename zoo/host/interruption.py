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
# The interruptions of the main thread that are open. They need not be closed in the
# order in which they were opened: two runs may be iterated over in turn. All of them
# have had the same request, or none.
_open: list[Interruption] = []
# The handlers that were set before those of this module, which are set while an
# interruption is open and no signal has come. The dictionary is empty otherwise.
_handlers_before: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}


class Stopped(Exception):
  """The error that ends work after a signal: all is saved, and a new call resumes."""


class Interruption:
  """Turns the first SIGTERM, SIGHUP or Ctrl-C into a request to stop.

  A second signal has its usual effect. A signal that is ignored stays ignored: nohup
  ignores SIGHUP, and a shell script ignores SIGINT for its background jobs. If any of
  several processes gets the signal, all stop after the same step.

  A request is given to all interruptions that are open, such as that of a sweep and
  that of the run which it trains. One that is opened afterwards, while these are still
  open, has the request from the start.

  Attributes:
    requested: The number of the signal that was received; None before.
  """

  def __init__(self):
    self.requested: int | None = None

  def __enter__(self) -> Interruption:
    # Python allows signal handlers only in the main thread; other threads need none,
    # since the caller owns the process.
    if threading.current_thread() is threading.main_thread():
      is_first = not _open
      if not is_first:
        self.requested = _open[0].requested
      _open.append(self)  # From here on it gets the requests that the handlers take.
      if is_first:
        _set_handlers()
    return self

  def due(self) -> bool:
    """Returns whether to stop here; all processes must call it at the same step."""
    requested = self.requested is not None
    if jax.process_count() == 1:
      return requested
    return bool(multihost_utils.process_allgather(np.array(requested)).any())

  def raise_if_ctrl_c(self) -> None:
    """Raises KeyboardInterrupt if the request was Ctrl-C.

    The error tells the user's code of the request. A run that this code begins later
    does not inherit the request, even if the code still holds an iterator over another
    run, which has not been closed.

    Raises:
      KeyboardInterrupt: If the request was Ctrl-C.
    """
    if self.requested == signal.SIGINT:
      if self in _open:
        _open.clear()
      raise KeyboardInterrupt

  def __exit__(self, *exception: object) -> None:
    if self in _open:
      if len(_open) == 1:
        _restore_handlers()
      _open.remove(self)


def _set_handlers() -> None:
  """Lets signals become requests, except those that are ignored."""
  for number in _SIGNALS:
    if signal.getsignal(number) is not signal.SIG_IGN:
      _handlers_before[number] = signal.signal(number, _request)


def _restore_handlers() -> None:
  """Gives signals the effects that they had before; a second call does nothing."""
  for number, handler in [*_handlers_before.items()]:
    # A handler is None if other code than Python has set it.
    signal.signal(number, handler or signal.SIG_DFL)
  _handlers_before.clear()


def _request(number: int, frame: FrameType | None) -> None:
  """Handles a signal: all that is open is asked to stop."""
  for interruption in _open:
    interruption.requested = number
  _restore_handlers()  # A second signal has its usual effect.
  logging.info('stopping: saving everything; a second signal would prevent that')
