"""`launch.main` that waits for no folder that is in use, so that tests need not."""

from launch import cli, main
from zoo import workdir

if __name__ == '__main__':
  workdir._PATIENCE = 0.0
  cli.run(main.main)
