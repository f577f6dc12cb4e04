"""Reports the errors of Orbax in one line each, and hides the rest of its output.

Orbax works in threads and event loops. If several arrays of a checkpoint fail, it
raises the first error, and logs others with their tracebacks.
"""

from __future__ import annotations

import contextlib
import logging
import pathlib
import re
import warnings
from collections.abc import Iterator

import orbax.checkpoint
from absl import logging as absl_logging

from zoo.core.errors import RunError, in_one_line

_PACKAGE = pathlib.Path(orbax.checkpoint.__file__).parent

# Where a folder cannot be created, Orbax forgets what it would have done there.
warnings.filterwarnings('ignore', "coroutine '_create_paths' was never awaited")


def one_line(error: BaseException) -> str:
  """The type and message of an error, shortened.

  TensorStore appends its whole configuration and its source locations.
  """
  text, *_ = re.split(r'\[(?:tensorstore_spec|source locations)=', str(error))
  text = in_one_line(text, None)
  return f'{type(error).__name__}: {text if len(text) <= 300 else f"…{text[-300:]}"}'


@contextlib.contextmanager
def quiet_orbax() -> Iterator[None]:
  """Hides warnings and errors of Orbax, which raises the first one, in the block."""
  logger = absl_logging.get_absl_logger()

  def is_wanted(record: logging.LogRecord) -> bool:
    from_orbax = _PACKAGE in pathlib.Path(record.pathname).parents
    return record.levelno < logging.WARNING or not from_orbax

  logger.addFilter(is_wanted)
  try:
    yield
  finally:
    logger.removeFilter(is_wanted)


@contextlib.contextmanager
def reading(folder: pathlib.Path) -> Iterator[None]:
  """Turns any error in the block into a RunError of one line that names the folder."""
  with quiet_orbax():
    try:
      yield
    except RunError:
      raise
    except Exception as error:
      reason: BaseException = error
      while reason.__cause__ is not None:  # Orbax wraps it in less specific errors
        reason = reason.__cause__
      raise RunError(f'{folder} cannot be read: {one_line(reason)}') from error
