"""What the processes of one run tell each other.

JAX runs the same program in every process. Where one process alone can know something,
as what stands in a folder, it tells the others by way of JAX's coordination service; a
run of one process asks nobody, and pays nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import json
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax

# The coordination service has no public door: Orbax takes this one too.
from jax._src import distributed

from zoo.errors import RunError, UserError

# No wait ends by this: a process that dies is noticed by its missing heartbeat, and
# ends those that wait for it. Hours are for the checksums of a large checkpoint.
_LONG_MS = 6 * 3600 * 1000
# How long one that failed waits for others that failed alike.
_MOMENT_MS = 10_000

_numbers = itertools.count()  # of meetings: every process comes to the same ones
_places = itertools.count()  # at which the processes can stop


def count() -> int:
  """The number of processes of this run; starts no JAX backend."""
  return distributed.global_state.num_processes


def index() -> int:
  """The number of this process, from 0; starts no JAX backend."""
  return distributed.global_state.process_id


def join(
  heartbeat_timeout: int,
  start_timeout: int,
  coordinator: str | None = None,
  num_processes: int | None = None,
  process_id: int | None = None,
) -> None:
  """Joins the processes of a run; to be called before anything else of JAX.

  Timeouts are in seconds. Without a coordinator, HOST:PORT of process 0, JAX finds all
  out from the TPU pod, SLURM, Open MPI 4 or GKE that it runs on. Raises UserError when
  there is none of these, when the others do not come in time, or the coordinator
  refuses this process.
  """
  if coordinator is not None and process_id == 0:
    _check_port(coordinator)
  start = time.monotonic()
  try:
    with _refused_with_an_exception():
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
    state = distributed.global_state
    if state.client is None:  # not even tried
      raise UserError(
        'no cluster was found (known are TPU pods, SLURM, Open MPI 4 and GKE): give '
        f'--coordinator, --num_processes and --process_id; JAX says: {error}'
      ) from error
    who = f'process {state.process_id} of {state.num_processes}'
    if time.monotonic() - start < start_timeout:
      raise UserError(
        f'the coordinator at {state.coordinator_address} refused {who}: another '
        'process came with the same id, or it was told another number of processes'
      ) from error
    if not _answers(str(state.coordinator_address)):
      raise UserError(
        f'{who} got no answer from the coordinator at {state.coordinator_address} in '
        f'{start_timeout} s; process 0 must run there, and the port be reachable'
      ) from error
    raise UserError(
      f'{who} waited {start_timeout} s, and not all of the {state.num_processes} came; '
      f'each of the ids 0 to {state.num_processes - 1} must be given to one process'
    ) from error


@contextlib.contextmanager
def agreed() -> Iterator[None]:
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
  client, name = _client(), f'icl_zoo/{next(_numbers)}'
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


def on_first(function: Callable[[], Any]) -> Any:
  """What `function` returns on process 0, which alone calls it, or the error it raises.

  With several processes the result goes through JSON.
  """
  if count() == 1:
    return function()
  result = None
  with agreed():
    if index() == 0:
      result = function()
  client, name = _client(), f'icl_zoo/{next(_numbers)}'
  if index() == 0:
    client.key_value_set(name, json.dumps(result))
  return json.loads(client.blocking_key_value_get(name, _LONG_MS))


def to_stop() -> bool:
  """Whether SIGTERM came to any process, and all are to stop here.

  All have to ask at the same places. The answer is the same for all, and once yes.
  """
  # JAX chooses the number behind the largest that any process has asked with. Steps
  # would not do, as they jump from one place to the next.
  return _preemption_sync_manager().reached_sync_point(next(_places))


@functools.cache
def _preemption_sync_manager() -> Any:
  # Taken from where JAX keeps it: Orbax would ask it too, and hear the one yes.
  state = distributed.global_state
  manager, state.preemption_sync_manager = state.preemption_sync_manager, None
  if manager is None:
    raise RuntimeError('JAX was initialized with jax_enable_preemption_service off')
  atexit.register(manager.shutdown)  # as JAX does: before it leaves the others
  return manager


def end_together(code: int) -> bool:
  """Whether all processes are about to end with this code; waits some seconds for it.

  If not, a process must not end in order: that would wait for the others, and they for
  it.
  """
  if count() == 1:
    return True
  try:
    _client().wait_at_barrier(f'icl_zoo/end/{code}', _MOMENT_MS)
  except Exception:
    return False
  return True


def _client() -> Any:
  return distributed.global_state.client


@contextlib.contextmanager
def _refused_with_an_exception() -> Iterator[None]:
  """JAX's default would end the process with a stack trace of C++.

  A callback of Python cannot be given the reason, a C++ type: the attempt raises.
  """
  module: Any = vars(distributed)['_jax']
  make = module.get_distributed_runtime_client
  module.get_distributed_runtime_client = functools.partial(
    make, missed_heartbeat_callback=lambda status: None
  )
  try:
    yield
  finally:
    module.get_distributed_runtime_client = make


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
