"""`launch.main`, or the command named first, whose leases end after 3 s."""

import importlib
import sys

from launch import cli
from zoo.storage import lease

if __name__ == '__main__':
  lease.SECONDS = 3.0
  name = sys.argv.pop(1) if sys.argv[1:2] == ['sweep'] else 'main'
  cli.run(importlib.import_module(f'launch.{name}').main)
