"""The command lines, thin; importing this package imports the library."""

import signal
import sys

from launch import start

start.open_closed_streams()
_changed = start.handle_ctrl_c(signal.SIG_DFL)  # which ends this process
try:
  from launch import cli as cli  # takes a second, most of it for JAX
except ValueError as error:  # JAX does not understand one of its variables
  print(f'error: the environment is wrong: {error}', file=sys.stderr)
  sys.exit(2)
finally:
  if _changed:  # what imports this package may be no command
    signal.signal(signal.SIGINT, signal.default_int_handler)
