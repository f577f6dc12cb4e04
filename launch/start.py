"""The first actions of a command, before any slow import."""

import importlib.util
import io
import os
import pathlib
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, TextIO


def open_closed_streams() -> None:
  """Opens the null device for each standard stream that the caller has closed.

  Otherwise the next file to be opened would get the number of a standard stream, and
  receive the printed output.
  """
  for number in range(3):
    try:
      os.fstat(number)
    except OSError:
      os.open(os.devnull, os.O_RDWR)  # takes the lowest free number


def refuse_shadows() -> None:
  """Exits with code 2 if something of another project hides a package of this one.

  `python -m launch.main` looks for packages in the current folder first.
  """
  home = pathlib.Path(__file__).resolve().parents[1]
  for name in 'zoo', 'configs':
    found = importlib.util.find_spec(name)
    if found is None:  # an import says it better
      continue
    place = found.origin or next(iter(found.submodule_search_locations or []), '')
    if not pathlib.Path(place).resolve().is_relative_to(home / name):
      print(
        f'error: {place} hides the package {name} of ICL Zoo in {home}; start '
        '`icl-zoo` or `python -P -m launch`, which do not look in the current folder',
        file=sys.stderr,
      )
      sys.exit(2)


def handle_ctrl_c(
  handler: signal.Handlers | Callable[[int, FrameType | None], None],
) -> bool:
  """Sets the handler of Ctrl-C, if Python would raise KeyboardInterrupt.

  That exception is lost if it is raised while the garbage collector calls JAX, and
  prints several lines of errors while an extension is imported. Returns whether the
  handler was set.
  """
  if (
    threading.current_thread() is not threading.main_thread()
    or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
  ):
    return False
  signal.signal(signal.SIGINT, handler)
  return True


def guard_output() -> None:
  """Makes output ignore a closed reader and escape characters that it cannot encode."""
  if os.name == 'posix':  # a Windows console is not a file
    sys.stdout, sys.stderr = _guarded(1, sys.stdout), _guarded(2, sys.stderr)


def output_error() -> OSError | None:
  """The error, such as a full disk, that has lost a part of the standard output."""
  sys.stdout.flush()
  raw = getattr(getattr(sys.stdout, 'buffer', None), 'raw', None)
  return raw.error if isinstance(raw, _Guarded) else None


class _Guarded(io.FileIO):
  """A standard stream whose writes never fail, so that printing cannot end a training.

  Its reader may close it, as `head` does. Any other error is kept in `error`.
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
