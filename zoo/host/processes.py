"""Communication between the processes of one run.

JAX runs the same program in every process. Facts that only one process knows, such as
the contents of a folder, are sent to the others through JAX's coordination service. A
run of one process does without it, at no cost.
"""

import contextlib
import itertools
import json
import re
import socket
import urllib.parse
from collections.abc import Callable, Iterator
from typing import TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from zoo.core.errors import InUseError, RunError, UserError, in_one_line
from zoo.host import jax_private

Result = TypeVar('Result')

# Practically unlimited: if a process dies, its missing heartbeat ends those that wait
# for it. The checksums of a large checkpoint may take hours.
_LONG_MS = 6 * 3600 * 1000
# How long a failed process waits for others that failed with the same exit code.
_MOMENT_MS = 10_000

# The errors that one process raises in all of them; the first that fits is taken.
_ERRORS = InUseError, UserError, RunError

_exchanges = itertools.count()  # every process counts the same ones


def count() -> int:
  """The number of processes of this run."""
  return jax_private.state.num_processes


def index() -> int:
  """The number of this process, from 0."""
  return jax_private.state.process_id


def join(
  heartbeat_timeout: int,
  start_timeout: int,
  coordinator: str | None = None,
  num_processes: int | None = None,
  process_id: int | None = None,
) -> None:
  """Joins the processes of a run; call it before anything else in JAX.

  Timeouts are in seconds. `coordinator` is HOST:PORT of process 0; without it JAX
  detects a TPU pod, SLURM, Open MPI 4 or GKE. Raises UserError when none of these is
  found, when the other processes do not join in time, or when the coordinator rejects
  this process.
  """
  if coordinator is not None:
    check_address('coordinator', coordinator)
    if process_id == 0:
      _check_port(coordinator)
  try:
    with jax_private.joining():
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
    reason = f'JAX says: {in_one_line(error)}'
    if jax_private.state.client is None:
      raise UserError(
        'no cluster was found (known are TPU pods, SLURM, Open MPI 4 and GKE): give '
        f'--coordinator, --num_processes and --process_id; {reason}'
      ) from error
    address, last = jax_private.state.coordinator_address, count() - 1
    raise UserError(
      f'process {index()} of {count()} could not join the others at {address} in at '
      f'most {start_timeout} s; process 0 must run there, its port be reachable, and '
      f'each of the ids 0 to {last} be given to one process; {reason}'
    ) from error


@contextlib.contextmanager
def propagate_errors() -> Iterator[None]:
  """Waits for all processes at the end of the block; an error in one is raised in all.

  This holds for UserError, RunError and OSError, which other processes get as a
  RunError; any other error ends its process at once.
  """
  if count() == 1:
    yield
    return
  error = None
  try:
    yield
  except (UserError, RunError, OSError) as caught:
    error = caught
  client = jax_private.state.client
  name = f'icl_zoo/{next(_exchanges)}'
  if error is not None:
    text = f'on process {index()}: {error}' if index() else str(error)
    kind = next((kind for kind in _ERRORS if isinstance(error, kind)), RunError)
    client.key_value_set(f'{name}/{index():09}', json.dumps([kind.__name__, text]))
  client.wait_at_barrier(name, _LONG_MS)
  errors = sorted(client.key_value_dir_get(name))
  if error is not None:
    raise error
  if errors:
    name, text = json.loads(errors[0][1])
    raise {kind.__name__: kind for kind in _ERRORS}[name](text)


def run_on_main(function: Callable[[], Result]) -> Result:
  """Calls `function` on process 0 only; returns its result or raises its error on all.

  With several processes the result is sent as JSON.
  """
  if count() == 1:
    return function()
  text = ''
  with propagate_errors():
    if index() == 0:
      text = json.dumps(function())
  client = jax_private.state.client
  name = f'icl_zoo/{next(_exchanges)}'
  if index() == 0:
    client.key_value_set(name, text)
  return json.loads(client.blocking_key_value_get(name, _LONG_MS))


def any_of(flag: bool) -> bool:
  """Whether a flag is set in any process; all must call this at the same points."""
  if count() == 1:
    return flag
  return bool(multihost_utils.process_allgather(np.array(flag)).any())


def end_together(code: int) -> bool:
  """Whether all processes are about to end with this code; waits up to ten seconds.

  If not, a process must exit without cleanup: a clean exit would wait for the other
  processes, which in turn wait for this one.
  """
  if count() == 1:
    return True
  try:
    name = f'icl_zoo/end/{code}'
    jax_private.state.client.wait_at_barrier(name, _MOMENT_MS)
  except Exception:
    return False
  return True


def check_address(name: str, address: object) -> str:
  """Returns `address`, called `name`, or raises UserError unless it is HOST:PORT."""
  try:
    parts = urllib.parse.urlsplit(f'//{address}')  # which checks IPv6 and the port
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
  # gRPC would share the port with another coordinator, and split the calls.
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
