"""`launch.main` whose locks end after 3 s, so that tests need not wait."""

from launch import cli, main
from zoo import buckets

if __name__ == '__main__':
  buckets.LEASE = 3.0
  cli.run(main.main)
