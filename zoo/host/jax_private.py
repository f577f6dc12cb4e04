"""All private parts of JAX that the library needs, since they have no public API.

They may change with any release. `TESTED_VERSION` is the release they were tested with,
and `tests/test_jax_private.py` shows what is missing in another one.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from collections.abc import Callable, Iterator
from typing import Any, Protocol, runtime_checkable

import jax

TESTED_VERSION = '0.10.2'

try:
  from jax._src import distributed

  _state, _extension = distributed.global_state, vars(distributed)['_jax']
except (ImportError, AttributeError, KeyError) as error:
  raise ImportError(
    f'JAX {jax.__version__} lacks a private part that ICL Zoo needs ({error}); it is '
    f'tested with JAX {TESTED_VERSION}'
  ) from error


@runtime_checkable
class CoordinationClient(Protocol):
  """JAX's connection to the coordination service of the run."""

  def key_value_set(self, key: str, value: str) -> None: ...

  def key_value_dir_get(self, key: str) -> list[tuple[str, str]]: ...

  def blocking_key_value_get(self, key: str, timeout_in_ms: int) -> str: ...

  def wait_at_barrier(self, barrier_id: str, timeout_in_ms: int) -> None: ...


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


def coordination_client() -> CoordinationClient:
  """The connection of this process, which must be one of several."""
  return _state.client  # pyright: ignore[reportReturnType]


@contextlib.contextmanager
def lost_run_handler(on_lost: Callable[[], None]) -> Iterator[None]:
  """Connections that are made in the block call `on_lost` once the run is lost.

  A run is lost when another process died or joined twice. `on_lost` runs in a thread of
  JAX and has to end the process. Where it cannot be called, JAX aborts with a C++ stack
  trace, as it does without this handler.

  JAX takes a callback for this, with which `initialize` raises an exception instead of
  aborting. But JAX cannot convert the callback's argument, a C++ type, so the call
  throws a C++ exception that nothing catches, and C++ then calls `on_lost`. A release
  that converts it calls `on_lost` directly.
  """
  original = _extension.get_distributed_runtime_client
  _extension.get_distributed_runtime_client = functools.partial(
    original, missed_heartbeat_callback=lambda status: on_lost()
  )
  _set_terminate(on_lost)
  try:
    yield
  finally:
    _extension.get_distributed_runtime_client = original


_handlers: list[Any] = []  # C++ does not keep a reference


def _set_terminate(handler: Callable[[], None]) -> None:
  """Makes C++ call `handler` when nothing catches an exception (std::set_terminate)."""
  with contextlib.suppress(OSError, AttributeError):  # a C++ library other than GNU's
    library = ctypes.CDLL('libstdc++.so.6', mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    _handlers.append(ctypes.CFUNCTYPE(None)(handler))
    library['_ZSt13set_terminatePFvvE'](_handlers[-1])
