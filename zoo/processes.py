"""What the processes of one run tell each other.

JAX runs the same program in every process. What only one process can know, such as the
contents of a folder, it tells the others through JAX's coordination service; a run of
one process asks nobody, and pays nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import ipaddress
import itertools
import json
import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import jax

from zoo import jax_private
from zoo.errors import RunError, UserError

Result = TypeVar('Result')

# No wait ends by this: a process that dies is noticed by its missing heartbeat, and
# ends those that wait for it. Hours are for the checksums of a large checkpoint.
_LONG_MS = 6 * 3600 * 1000
# How long a process that failed waits for others that failed alike.
_MOMENT_MS = 10_000

_meetings = itertools.count()  # every process counts the same ones
_sync_points = itertools.count()  # at which the processes can stop

count = jax_private.process_count
index = jax_private.process_index


def join(
  heartbeat_timeout: int,
  start_timeout: int,
  coordinator: str | None = None,
  num_processes: int | None = None,
  process_id: int | None = None,
) -> None:
  """Joins the processes of a run; to be called before anything else of JAX.

  Timeouts are in seconds. Without a coordinator, HOST:PORT of process 0, JAX finds it
  from the TPU pod, SLURM, Open MPI 4 or GKE that it runs on. Raises UserError when
  there is none of these, when the others do not come in time, or the coordinator
  refuses this process.
  """
  if coordinator is not None:
    check_address('coordinator', coordinator)
    if process_id == 0:
      _check_port(coordinator)
  start = time.monotonic()
  try:
    with jax_private.lost_run_handler(_end_lost):
      jax.distributed.initialize(
        coordinator,
        num_processes,
        process_id,
        # What is given in full is not to be looked for.
        cluster_detection_method=None if coordinator is None else 'deactivate',
        initialization_timeout=start_timeout,
        heartbeat_timeout_seconds=heartbeat_timeout,
      )
  except Exception as error:
    refused = time.monotonic() - start < start_timeout
    raise _join_error(error, refused, start_timeout) from error


def _join_error(error: Exception, refused: bool, start_timeout: int) -> UserError:
  """Why this process could not join the others."""
  if not jax_private.is_connecting():
    return UserError(
      'no cluster was found (known are TPU pods, SLURM, Open MPI 4 and GKE): give '
      f'--coordinator, --num_processes and --process_id; JAX says: {error}'
    )
  address = str(jax_private.coordinator_address())
  this = f'process {index()} of {count()}'
  if refused:
    return UserError(
      f'the coordinator at {address} refused {this}: another process came with the '
      'same id, or it was told another number of processes'
    )
  if not _answers(address):
    return UserError(
      f'{this} got no answer from the coordinator at {address} in {start_timeout} s; '
      'process 0 must run there, and the port be reachable'
    )
  return UserError(
    f'{this} waited {start_timeout} s, and not all of the {count()} came; each of the '
    f'ids 0 to {count() - 1} must be given to one process'
  )


@contextlib.contextmanager
def propagate_errors() -> Iterator[None]:
  """Ends the block in all processes alike: an error in one is raised in every one.

  That is for UserError, RunError and OSError, which others get as a RunError; all other
  errors are left to end their process at once.
  """
  if count() == 1:
    yield
    return
  error = None
  try:
    yield
  except (UserError, RunError, OSError) as caught:
    error = caught
  client = jax_private.coordination_client()
  name = f'icl_zoo/{next(_meetings)}'
  if error is not None:
    text = f'on process {index()}: {error}' if index() else str(error)
    kind = isinstance(error, UserError)
    client.key_value_set(f'{name}/{index():09}', json.dumps([kind, text]))
  client.wait_at_barrier(name, _LONG_MS)
  errors = sorted(client.key_value_dir_get(name))
  if error is not None:
    raise error
  if errors:
    kind, text = json.loads(errors[0][1])
    raise (UserError if kind else RunError)(text)


def run_on_main(function: Callable[[], Result]) -> Result:
  """What `function` returns on process 0, which alone calls it, or the error it raises.

  With several processes the result goes through JSON.
  """
  if count() == 1:
    return function()
  text = ''
  with propagate_errors():
    if index() == 0:
      text = json.dumps(function())
  client = jax_private.coordination_client()
  name = f'icl_zoo/{next(_meetings)}'
  if index() == 0:
    client.key_value_set(name, text)
  return json.loads(client.blocking_key_value_get(name, _LONG_MS))


def to_stop() -> bool:
  """Whether SIGTERM came to any process, and all are to stop here.

  All have to ask at the same sync points. The answer is the same for all, and yes only
  once.
  """
  # JAX chooses the number behind the largest that any process has asked with. Training
  # steps would not do, as they jump from one sync point to the next.
  return _preemption_manager().reached_sync_point(next(_sync_points))


@functools.cache
def _preemption_manager() -> jax_private.PreemptionManager:
  manager = jax_private.take_preemption_manager()
  atexit.register(manager.shutdown)  # as JAX does, before it leaves the others
  return manager


def end_together(code: int) -> bool:
  """Whether all processes are about to end with this code; waits some seconds for it.

  If not, a process must not end in order: that would wait for the others, and they for
  it.
  """
  if count() == 1:
    return True
  try:
    name = f'icl_zoo/end/{code}'
    jax_private.coordination_client().wait_at_barrier(name, _MOMENT_MS)
  except Exception:
    return False
  return True


def check_address(name: str, address: object) -> str:
  """Returns `address`, called `name`, or raises UserError unless it is HOST:PORT."""
  # ASCII digits: gRPC crashes on those of other scripts.
  parts = re.fullmatch(
    r'(\[(.+)\]|[A-Za-z0-9][\w.-]*):([0-9]{1,5})', str(address), re.A
  )
  valid = parts is not None and 0 < int(parts[3]) < 2**16
  if parts is not None and parts[2] is not None:
    try:
      ipaddress.IPv6Address(parts[2])
    except ValueError:
      valid = False
  if not valid:
    raise UserError(
      f'{name} is {address!r}; it must be HOST:PORT, with an IPv6 address in brackets, '
      'such as 10.0.0.2:8476, node7:8476 or [::1]:8476'
    )
  return str(address)


def _end_lost() -> None:
  """Ends this process; called in a thread of JAX's, after it has said what happened."""
  this = f'process {index()} of {count()}'
  text = (
    f'\nerror: {this} ends: another process of the run was lost, or started twice; '
    'rerun the same command in all processes to resume\n'
  )
  with contextlib.suppress(OSError):
    os.write(2, text.encode())
  os._exit(1)


def _check_port(coordinator: str) -> None:
  # gRPC would share the port with another coordinator, and each get some of the calls.
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


def _answers(address: str) -> bool:
  host, _, port = address.rpartition(':')
  try:
    socket.create_connection((host.strip('[]'), int(port)), timeout=2).close()
  except OSError:
    return False
  return True
