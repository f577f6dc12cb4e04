"""`zoo.load`: opens a model of a run, `zoo.save` or `zoo.export`, without its config.

A checkpoint holds no code. It may come from an untrusted source, so its metadata is
checked before it is used and before memory is allocated for it.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import os
import pathlib
import tempfile
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, TypedDict, cast

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
from flax import nnx
from jax.sharding import AxisType, Mesh, NamedSharding, Sharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import PyTree
from ml_collections import ConfigDict

from zoo.config.building import Config, abstract_model, build_task
from zoo.core.errors import RunError, UserError, in_one_line, nearest, shown
from zoo.core.registry import MODELS, TASKS
from zoo.host.files import (
  UnreadableFile,
  gcs,
  is_url,
  names_below,
  or_shipped,
  read_json,
  shipped_checkpoints,
  workdir_path,
)
from zoo.storage import weight_files
from zoo.storage.orbax_folders import (
  METADATA_FILE,
  OPTIMIZER,
  array_name,
  load_arrays,
  saved_arrays,
)
from zoo.storage.steps import (
  FORMAT,
  chosen_step,
  find_corruption,
  step_folders,
  step_of,
)

# A task may allocate vectors of this length. A model with more features than this has
# at least as many weights, and so that many numbers are saved.
_MAX_FEATURES = 10**5
_MOST_ARRAYS = 8  # that a message lists
_MAX_REASON = 1000  # characters, since a name or a list in the config may be long
# While a run deletes old steps: how often to try to read the newest step, and to list
# the folder before it counts as empty.
_MAX_TRIES, _MAX_LISTINGS = 100, 5
_Arrays = dict[str, jax.ShapeDtypeStruct]  # the shapes and types of saved arrays


class _Named(TypedDict):
  name: str


class _Sections(TypedDict):
  model: _Named
  task: _Named


class _Metadata(TypedDict):
  """What the metadata of each step have, among other fields."""

  format: Literal[1]
  step: Annotated[int, msgspec.Meta(ge=0)]
  config: _Sections


@dataclasses.dataclass(frozen=True)
class SavedModel:
  """A loaded model with its metadata."""

  # The config names the classes of both, so no type checker can know them.
  model: Any  # a zoo.Model, ready to be called
  task: Any  # the zoo.Task that it was trained on
  config: Config  # of the run; without a run only the sections model and task
  step: int  # the number of steps trained

  def __repr__(self) -> str:
    """The model's class, the task and the step, on one line."""
    model = type(self.model).__name__
    return f'SavedModel(model={model}(…), task={self.task!r}, step={self.step})'


def load(path: str | os.PathLike[str], step: int | None = None) -> SavedModel:
  """Opens a model from a run's workdir, its checkpoints, or what `zoo.save` wrote.

  By default `step` is the newest, even while a run deletes old ones. The arrays go to
  the first device, or to the mesh that `jax.set_mesh` has set, whatever devices they
  were saved from; heads are split over the axis `model` of the mesh if it divides them.
  The folder may be in a bucket: gs://bucket/runs/a. A `checkpoints/NAME` that does not
  exist means a shipped checkpoint. The path may also be a file of `zoo.export`. Raises
  UserError for a folder without checkpoints, a missing step, a newer format, or a model
  or task that is not registered; RunError for damaged files.
  """
  path = workdir_path(path)
  if not is_url(path):
    path = or_shipped(path).absolute()  # as Orbax needs it
    if path.suffix == weight_files.SUFFIX and not path.is_dir():
      return _load_file(path, step)
  for _ in range(_MAX_TRIES):
    folder = _step_folder(path, step)
    try:
      with _at_hand(folder) as local:
        return _load_step(local, step)
    except (UserError, RunError):
      if not _is_deleted(folder):
        raise
  raise RunError(f'the steps of {path} are deleted faster than they can be read')


@contextlib.contextmanager
def _at_hand(folder: pathlib.Path) -> Iterator[pathlib.Path]:
  """The folder of a step; a local copy without the optimizer of one in a bucket.

  Errors in the block name the folder in the bucket.
  """
  if not is_url(folder):
    yield folder
    return
  with tempfile.TemporaryDirectory(prefix='icl_zoo_') as temporary:
    local = pathlib.Path(temporary, folder.name)
    try:
      names = [one for one in names_below(folder) if not one.startswith(OPTIMIZER)]
      gcs().download(folder, names, local)
      with _named(local, folder):
        yield local
    except OSError as error:
      raise RunError(f'{folder} cannot be read: {error}') from error


@contextlib.contextmanager
def _named(local: pathlib.Path, path: str | os.PathLike[str]) -> Iterator[None]:
  """Errors in the block name what was copied in place of the local copy."""
  try:
    yield
  except (UserError, RunError) as error:
    error.args = (str(error).replace(str(local), os.fspath(path)),)
    raise


def _is_deleted(folder: pathlib.Path) -> bool:
  try:
    return not folder.exists()
  except OSError:  # a bucket that is out of reach
    return False


def _step_folder(path: pathlib.Path, step: int | None) -> pathlib.Path:
  """The folder of a step, by default of the newest."""
  try:
    if not path.is_dir():
      what = 'is not a folder' if path.exists() else 'does not exist'
      cards = shipped_checkpoints().glob('*/card.json')
      near = nearest(path.name, [card.parent.name for card in cards])
      hint = f'; did you mean checkpoints/{near}?' if near else ''
      raise UserError(f'{path} {what}{hint}')
    if (path / 'origin').is_dir():
      return path
    folder = path / 'checkpoints' if (path / 'checkpoints').is_dir() else path
    # A listing made while a run renames one step and deletes another can miss both.
    listings = (step_folders(folder) for _ in range(_MAX_LISTINGS))
    found = next(filter(None, listings), [])
  except OSError as error:
    raise UserError(f'{path} cannot be read: {error.strerror or error}') from error
  return chosen_step(path, found, step)


def _load_step(folder: pathlib.Path, step: int | None) -> SavedModel:
  config, saved_step = _config_and_step(folder, _metadata_of(folder), step)
  saved = saved_arrays(folder, 'model')
  task, graph, state = _abstract(folder, config, saved)
  state = load_arrays(folder, {'model': state})['model']
  return SavedModel(nnx.merge(graph, state), task, config.lock(), saved_step)


def _load_file(path: pathlib.Path, step: int | None) -> SavedModel:
  """Opens a file of `zoo.export`."""
  metadata, arrays = weight_files.read(path)
  config, saved_step = _config_and_step(path, metadata, step)
  saved = {
    name: jax.ShapeDtypeStruct(one.shape, one.dtype) for name, one in arrays.items()
  }
  task, graph, state = _abstract(path, config, saved)

  def put(where: tuple, leaf: jax.ShapeDtypeStruct) -> jax.Array:
    return jax.device_put(arrays[array_name(where)].astype(leaf.dtype), leaf.sharding)

  state = jax.tree_util.tree_map_with_path(put, state)
  return SavedModel(nnx.merge(graph, state), task, config.lock(), saved_step)


def _abstract(
  folder: pathlib.Path, config: Config, saved: _Arrays
) -> tuple[Any, Any, PyTree]:
  """The task of a config, and the graph and the abstract state of its model."""
  for section, known in ('model', MODELS), ('task', TASKS):
    if (name := config[section]['name']) not in known:
      raise UserError(
        f'{folder} holds the {section} {name!r}, which is not registered; import the '
        'module that registers it first (--import=MODULE); known: '
        f'{", ".join(sorted(known))}'
      )
  _check_num_features(folder, config, saved)
  try:
    task = build_task(config)
    _check_num_layers(folder, config, len(saved))
    graph, state = nnx.split(abstract_model(config))
  except UserError as error:
    raise UserError(f'{folder}: {in_one_line(error, _MAX_REASON)}') from None
  return task, graph, _as_saved(folder, state, saved)


def _metadata_of(folder: pathlib.Path) -> object:
  """The metadata of a step; raises RunError with the good steps if it is damaged.

  The optimizer is not looked at: no model needs it, and a copy may lack it.
  """
  reason = find_corruption(folder, OPTIMIZER)
  if reason is None:
    try:
      return read_json(folder / METADATA_FILE)
    except UnreadableFile as error:
      reason = str(error)
  good: list[int] = []
  with contextlib.suppress(OSError):
    others = [one for one in step_folders(folder.parent) if one != folder]
    good = sorted(step_of(one) for one in others if find_corruption(one) is None)
  hint = f'; there are good ones at steps {good}' if good else ''
  raise RunError(f'the checkpoint {folder} is damaged: {reason}{hint}')


def _config_and_step(
  folder: pathlib.Path, metadata: object, step: int | None
) -> tuple[Config, int]:
  """The config and the step, which is the wanted one unless that is None.

  Raises UserError for another step or a newer format, RunError for damaged metadata.
  """
  fields: Any = metadata if isinstance(metadata, dict) else {}
  written = fields.get('format')
  if isinstance(written, int) and written > FORMAT:
    raise UserError(
      f'{folder} has the format {written!r}, which is newer than this version of ICL '
      f'Zoo; it reads up to {FORMAT}'
    )
  try:
    msgspec.convert(fields, _Metadata)
    config, saved_step = cast(Config, ConfigDict(fields['config'])), fields['step']
  except (ValueError, RecursionError) as error:  # of msgspec, or a dot in a name
    raise RunError(
      f'the checkpoint {folder} is damaged: its metadata must have the format '
      f'{FORMAT}, a step, and a config that names a model and a task: '
      f'{in_one_line(error)}'
    ) from error
  if step not in (None, saved_step):
    raise UserError(f'{folder} has no step {step}; it has {[saved_step]}')
  return config, saved_step


def _check_num_features(folder: pathlib.Path, config: Config, saved: _Arrays) -> None:
  """Raises RunError for a task that would be large although the model is small."""
  num_saved = sum(int(np.prod(array.shape, dtype=object)) for array in saved.values())
  num_features = config.task.get('num_features')
  if isinstance(num_features, int) and num_features > max(_MAX_FEATURES, num_saved):
    raise RunError(
      f'{folder} is damaged: its task has {num_features:,} features, but its model '
      f'only {num_saved:,} numbers'
    )


def _check_num_layers(folder: pathlib.Path, config: Config, num_saved: int) -> None:
  """Raises RunError for more layers than arrays, if each layer has some of its own.

  They may also share one array, or one array may hold those of all layers. Which it is
  a model of two layers shows.
  """
  num_layers = config.model.get('num_layers')
  if not isinstance(num_layers, int) or num_layers <= num_saved:
    return
  numbers = []
  for few in (1, 2):
    config_of_few = copy.deepcopy(config)
    config_of_few.model.num_layers = few
    numbers.append(len(shapes_of(nnx.state(abstract_model(config_of_few)))))
  if numbers[0] < numbers[1]:
    raise RunError(
      f'{folder} is damaged: its model has {num_layers:,} layers, but only {num_saved} '
      'arrays are saved'
    )


def _as_saved(folder: pathlib.Path, state: PyTree, saved: _Arrays) -> PyTree:
  """The abstract state with the saved precision and the shardings to load it with.

  Raises UserError unless both have the same arrays.
  """
  shapes = {name: array.shape for name, array in saved.items()}
  check_same_arrays(
    f'{folder} does not fit the model that its config names now',
    shapes,
    shapes_of(state),
  )
  variables = {'.'.join(map(str, path)): v for path, v in nnx.to_flat_state(state)}

  def as_saved(path: tuple, leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    name = array_name(path)
    axes = variables[name].get_metadata().get('out_sharding') or ()
    dtype, saved_dtype = leaf.dtype, saved[name].dtype
    if jnp.issubdtype(dtype, jnp.floating):
      if not jnp.issubdtype(saved_dtype, jnp.floating):
        raise UserError(f'{folder} holds {name} as {saved_dtype}, not as {dtype}')
      dtype = jax.dtypes.canonicalize_dtype(saved_dtype)
    return jax.ShapeDtypeStruct(
      leaf.shape, dtype, sharding=_sharding(jax.sharding.get_mesh(), axes, leaf.shape)
    )

  return jax.tree_util.tree_map_with_path(as_saved, state)


def shapes_of(state: PyTree) -> dict[str, tuple[int, ...]]:
  """The shapes of a state's arrays by name, as they are saved."""

  def shape(leaf: jax.Array | jax.ShapeDtypeStruct) -> tuple[int, ...]:
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
      leaf = jax.eval_shape(jax.random.key_data, leaf)
    return leaf.shape

  leaves, _ = jax.tree_util.tree_flatten_with_path(state)
  return {array_name(path): shape(leaf) for path, leaf in leaves}


def check_same_arrays(
  subject: str, shapes: Mapping[str, tuple], wanted: Mapping[str, tuple]
) -> None:
  """Raises UserError, about the `subject`, unless it has the arrays of a model."""

  def differing(one: Mapping[str, tuple], other: Mapping[str, tuple]) -> str:
    own = [f'{name} {shape}' for name, shape in one.items() if other.get(name) != shape]
    return shown(sorted(own), _MOST_ARRAYS) or 'nothing else'

  if shapes != wanted:
    raise UserError(
      f'{subject}: it has {differing(shapes, wanted)}, and the model '
      f'{differing(wanted, shapes)}'
    )


def _sharding(mesh: Mesh, axes: tuple, shape: tuple[int, ...]) -> Sharding:
  """The sharding that the model asks for an array, as far as the mesh allows it."""
  if mesh.empty:
    return SingleDeviceSharding(jax.devices()[0])
  automatic = {
    name: size
    for name, size, kind in zip(
      mesh.axis_names, mesh.axis_sizes, mesh.axis_types, strict=True
    )
    if kind == AxisType.Auto  # any other needs annotations in the model
  }
  split = [
    axis if axis in automatic and size % automatic[axis] == 0 else None
    for axis, size in zip(axes, shape, strict=False)
  ]
  return NamedSharding(mesh, P(*split))
