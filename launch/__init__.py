"""The command-line programs; importing this package imports the library."""

import signal
import sys

from launch import start

start.open_closed_streams()
start.refuse_shadows()
_changed = start.handle_ctrl_c(signal.SIG_DFL)  # Ctrl-C ends this process
try:
  from launch import cli as cli  # takes a second, most of it for JAX
except ValueError as error:  # JAX cannot parse one of its environment variables
  print(f'error: an environment variable is invalid: {error}', file=sys.stderr)
  sys.exit(2)
finally:
  if _changed:  # this package may be imported by something other than a command
    signal.signal(signal.SIGINT, signal.default_int_handler)
