"""Reports the errors of Orbax in one line each, and hides the rest of its output.

Orbax works in threads and event loops. If several arrays of a checkpoint fail, it
raises the first error, and logs others with their tracebacks.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import pathlib
import re
import threading
import time
import traceback
import warnings
from collections.abc import Iterator

import orbax.checkpoint
from absl import logging as absl_logging

from zoo.core.errors import RunError, in_one_line

_PACKAGE = pathlib.Path(orbax.checkpoint.__file__).parent
_NEVER_RETRIEVED = 'exception was never retrieved'
_SECONDS_TO_END = 5.0  # for the rest of a save after one part has failed


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
  logger, asyncio_logger = absl_logging.get_absl_logger(), logging.getLogger('asyncio')

  def is_wanted(record: logging.LogRecord) -> bool:
    from_orbax = _PACKAGE in pathlib.Path(record.pathname).parents
    return record.levelno < logging.WARNING or not from_orbax

  def is_retrieved(record: logging.LogRecord) -> bool:
    return _NEVER_RETRIEVED not in record.getMessage()

  logger.addFilter(is_wanted)
  asyncio_logger.addFilter(is_retrieved)
  try:
    yield
  finally:
    logger.removeFilter(is_wanted)
    asyncio_logger.removeFilter(is_retrieved)


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


@contextlib.contextmanager
def writing(earlier: set[threading.Thread]) -> Iterator[None]:
  """If the block fails, waits until all of the save has ended, and frees its tasks.

  `earlier` are the threads that ran before the save. The others might still write, and
  of the tasks Python would warn later, since nothing has awaited them.
  """
  try:
    yield
  except Exception as error:
    deadline = time.monotonic() + _SECONDS_TO_END
    for thread in {*threading.enumerate()} - earlier - {threading.current_thread()}:
      thread.join(max(deadline - time.monotonic(), 0.0))
    with warnings.catch_warnings():
      warnings.filterwarnings('ignore', 'coroutine .* was never awaited')
      held: BaseException | None = error
      while held is not None:
        traceback.clear_frames(held.__traceback__)
        held = held.__cause__ or held.__context__
      gc.collect(1)  # young objects only: a full collection takes long
    raise
