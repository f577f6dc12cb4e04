"""The commands. Importing this package imports the library, which takes seconds."""

import importlib.util
import os
import pathlib
import sys


def refuse_shadows() -> None:
  """Exits with code 2 if the packages of this project would not be imported.

  `python -m launch.main` looks for packages in the current folder first, which may have
  a package or a module of the same name.
  """
  home = pathlib.Path(__file__).resolve().parents[1]
  for name in 'zoo', 'configs', 'studies':
    spec = importlib.util.find_spec(name)
    if spec is None:  # The import itself will raise a better error.
      continue
    place = spec.origin or next(iter(spec.submodule_search_locations or []), '')
    if not pathlib.Path(place).resolve().is_relative_to(home / name):
      print(
        f'error: {place} hides the package {name} of ICL Zoo in {home}; start '
        '`python -P -m launch.main`, which does not look in the current folder',
        file=sys.stderr,
      )
      sys.exit(2)


refuse_shadows()
# On some CPUs XLA prints two long errors for each program that it reads from the cache
# on disk, although this machine has compiled it (openxla/xla, issue 44565). Level 3
# still prints errors that end the process. JAX's default, level 1, prints all of them.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
try:
  from launch import cli as cli
except ValueError as error:
  # JAX raises this if it cannot parse one of its environment variables, and names it.
  variables = [name for name in os.environ if name.startswith('JAX_')]
  if not any(name in str(error).upper() for name in variables):
    raise
  print(f'error: an environment variable is invalid: {error}', file=sys.stderr)
  sys.exit(2)
