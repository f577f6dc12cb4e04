"""Models called in one compiled program, and programs compiled as users have them.

Otherwise each operation of a model is compiled by itself, for each shape.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax
from flax import nnx

import zoo

# For `jax.jit`, where programs are compared to the last bits: without --slow,
# tests/conftest.py selects the older emitters, which round otherwise in each program.
AS_USERS = (
  {'xla_cpu_use_fusion_emitters': True} if jax.__version_info__ < (0, 11) else {}
)

_Module = TypeVar('_Module', bound=nnx.Module)


def built(build: Callable[[], Any]) -> Any:
  """`build()` in one program, where eagerly each shape of weights has several.

  The random keys of the module must be made within `build`.
  """
  graph = nnx.graphdef(nnx.eval_shape(build))
  return nnx.merge(graph, jax.jit(lambda: nnx.state(build()))())


def predict(model: Any, prompt: zoo.Prompt) -> jax.Array:
  """`model(prompt)`; models of one structure share the program."""
  return _run('__call__', *nnx.split(model), prompt)


def predict_all(model: Any, prompt: zoo.Prompt) -> jax.Array:
  """`model.predictions(prompt)`, likewise."""
  return _run('predictions', *nnx.split(model), prompt)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _run(
  method: str, graph: nnx.GraphDef, state: nnx.State, prompt: zoo.Prompt
) -> jax.Array:
  return getattr(nnx.merge(graph, state), method)(prompt)


@contextlib.contextmanager
def counted() -> Iterator[list[str]]:
  """A list that grows with each program that is compiled or read from the disk."""
  programs: list[str] = []

  def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
    if event == '/jax/core/compile/backend_compile_duration':
      programs.append(event)

  jax.monitoring.register_event_duration_secs_listener(listen)
  try:
    yield programs
  finally:
    jax.monitoring.unregister_event_duration_listener(listen)
