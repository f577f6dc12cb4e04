"""The command lines, thin; importing this package imports the library."""

import os
import signal
import sys
import threading

# Without this, the next file that is opened would become a standard stream that the
# caller has closed, and get what is printed.
for _number in range(3):
  try:
    os.fstat(_number)
  except OSError:
    os.open(os.devnull, os.O_RDWR)


def ctrl_c_ends_at_once() -> bool:
  """Lets Ctrl-C kill this process, if Python would raise KeyboardInterrupt.

  An exception is lost where JAX is called by the garbage collector, and breaks the
  import of an extension in several lines.
  """
  if (
    threading.current_thread() is not threading.main_thread()
    or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
  ):
    return False
  signal.signal(signal.SIGINT, signal.SIG_DFL)
  return True


_changed = ctrl_c_ends_at_once()
try:
  from launch import cli as cli  # takes a second, most of it for JAX
except ValueError as error:  # JAX does not understand one of its variables
  print(f'error: the environment is wrong: {error}', file=sys.stderr)
  sys.exit(2)
finally:
  if _changed:
    signal.signal(signal.SIGINT, signal.default_int_handler)
