"""Communication between the processes of one run.

JAX runs the same program in every process. Facts that only one process knows, such as
the contents of a folder, are sent to the others. A run of one process sends nothing.
"""

import contextlib
import itertools
import json
import re
import socket
import time
import urllib.parse
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from zoo.core.errors import InUseError, RunError, UserError, in_one_line

Result = TypeVar('Result')

# Processes wait for each other practically without a limit: the checksums of a large
# checkpoint may take hours. If a process dies, its missing heartbeat ends those that
# wait for it.
_SECONDS_OF_WAIT = 6 * 3600
# A failed process waits this long for others that failed with the same exit code.
_SECONDS_OF_FAILED = 10

# One process raises these errors in all processes. The first class that fits is taken.
_ERRORS = InUseError, UserError, RunError

_exchanges = itertools.count()  # Every process counts the same exchanges.
# `join` sets these numbers. A cluster that JAX has found has several processes.
_joined = {'count': 2, 'index': 0}


def count() -> int:
  """Returns the number of processes of this run, even if JAX has no device.

  A command calls this before JAX starts, or after it has failed. In a run of one
  process it starts no backend. Code that computes calls `jax.process_count()` instead.
  """
  if not jax.distributed.is_initialized():
    return 1
  try:
    return jax.process_count()
  except (AssertionError, RuntimeError):  # JAX has no device.
    return _joined['count']


def index() -> int:
  """Returns the number of this process, from 0, even if JAX has no device."""
  if not jax.distributed.is_initialized():
    return 0
  try:
    return jax.process_index()
  except (AssertionError, RuntimeError):
    return _joined['index']


def join(
  heartbeat_timeout: int,
  start_timeout: int,
  coordinator: str | None = None,
  num_processes: int | None = None,
  process_id: int | None = None,
) -> None:
  """Joins the processes of a run; it must be called before anything else in JAX.

  Args:
    heartbeat_timeout: The seconds without a heartbeat after which a process counts as
      lost.
    start_timeout: The seconds to wait for the others at the start.
    coordinator: The address of process 0, which passes `check_address`. Without it JAX
      detects a TPU pod, SLURM, Open MPI 4 or GKE.
    num_processes: The number of processes, with a `coordinator`.
    process_id: The number of this process, from 0, with a `coordinator`.

  Raises:
    UserError: If the port of the address is taken, if no cluster is found, or if
      process 0 cannot be reached in time. JAX itself aborts the process if others do
      not join in time, or if process 0 rejects it.
  """
  if coordinator is not None:
    if process_id == 0:
      _check_port(coordinator)
    else:
      _wait_for(coordinator, start_timeout, f'process {process_id} of {num_processes}')
  try:
    jax.distributed.initialize(
      coordinator,
      num_processes,
      process_id,
      # The address already describes the cluster.
      cluster_detection_method=None if coordinator is None else 'deactivate',
      initialization_timeout=start_timeout,
      heartbeat_timeout_seconds=heartbeat_timeout,
    )
  except Exception as error:
    reason = 'this process could not join the others'
    if coordinator is None:
      reason = (
        'no cluster was found (known are TPU pods, SLURM, Open MPI 4 and GKE): give '
        '--coordinator, --num_processes and --process_id'
      )
    raise UserError(f'{reason}; JAX says: {in_one_line(error)}') from error
  if num_processes is not None and process_id is not None:
    _joined.update(count=num_processes, index=process_id)


@contextlib.contextmanager
def propagate_errors() -> Iterator[None]:
  """Waits for all processes at the end of the block; an error in one is raised in all.

  This holds for UserError, RunError and OSError; other processes get an OSError as a
  RunError. Any other error ends its process at once.
  """
  if jax.process_count() == 1:
    yield
    return
  error, said = None, None
  try:
    yield
  except (UserError, RunError, OSError) as caught:
    error = caught
    kind = next((kind for kind in _ERRORS if isinstance(error, kind)), RunError)
    me = jax.process_index()
    said = kind.__name__, f'on process {me}: {error}' if me else str(error)
  errors = [answer for answer in _exchange(said) if answer is not None]
  if error is not None:
    raise error
  if errors:
    name, text = errors[0]
    raise {kind.__name__: kind for kind in _ERRORS}[name](text)


def run_on_main(function: Callable[[], Result]) -> Result:
  """Calls `function` on process 0 only; all get its result or its error.

  With several processes the result is sent as JSON.

  Returns:
    The result of process 0, on every process.
  """
  if jax.process_count() == 1:
    return function()
  result: Any = None
  with propagate_errors():
    if jax.process_index() == 0:
      result = function()
  return _exchange(result)[0]


def _exchange(content: Any) -> list[Any]:
  """Returns what each process gives, in order, sent as JSON by JAX's collectives."""
  # Processes can wait at a barrier for hours. The collectives of some platforms cannot.
  _wait_at_barrier(f'exchange/{next(_exchanges)}', _SECONDS_OF_WAIT)
  text = np.frombuffer(json.dumps(content).encode(), np.uint8)
  sizes = multihost_utils.process_allgather(np.array(text.size))
  padded = np.pad(text, (0, sizes.max() - text.size))
  texts = multihost_utils.process_allgather(padded)
  return [
    json.loads(text[:size].tobytes()) for text, size in zip(texts, sizes, strict=True)
  ]


def end_together(code: int) -> bool:
  """Returns whether all processes are about to end with this code; waits for 10 s.

  If not, a process must exit without cleanup: a clean exit would wait for the other
  processes, which in turn wait for this one.
  """
  if count() == 1:
    return True
  try:
    _wait_at_barrier(f'end/{code}', _SECONDS_OF_FAILED)
  except Exception:
    return False
  return True


def _wait_at_barrier(name: str, timeout: int) -> None:
  """Waits for all processes, at most so many seconds; raises JAX's error."""
  from orbax.checkpoint import multihost  # It is slow to import.

  barrier = multihost.get_barrier_sync_fn()
  barrier(key=f'icl_zoo/{name}', timeout_ms=1000 * timeout)


def _wait_for(coordinator: str, timeout: int, me: str) -> None:
  """Waits until process 0 can be reached; raises UserError, where JAX would abort."""
  address = urllib.parse.urlsplit(f'//{coordinator}')
  deadline = time.monotonic() + timeout
  while True:
    try:
      socket.create_connection((address.hostname, address.port), 1).close()
      return
    except OSError as error:
      if time.monotonic() > deadline:
        raise UserError(
          f'{me} could not join the others at {coordinator} in at most {timeout} s; '
          f'process 0 must run there, and its port be reachable: {in_one_line(error)}'
        ) from error
    time.sleep(0.1)


def check_address(name: str, address: object) -> str:
  """Returns an address; raises UserError unless it is HOST:PORT."""
  try:
    parts = urllib.parse.urlsplit(f'//{address}')  # It checks IPv6 and the port.
    host = parts.netloc.rpartition(':')[0]
    # gRPC crashes on letters of other scripts.
    well_formed = re.fullmatch(r'\[.+\]|[A-Za-z0-9][\w.-]*', host, re.A)
    valid = parts.netloc == str(address) and bool(parts.port and well_formed)
  except ValueError:
    valid = False
  if not valid:
    raise UserError(
      f'{name} is {address!r}; it must be HOST:PORT, with an IPv6 address in brackets, '
      'such as 10.0.0.2:8476, node7:8476 or [::1]:8476'
    )
  return str(address)


def _check_port(coordinator: str) -> None:
  # gRPC would share the port with another coordinator, and calls would go to either.
  port = int(coordinator.rpartition(':')[2])
  with socket.socket() as probe:
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
      probe.bind(('', port))
    except OSError as error:
      raise UserError(
        f'port {port} of this machine cannot be used by process 0: {error.strerror}; '
        'is there another process 0, or another program?'
      ) from error
