"""What Orbax raises, in one line; and what else it would print is kept off the screen.

Orbax works in threads and event loops. Where several arrays of a checkpoint fail, it
raises the first error, logs others with their tracebacks, and leaves the work for the
rest behind, which fails, too, at some time later.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import pathlib
import re
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Iterator

import orbax.checkpoint
from absl import logging as absl_logging

from zoo.errors import RunError

_PACKAGE = pathlib.Path(orbax.checkpoint.__file__).parent
_NEVER_RETRIEVED = 'exception was never retrieved'
_NEVER_AWAITED = 'coroutine .* was never awaited'
_SECONDS_TO_END = 5.0  # for the other parts of a save of which one has failed


def one_line(error: BaseException) -> str:
  """The type of an error and what it says, shortened.

  TensorStore adds its whole configuration, and where in its sources it failed.
  """
  text, *_ = re.split(r'\[(?:tensorstore_spec|source locations)=', str(error))
  text = ' '.join(text.split())
  return f'{type(error).__name__}: {text if len(text) <= 300 else f"…{text[-300:]}"}'


@contextlib.contextmanager
def quiet_orbax() -> Iterator[None]:
  """Drops the warnings and errors of Orbax from the logs: it raises the first error."""
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
  """Raises RunError, in one line that names the folder, for any error of the block."""
  with quiet_orbax(), warnings.catch_warnings():
    warnings.filterwarnings('ignore', _NEVER_AWAITED)
    try:
      yield
    except RunError as error:
      _release(error)
      raise
    except Exception as error:
      reason: BaseException = error
      while reason.__cause__ is not None:  # Orbax wraps it in errors that do not say it
        reason = reason.__cause__
      failure = RunError(f'{folder} cannot be read: {one_line(reason)}')
      _release(error)
      raise failure from error


@contextlib.contextmanager
def writing(earlier: set[threading.Thread]) -> Iterator[None]:
  """Where the block fails, waits until the whole save has ended; `quiet_orbax` is on.

  `earlier` are the threads that ran before the save.
  """
  try:
    yield
  except Exception as error:
    deadline = time.monotonic() + _SECONDS_TO_END
    earlier = earlier | {threading.current_thread()}
    while started := set(threading.enumerate()) - earlier:
      if (seconds := deadline - time.monotonic()) < 0:
        break
      started.pop().join(seconds)
    with warnings.catch_warnings():
      warnings.filterwarnings('ignore', _NEVER_AWAITED)
      _release(error)
    raise


def _release(error: BaseException | None) -> None:
  """Frees what the tracebacks of an error hold: tasks that would print later."""
  while error is not None:
    traceback.clear_frames(error.__traceback__)
    error = error.__cause__ or error.__context__
  gc.collect(1)  # what is young: to go through all objects takes long


def _print_unless_left_behind(unraisable: sys.UnraisableHookArgs) -> None:
  """Python's hook for errors that nobody can catch, without those of Orbax's work."""
  code = getattr(unraisable.object, 'cr_code', None)  # of a coroutine
  if str(unraisable.exc_value) == 'Event loop is closed' or (
    code is not None and _PACKAGE in pathlib.Path(code.co_filename).parents
  ):
    return
  _print_unraisable(unraisable)


def _is_not_left_behind(record: logging.LogRecord) -> bool:
  """A filter of asyncio's log: without the errors of Orbax's tasks."""
  message = record.getMessage()
  return _NEVER_RETRIEVED not in message or not (
    # The second is a task that asyncio made of an operation of TensorStore.
    str(_PACKAGE) in message or '_wrap_awaitable' in message
  )


# For good, since what Orbax leaves behind may be collected as garbage at any time.
_print_unraisable = sys.unraisablehook
sys.unraisablehook = _print_unless_left_behind
logging.getLogger('asyncio').addFilter(_is_not_left_behind)
