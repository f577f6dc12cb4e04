"""The first actions of a command, before any slow import."""

import io
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, TextIO


def open_closed_streams() -> None:
  """Opens standard streams that the caller has closed, on the null device.

  Otherwise the next opened file would get the number of a standard stream, and with it
  the printed output.
  """
  for number in range(3):
    try:
      os.fstat(number)
    except OSError:
      os.open(os.devnull, os.O_RDWR)  # takes the lowest free number


def handle_ctrl_c(
  handler: signal.Handlers | Callable[[int, FrameType | None], None],
) -> bool:
  """Sets the handler of Ctrl-C, if Python would raise KeyboardInterrupt.

  That exception is lost when the garbage collector calls JAX, and gives several lines
  of errors while an extension is imported. Returns whether anything was changed.
  """
  if (
    threading.current_thread() is not threading.main_thread()
    or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
  ):
    return False
  signal.signal(signal.SIGINT, handler)
  return True


def guard_output() -> None:
  """Makes output ignore a closed reader, and escape characters it cannot encode."""
  if os.name == 'posix':  # a Windows console is not a file
    sys.stdout, sys.stderr = _guarded(1, sys.stdout), _guarded(2, sys.stderr)


def output_error() -> OSError | None:
  """The error that lost a part of the standard output, such as a full disk."""
  sys.stdout.flush()
  raw = getattr(getattr(sys.stdout, 'buffer', None), 'raw', None)
  return raw.error if isinstance(raw, _Guarded) else None


class _Guarded(io.FileIO):
  """A standard stream that cannot fail, so that no training is lost by its messages.

  The reader may close its end, as `head` does. Any other error is kept in `error`.
  """

  error: OSError | None = None

  def write(self, data: Any, /) -> int:
    try:
      return super().write(data)
    except BrokenPipeError:
      pass
    except OSError as error:
      self.error = error
    return len(data)


def _guarded(number: int, stream: TextIO | None) -> TextIO:
  return io.TextIOWrapper(
    io.BufferedWriter(_Guarded(number, 'w', closefd=False)),
    encoding=stream.encoding if stream else None,
    errors='backslashreplace',
    line_buffering=True,
  )
