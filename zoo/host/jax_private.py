"""All private parts of JAX that the library needs, since they have no public API.

They may change with any release. `TESTED_VERSION` is the release they were tested with,
and `tests/test_jax_private.py` shows what is missing in another one.
"""

import contextlib
import functools
import os
from collections.abc import Iterator
from typing import Any

import jax

TESTED_VERSION = '0.10.1'

try:
  from jax._src import distributed

  # Of this process: num_processes, process_id, coordinator_address, and client, its
  # connection to JAX's coordination service. JAX's public functions start a backend to
  # give these; reading them here starts none.
  state: Any = distributed.global_state
  _extension = vars(distributed)['_jax']
except (ImportError, AttributeError, KeyError) as error:
  raise ImportError(
    f'JAX {jax.__version__} lacks a private part that ICL Zoo needs ({error}); it is '
    f'tested with JAX {TESTED_VERSION}'
  ) from error


@contextlib.contextmanager
def joining() -> Iterator[None]:
  """In the block `jax.distributed.initialize` raises its errors, in place of aborting.

  JAX does so if it has a callback for a run that is lost later. It cannot convert the
  callback's argument, a C++ type, so that it still aborts when the run is lost; a
  release that can ends the process, too.
  """
  original = _extension.get_distributed_runtime_client
  _extension.get_distributed_runtime_client = functools.partial(
    original, missed_heartbeat_callback=lambda status: os._exit(1)
  )
  try:
    yield
  finally:
    _extension.get_distributed_runtime_client = original
