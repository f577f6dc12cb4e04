"""Computing in float64, whatever JAX's defaults and the devices."""

import contextlib
from collections.abc import Iterator
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import AxisType, Mesh
from jaxtyping import ArrayLike


@contextlib.contextmanager
def double_precision() -> Iterator[None]:
  """Computes in float64 inside the block, with matrix products in full precision.

  The computation runs on the host's CPU whatever the devices: a TPU has no float64, and
  emulates each operation by dozens of others.
  """
  host = contextlib.nullcontext() if jax.default_backend() == 'cpu' else _on_host()
  with host, jax.enable_x64(True), jax.default_matmul_precision('highest'):
    yield


def _on_host() -> contextlib.AbstractContextManager:
  """Computes on the CPU of a host with other devices inside the block."""
  try:
    cpu = jax.local_devices(backend='cpu')[:1]
  except RuntimeError:  # JAX_PLATFORMS excludes the CPU
    return contextlib.nullcontext()
  # A mesh, because a mesh set by the caller overrides `jax.default_device`.
  mesh = Mesh(
    np.reshape(cpu, (1, 1)), ('data', 'model'), axis_types=(AxisType.Auto,) * 2
  )
  return jax.set_mesh(mesh)


Subject = TypeVar('Subject')


def in_float64(subject: Subject) -> Subject:
  """Returns a copy of a concrete model with its arrays in float64.

  Make and use the copy inside `double_precision`.
  """
  if not isinstance(subject, nnx.Module):
    return subject
  graph, state = nnx.split(subject)
  return nnx.merge(graph, jax.tree.map(to_float64, state))


def to_float64(leaf: ArrayLike) -> ArrayLike:
  """Returns a floating-point array in float64, and any other leaf as it is."""
  if not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
    return leaf
  # A new view: JAX 0.10.2 caches the float32 buffer of a NumPy array that a function
  # compiled without x64 has closed over, and would reuse it for the same object here.
  # The type is given, since otherwise JAX compiles a program for each shape to put an
  # array of NumPy on the device.
  return jnp.asarray(np.asarray(leaf, np.float64).view(), jnp.float64)
