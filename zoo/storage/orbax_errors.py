"""Reports the errors of Orbax in one line each, and hides the rest of its output.

Orbax works in threads and event loops. If several arrays of a checkpoint fail, it
raises the first error, logs others with their tracebacks, and abandons the tasks of the
rest, which fail at some later time.
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

from zoo.core.errors import RunError, in_one_line

_PACKAGE = pathlib.Path(orbax.checkpoint.__file__).parent
_NEVER_RETRIEVED = 'exception was never retrieved'
_NEVER_AWAITED = 'coroutine .* was never awaited'
_SECONDS_TO_END = 5.0  # for the rest of a save after one part has failed

_lock, _num_blocks = threading.Lock(), 0
_print_unraisable = sys.unraisablehook  # the one of before the first block


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
    with _without_abandoned_tasks():
      yield
  finally:
    logger.removeFilter(is_wanted)
    asyncio_logger.removeFilter(is_retrieved)


@contextlib.contextmanager
def reading(folder: pathlib.Path | str) -> Iterator[None]:
  """Turns any error in the block into a RunError of one line that names the folder."""
  with quiet_orbax(), warnings.catch_warnings():
    warnings.filterwarnings('ignore', _NEVER_AWAITED)
    try:
      yield
    except RunError as error:
      _release(error)
      raise
    except Exception as error:
      reason: BaseException = error
      while reason.__cause__ is not None:  # Orbax wraps it in less specific errors
        reason = reason.__cause__
      failure = RunError(f'{folder} cannot be read: {one_line(reason)}')
      _release(error)
      raise failure from error


@contextlib.contextmanager
def writing(earlier: set[threading.Thread]) -> Iterator[None]:
  """If the block fails, waits until the whole save has ended.

  `earlier` are the threads that ran before the save. Use it inside `quiet_orbax`.
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
  """Frees the objects in an error's tracebacks: tasks that would print later."""
  while error is not None:
    traceback.clear_frames(error.__traceback__)
    error = error.__cause__ or error.__context__
  gc.collect(1)  # young objects only: a full collection takes long


@contextlib.contextmanager
def _without_abandoned_tasks() -> Iterator[None]:
  """Hides what Python tells of abandoned Orbax tasks, which fail when they are freed.

  Blocks may overlap, in several threads too. The first changes Python's hook for
  errors that cannot be raised, and the last one to end restores it.
  """
  global _num_blocks, _print_unraisable
  with _lock:
    _num_blocks += 1
    if _num_blocks == 1:
      _print_unraisable = sys.unraisablehook
      sys.unraisablehook = _print_unless_abandoned
  try:
    yield
  finally:
    with _lock:
      _num_blocks -= 1
      if _num_blocks == 0 and sys.unraisablehook is _print_unless_abandoned:
        sys.unraisablehook = _print_unraisable


def _print_unless_abandoned(unraisable: sys.UnraisableHookArgs) -> None:
  """Calls the hook of before, but not for abandoned Orbax tasks."""
  code = getattr(unraisable.object, 'cr_code', None)  # of a coroutine
  if str(unraisable.exc_value) == 'Event loop is closed' or (
    code is not None and _PACKAGE in pathlib.Path(code.co_filename).parents
  ):
    return
  _print_unraisable(unraisable)
