"""A trace of some steps of training, for a profiler's viewer."""

from __future__ import annotations

import contextlib
import pathlib
import tempfile

import jax
from absl import logging

from zoo.core.errors import RunError, UserError
from zoo.host import processes
from zoo.host.files import delete_folder, is_url, upload

Steps = tuple[int, int]  # the first and the last step, counted from 1


def check_steps(steps: Steps | None, num_steps: int) -> None:
  """Raises UserError unless the steps are among the `num_steps` steps of a run."""
  if steps is not None and not 1 <= steps[0] <= steps[1] <= num_steps:
    raise UserError(
      f'profile is {steps[0]}:{steps[1]}; it must be FIRST:LAST with 1 ≤ FIRST ≤ LAST '
      f'≤ config.train.num_steps, which is {num_steps}'
    )


class Trace:
  """Traces steps of one launch into `folder`; a context manager.

  Only process 0 writes a trace, of its devices and its host. The other processes end
  their calls at the same steps, since all must run the same programs.
  """

  def __init__(self, folder: pathlib.Path, steps: Steps | None, start: int):
    """Traces `steps`, or those of them after the step `start`."""
    self._folder = self._local = folder
    self._running = False
    if steps is not None and start >= steps[1]:
      log_no_trace(steps, f'the run resumes at step {start}')
      steps = None
    self._steps = steps and (max(steps[0], start + 1), steps[1])

  def __enter__(self) -> Trace:
    return self

  def __exit__(self, *exception: object) -> None:
    if exception == (None, None, None):
      self.end()  # after an interruption before the last step to trace
    elif self._running:
      with contextlib.suppress(jax.errors.JaxRuntimeError):
        jax.profiler.stop_trace()

  def starts_after(self, step: int) -> bool:
    """Whether the next step is the first one to trace."""
    return self._steps is not None and step + 1 == self._steps[0]

  def ends_after(self, step: int) -> bool:
    """Whether the step is the last one to trace."""
    return self._steps is not None and step == self._steps[1]

  def next_stop(self, step: int, stop: int) -> int:
    """The end of a call that starts after `step`: `stop`, or earlier for the trace."""
    if self._steps is None:
      return stop
    ends = self._steps[0] - 1, self._steps[1]
    return min([stop, *(end for end in ends if end > step)])

  def start(self) -> None:
    """Starts the trace; earlier steps must be done, so that they are not traced.

    Raises OSError if the folder cannot be made.
    """
    if processes.index() == 0 and self._steps is not None:
      if is_url(self._folder):  # JAX writes into a local folder, which is copied
        self._local = pathlib.Path(tempfile.mkdtemp(prefix='icl_zoo_'))
      self._local.mkdir(exist_ok=True)
      options = jax.profiler.ProfileOptions()
      options.session_id = f'steps_{self._steps[0]}_to_{self._steps[1]}'
      options.python_tracer_level = 0  # calls of Python functions slow the host down
      jax.profiler.start_trace(self._local, profiler_options=options)
      self._running = True

  def end(self) -> None:
    """Writes the trace if one was started; raises RunError if that fails."""
    if not self._running:
      return
    self._running = False
    try:
      jax.profiler.stop_trace()
      if self._local != self._folder:
        upload(self._local, self._folder)
        delete_folder(self._local)
    except (jax.errors.JaxRuntimeError, OSError) as error:
      reason = f'the trace cannot be written to {self._folder}: {error}'
      raise RunError(reason) from error
    logging.info('the trace is in %s', self._folder)


def log_no_trace(steps: Steps, reason: str) -> None:
  """Warns that a launch does not run the steps that it should trace."""
  logging.warning('steps %d to %d are not traced: %s', *steps, reason)
