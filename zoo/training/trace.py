"""A trace of some steps of training, for a profiler's viewer."""

import contextlib
import pathlib
from collections.abc import Iterator

import jax
from absl import logging

from zoo.core.errors import RunError, UserError
from zoo.host import processes
from zoo.host.files import gcs, local_folder

Steps = tuple[int, int]  # the first and the last step, counted from 1


def check_steps(steps: Steps | None, num_steps: int) -> None:
  """Raises UserError unless the steps are among the `num_steps` steps of a run."""
  if steps is not None and not 1 <= steps[0] <= steps[1] <= num_steps:
    raise UserError(
      f'profile is {steps[0]}:{steps[1]}; it must be FIRST:LAST with 1 ≤ FIRST ≤ LAST '
      f'≤ config.train.num_steps, which is {num_steps}'
    )


def steps_left(steps: Steps | None, start: int) -> Steps | None:
  """The steps to trace after step `start`; warns if all of them are done."""
  if steps is None:
    return None
  if start >= steps[1]:
    logging.warning('steps %d to %d are not traced: step %d is done', *steps, start)
    return None
  return max(steps[0], start + 1), steps[1]


@contextlib.contextmanager
def traced(folder: pathlib.Path, steps: Steps) -> Iterator[None]:
  """Traces the devices and the host of process 0 in the block, into a folder.

  Raises OSError if the folder cannot be made, RunError if the trace cannot be written.
  """
  if processes.index() > 0:
    yield
    return
  with local_folder(folder) as local:  # JAX writes into no other
    local.mkdir(exist_ok=True)
    options = jax.profiler.ProfileOptions()
    options.session_id = f'steps_{steps[0]}_to_{steps[1]}'
    options.python_tracer_level = 0  # calls of Python functions slow the host down
    jax.profiler.start_trace(local, profiler_options=options)
    try:
      yield
    finally:
      try:
        jax.profiler.stop_trace()
        if local != folder:
          gcs().upload(local, folder)
      except (jax.errors.JaxRuntimeError, OSError) as error:
        raise RunError(f'the trace cannot be written to {folder}: {error}') from error
  logging.info('the trace is in %s', folder)
