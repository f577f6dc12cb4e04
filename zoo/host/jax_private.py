"""All private parts of JAX that the library needs, since they have no public API.

They may change with any release. `TESTED_VERSION` is the release they were tested with,
and `tests/test_jax_private.py` shows what is missing in another one.
"""

from __future__ import annotations

from typing import Any

import jax

TESTED_VERSION = '0.10.2'

try:
  from jax._src import distributed

  _state = distributed.global_state
except (ImportError, AttributeError) as error:
  raise ImportError(
    f'JAX {jax.__version__} lacks a private part that ICL Zoo needs ({error}); it is '
    f'tested with JAX {TESTED_VERSION}'
  ) from error


def process_count() -> int:
  """The number of processes of this run; unlike JAX's own, it starts no backend."""
  return _state.num_processes


def process_index() -> int:
  """The number of this process, from 0; unlike JAX's own, it starts no backend."""
  return _state.process_id


def coordinator_address() -> str | None:
  """HOST:PORT of process 0, once `jax.distributed.initialize` has found it."""
  return _state.coordinator_address


def is_connecting() -> bool:
  """Whether `jax.distributed.initialize` got as far as trying to connect."""
  return _state.client is not None


def coordination_client() -> Any:
  """The connection of this process, one of several, to JAX's coordination service."""
  return _state.client
