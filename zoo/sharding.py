"""How a run is divided among devices: the rules, and the shardings by these rules.

- The devices form a mesh with two axes, `data` and `model`. The batch of prompts of a
  step is split over `data`.
- The axis `model` splits weights. A layer names it for an axis of a weight in the
  metadata `out_sharding` (the logical axes of Flax), mostly for the axis of the heads.
  An array that names no axis of the mesh is whole on every device. The moments of the
  optimizer are split as their weights are.
- With `config.mesh.fsdp` every array of the state is also split over `data` while it is
  kept between steps, along its longest axis that `data` divides. Each step gathers it
  again. The heads of linear attention are an exception: they stay split, and are
  computed where they are kept.
- Models that are trained side by side have a new first axis. It is split over `data` if
  their objective samples no prompts, and is whole otherwise.
- Prompts are drawn by all devices and gathered over `model`. Sufficient statistics of
  prompts stay split over both axes.
- A checkpoint does not know how its arrays were split. A loaded model is split as its
  layers ask, over the mesh that `jax.set_mesh` has set, or is on the first device.
- The comparison with the baselines at the end of a run leaves a split model as it is,
  and measures the baselines on one device. Only if a run has several processes is the
  model gathered: every device then has the whole model, and one device of process 0
  compares it.

XLA derives the sharding of everything else from these rules. The layers themselves name
axes in two places: `zoo.mixers.mixer` for the heads of attention, and
`zoo.models.linear_attention` for its matrices and what it computes of each head.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from flax import nnx
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding, Sharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import PyTree

from zoo.config.building import num_heads, within_memory
from zoo.config.run import Run
from zoo.core.errors import UserError
from zoo.core.protocols import Model, Predictor
from zoo.models import LinearAttention

# A state is a plain dict of two `nnx.State`s, whose leaves may be arrays or shapes.
# 'model' and 'optimizer' are separate, since to load a checkpoint needs only the model.
State: TypeAlias = dict[str, PyTree]


# This part makes the mesh.


def mesh_shape(config: Run, num_devices: int | None = None) -> tuple[int, int]:
  """Returns the number of devices on the axes `data` and `model`, with −1 resolved.

  A warning says, once, if devices are idle since `model` does not divide their number.

  Args:
    config: The config; `config.mesh` says how many devices each axis has.
    num_devices: The number of devices; None means those of all processes.

  Raises:
    UserError: If the mesh needs more devices, or if it leaves out some of several
      processes.
  """
  data, model = config.mesh.data, config.mesh.model
  devices = jax.device_count() if num_devices is None else num_devices
  if data == -1:
    data = max(devices // model, 1)
    if (idle := devices - data * model) > 0:
      logging.log_first_n(
        logging.WARNING,
        'config.mesh.model is %d, which does not divide the %d devices: %d of them are '
        'idle',
        1,
        model,
        devices,
        idle,
      )
  if data * model > devices:
    raise UserError(
      f'config.mesh is data {config.mesh.data} × model {model}; it needs '
      f'{data * model} devices, and there are {devices}'
    )
  if jax.process_count() > 1 and data * model < devices:
    raise UserError(
      f'config.mesh is data {config.mesh.data} × model {model}, which leaves out '
      f'{devices - data * model} of {devices} devices; with several processes it must '
      'have all of them'
    )
  return data, model


def make_mesh(config: Run, devices: Sequence[Any] | None = None) -> Mesh:
  """Returns the mesh of a config.

  Args:
    config: The config; `config.mesh` says how many devices each axis has.
    devices: The devices to choose from, which need not exist; None means those of all
      processes.

  Raises:
    UserError: If the devices cannot form the mesh.
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
  # Under Explicit, the default type, an ordinary einsum would need annotations.
  return Mesh(placed, ('data', 'model'), axis_types=(AxisType.Auto,) * 2)


@contextlib.contextmanager
def on_mesh(mesh: Mesh, config: Run) -> Iterator[None]:
  """Computes on a mesh in the config's precision.

  Raises:
    RunError: If the memory is not enough.
  """
  precision = config.train.matmul_precision
  with (
    within_memory(config),
    jax.set_mesh(mesh),
    jax.default_matmul_precision(precision),
  ):
    yield


# Every device has these arrays whole: keys, numbers of a task, and what is measured.


def replicated(mesh: Mesh) -> NamedSharding:
  """Returns the sharding of an array that every device of a mesh has whole."""
  return NamedSharding(mesh, P())


def replicate(values: PyTree, mesh: Mesh) -> PyTree:
  """Replicates values that every process has on each device."""
  sharding = replicated(mesh)
  if sharding.is_fully_addressable:
    return jax.device_put(values, sharding)
  return jax.tree.map(functools.partial(_put_everywhere, sharding), values)


def _put_everywhere(sharding: NamedSharding, value: Any) -> jax.Array:
  """Puts a value on the devices of all processes, each of which makes this call."""
  if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
    data = _put_everywhere(sharding, jax.random.key_data(value))
    return jax.random.wrap_key_data(data, impl=jax.random.key_impl(value))
  # `device_put` would compare the values of all processes at each call, and wait.
  value = np.asarray(value)
  return jax.make_array_from_callback(value.shape, sharding, lambda _: value)


# Weights and the optimizer's state are split by the logical axes that layers ask for.


def check_heads(config: Run, state: Any, model_axis: int) -> None:
  """Checks that the heads of a model can be split over the axis `model` of the mesh.

  Args:
    config: The config, for the message.
    state: The arrays of the model, which may be abstract.
    model_axis: The devices on the axis `model`.

  Raises:
    UserError: If an array names the axis for a size that it does not divide.
  """
  for path, variable in nnx.to_flat_state(state):
    if not isinstance(variable, nnx.Variable):  # The array is a plain attribute.
      continue
    axes = variable.get_metadata().get('out_sharding') or ()
    for size, axis in zip(variable.get_value().shape, axes, strict=False):
      if axis == 'model' and size % model_axis:
        name = '.'.join(map(str, path))
        unit = 'heads' if size == num_heads(config) else 'entries'
        raise UserError(
          f'config.model: the {size} {unit} of {config.model.name!r} (in {name}) must '
          f'be divisible by config.mesh.model, which is {model_axis}'
        )


def as_layers_ask(state: PyTree, mesh: Mesh) -> PyTree:
  """Returns an abstract state with the shardings that its layers ask for.

  Args:
    state: Shapes of an `nnx.State`, whose variables have the metadata `out_sharding`.
    mesh: The mesh that has the axes of this metadata.
  """
  return jax.tree.map(
    lambda leaf, sharding: jax.ShapeDtypeStruct(
      leaf.shape, leaf.dtype, sharding=sharding
    ),
    state,
    nnx.get_named_sharding(state, mesh),
  )


def shardings_of(abstract: PyTree) -> PyTree:
  """Returns the shardings of abstract arrays."""
  return jax.tree.map(lambda leaf: leaf.sharding, abstract)


def stays_in_shape(config: Run, mesh: Mesh, abstract: State) -> bool:
  """Returns whether the arrays of a state must not be flattened between steps.

  Flat arrays are faster on CPUs. But to flatten an array that is split along another
  axis than its first would gather it from all devices.
  """
  if config.mesh.fsdp or mesh.size == 1:
    return config.mesh.fsdp
  return any(
    _parts(leaf, names) > 1
    for leaf in jax.tree.leaves(abstract)
    for names in _axes(leaf)[1:]
  )


def warn_of_unsplit(config: Run, mesh: Mesh, weights: PyTree) -> None:
  """Warns of an axis of the mesh that splits no weight."""
  if config.mesh.model > 1 and not _is_split_over('model', weights):
    logging.warning(
      'config.mesh.model is %d, but no weight of %r is split over this axis: its '
      'devices repeat the same work; use config.mesh.data',
      config.mesh.model,
      config.model.name,
    )
  data = mesh.shape['data']
  if config.mesh.fsdp and data > 1 and not _is_split_over('data', weights):
    logging.warning(
      'config.mesh.fsdp is True, but the data axis of the mesh, which is %d, divides '
      'no axis of a weight of %r: each device keeps all of them',
      data,
      config.model.name,
    )


def _is_split_over(axis: str, abstract: PyTree) -> bool:
  """Returns whether any array is split over a mesh axis."""
  leaves = jax.tree.leaves(abstract)
  return any(axis in names for leaf in leaves for names in _axes(leaf))


def _axes(leaf: Any) -> list[tuple[str, ...]]:
  """Returns the names of mesh axes over which each axis of the leaf is split."""
  spec = [*leaf.sharding.spec, *[None] * (leaf.ndim - len(leaf.sharding.spec))]
  return [() if a is None else (a,) if isinstance(a, str) else tuple(a) for a in spec]


def _parts(leaf: Any, names: tuple[str, ...]) -> int:
  return math.prod(leaf.sharding.mesh.shape[name] for name in names)


# This part is for fully sharded training, `config.mesh.fsdp`.


def split_heads(model: Model) -> None:
  """Splits the heads of linear attention over all devices, if these divide them."""
  devices = jax.sharding.get_abstract_mesh().size
  if isinstance(model, LinearAttention) and model.num_heads % max(devices, 1) == 0:
    model.split_heads('model', 'data')


def split_over_data(abstract: State) -> State:
  """Returns the abstract state with one more axis of each array split over `data`.

  It is the longest axis that `data` divides; an array without one stays whole.
  """
  return jax.tree.map(_split, abstract)


def _split(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
  axes, data = _axes(leaf), leaf.sharding.mesh.shape['data']  # pyright: ignore
  free = [
    i
    for i, size in enumerate(leaf.shape)
    if _parts(leaf, axes[i]) == 1 and size % data == 0
  ]
  if not free or any('data' in names for names in axes):
    return leaf
  # `max` takes the first of equal axes: a TPU stores the last two in tiles of 8 × 128.
  longest = max(free, key=lambda i: leaf.shape[i])
  axes[longest] = (*axes[longest], 'data')
  spec = P(*[names or None for names in axes])
  sharding = NamedSharding(leaf.sharding.mesh, spec)  # pyright: ignore
  return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def gathered(model: Predictor, asked: PyTree) -> Predictor:
  """Returns the model with its arrays gathered for a step; to be called under jit.

  Args:
    model: The model, whose arrays are split as they are kept between steps.
    asked: The abstract arrays with the shardings that the layers themselves ask for.
      An array that a layer splits over `data` stays split.
  """
  graph, state = nnx.split(model)
  whole = jax.lax.with_sharding_constraint(state, shardings_of(asked))
  return nnx.merge(graph, whole)


# This part splits batches, under jit.


def split_prompts(prompts: PyTree) -> PyTree:
  """Splits drawn prompts over `data`; each device draws its own part.

  The prompts are then gathered over `model`, along which devices share the heads.

  Returns:
    The same prompts, with shardings.
  """
  prompts = jax.lax.with_sharding_constraint(prompts, P(_both_axes()))
  return split_first_axis(prompts)


def split_statistics(statistics: PyTree) -> PyTree:
  """Splits sufficient statistics of prompts over both axes, where they are drawn.

  Their last axis is that of the prompts.

  Returns:
    The same statistics, with shardings.
  """
  positions_last = jax.tree.map(
    lambda leaf: P(*[None] * (leaf.ndim - 1), _both_axes()), statistics
  )
  return jax.lax.with_sharding_constraint(statistics, positions_last)


def split_first_axis(arrays: PyTree) -> PyTree:
  """Splits the first axis of arrays, that of the prompts, over `data`."""
  return jax.lax.with_sharding_constraint(arrays, P('data'))


def _both_axes() -> tuple[str, ...]:
  """Returns the axes of the current mesh; tests have meshes with one of them."""
  mesh = jax.sharding.get_abstract_mesh()
  return tuple(name for name in ('data', 'model') if name in mesh.axis_names)


# This part is for models that are trained side by side.


def axis_of_models(config: Run, num_models: int, draws_prompts: bool) -> str | None:
  """Returns the mesh axis that models are split over.

  It is None if the batch is split over `data`.
  """
  data, _ = mesh_shape(config)
  return None if draws_prompts or num_models % data else 'data'


def stack_abstract(abstract: State, num_models: int, axis: str | None) -> State:
  """Returns the abstract state of many models, split over a mesh axis or not at all."""

  def stack(leaf: Any) -> jax.ShapeDtypeStruct:
    sharding = NamedSharding(leaf.sharding.mesh, P(axis, *leaf.sharding.spec))
    return jax.ShapeDtypeStruct(
      (num_models, *leaf.shape), leaf.dtype, sharding=sharding
    )

  return jax.tree.map(stack, abstract)


# This part loads arrays.


def sharding_to_load(variable: nnx.Variable | None, shape: tuple[int, ...]) -> Sharding:
  """Returns the sharding that a layer asks for, as far as the current mesh allows it.

  It is the first device if no mesh is set. An axis that the mesh lacks or does not
  divide stays whole.

  Args:
    variable: The variable that holds the array; None for an array that is a plain
      attribute, for which no layer can ask.
    shape: The shape of the array.
  """
  mesh = jax.sharding.get_mesh()
  if mesh.empty:
    return SingleDeviceSharding(jax.devices()[0])
  automatic = {
    name: size
    for name, size, kind in zip(
      mesh.axis_names, mesh.axis_sizes, mesh.axis_types, strict=True
    )
    if kind == AxisType.Auto  # Other types need annotations in the model.
  }
  axes = () if variable is None else variable.get_metadata().get('out_sharding') or ()
  split = [
    axis if axis in automatic and size % automatic[axis] == 0 else None
    for axis, size in zip(axes, shape, strict=False)
  ]
  return NamedSharding(mesh, P(*split))


# This part is for the comparison with baselines.


@contextlib.contextmanager
def where_compared(mesh: Mesh, state: PyTree) -> Iterator[PyTree]:
  """Computes where a comparison with baselines belongs, and yields the arrays for it.

  A model that is whole on every device is compared on one of them, so that the others
  do not repeat the work. A model that is split may be too large for one device: it is
  compared as it is split, and its prompts are on all devices. With several
  processes only process 0 compares, and a program on the mesh would need all of them.
  The model is then gathered on every device, and process 0 compares it on one.

  Args:
    mesh: The mesh of the run.
    state: The arrays of its model, or of several models side by side.

  Yields:
    The arrays, on one device or as they were.
  """
  arrays = [leaf for leaf in jax.tree.leaves(state) if isinstance(leaf, jax.Array)]
  is_split = not all(array.is_fully_replicated for array in arrays)
  if is_split and jax.process_count() == 1:
    with jax.set_mesh(mesh):
      yield state
    return
  with _on_one_device(mesh, state) as whole:
    yield whole


@contextlib.contextmanager
def _on_one_device(mesh: Mesh, state: PyTree) -> Iterator[PyTree]:
  """Computes on a device of this process, with the arrays of a mesh whole on it."""
  # This gathers the arrays on every device of the mesh, which all need the memory.
  whole = jax.jit(lambda state: state, out_shardings=replicated(mesh))(state)
  device = np.array(jax.local_devices()[:1]).reshape(1, 1)
  with jax.set_mesh(Mesh(device, ('data', 'model'), axis_types=(AxisType.Auto,) * 2)):
    yield jax.tree.map(lambda array: array.addressable_data(0), whole)
