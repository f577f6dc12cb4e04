"""`launch.sweep` whose locks end after 3 s, so that tests need not wait."""

from launch import cli, sweep
from zoo.storage import bucket_lock, mirror

if __name__ == '__main__':
  bucket_lock.LEASE = 3.0
  mirror._SECONDS = 0.5
  cli.run(sweep.main)
