"""`launch.main` whose locks end after 3 s, so that tests need not wait."""

from launch import cli, main
from zoo.storage import bucket_lock

if __name__ == '__main__':
  bucket_lock.LEASE = 3.0
  cli.run(main.main)
