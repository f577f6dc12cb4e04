"""The mesh of devices: the batch is split over `data`, the heads over `model`."""

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import PyTree

from zoo.config.building import within_memory
from zoo.config.validation import Config, mesh_shape
from zoo.core.errors import UserError


def make_mesh(config: Config, devices: Sequence[Any] | None = None) -> Mesh:
  """The config's mesh: the batch is split over `data`, the heads over `model`.

  `devices` defaults to those of all processes. Raises UserError for a mesh that the
  devices cannot form.
  """
  devices = jax.devices() if devices is None else devices
  data, model = mesh_shape(config, len(devices))
  try:
    placed = mesh_utils.create_device_mesh(
      (data, model),
      devices[: data * model],
      # `jax.make_mesh` allows this only on v5e, and fails for 64 × 4 devices of v6e.
      allow_split_physical_axes=True,
    )
  except (AssertionError, NotImplementedError, ValueError):
    raise UserError(
      f'config.mesh is data {data} × model {model}; {data * model} of the '
      f'{len(devices)} devices of kind {devices[0].device_kind!r} cannot form it'
    ) from None
  # Not Explicit, the default, under which an ordinary einsum needs annotations.
  return Mesh(placed, ('data', 'model'), axis_types=(AxisType.Auto,) * 2)


@contextlib.contextmanager
def on_mesh(mesh: Mesh, config: Config) -> Iterator[None]:
  """Computes on a mesh in the config's precision; RunError if memory is not enough."""
  precision = config.train.matmul_precision
  with (
    within_memory(config),
    jax.set_mesh(mesh),
    jax.default_matmul_precision(precision),
  ):
    yield


def replicate(values: PyTree, mesh: Mesh) -> PyTree:
  """Replicates values that every process has on each device."""
  sharding = NamedSharding(mesh, P())
  if sharding.is_fully_addressable:
    return jax.device_put(values, sharding)
  return jax.tree.map(functools.partial(_put_everywhere, sharding), values)


def _put_everywhere(sharding: NamedSharding, value: Any) -> jax.Array:
  """A value on the devices of all processes, each of which makes this call."""
  if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
    data = _put_everywhere(sharding, jax.random.key_data(value))
    return jax.random.wrap_key_data(data, impl=jax.random.key_impl(value))
  # `device_put` would compare the values of all processes at each call, and wait.
  value = np.asarray(value)
  return jax.make_array_from_callback(value.shape, sharding, lambda _: value)
