"""A config that is none."""


def get_config():
  return 3
