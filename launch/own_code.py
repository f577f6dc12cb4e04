"""Code of the user's own that commands call, and the errors it raises."""

import contextlib
from collections.abc import Iterator

from zoo.core.errors import RunError, UserError


class OwnCodeError(Exception):
  """Carries an error of a user's own code, its cause, past the checks of flags.

  These would take a KeyError, a ValueError or a SystemExit of a module of --import, or
  of a config file, for one of the flags.
  """


@contextlib.contextmanager
def own_code() -> Iterator[None]:
  """Runs code of the user's own, whose errors keep their tracebacks.

  Only a UserError or a RunError, which say it all, will be one line.
  """
  try:
    yield
  except (UserError, RunError, KeyboardInterrupt):
    raise
  except BaseException as error:  # also SystemExit, which --help raises, too
    raise OwnCodeError from error
