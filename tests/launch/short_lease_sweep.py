"""`launch.sweep` whose locks end after 3 s, so that tests need not wait."""

from launch import cli, sweep
from zoo import buckets, mirror

if __name__ == '__main__':
  buckets.LEASE = 3.0
  mirror._SECONDS = 0.5
  cli.run(sweep.main)
