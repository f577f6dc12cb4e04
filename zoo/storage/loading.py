"""`zoo.load`: opens a model of a run, of `zoo.save` or of `zoo.export`.

A checkpoint holds arrays and JSON. It holds no code, and no pickle is ever read.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import PyTree
from ml_collections import ConfigDict

from zoo.config.building import abstract_parts, build_model, build_task
from zoo.config.read import read
from zoo.core.errors import (
  RunError,
  UserError,
  check_count,
  in_one_line,
  nearest,
)
from zoo.core.registry import MODELS, TASKS
from zoo.core.saved_arrays import array_name
from zoo.host.files import (
  checkpoint_path,
  read_bytes,
  read_json,
  read_text,
  shipped_checkpoints,
)
from zoo.sharding import sharding_to_load
from zoo.storage import weight_files
from zoo.storage.checkpoints import (
  cannot_be_read,
  check_same_arrays,
  damaged,
  saved_arrays,
  shapes_of,
)
from zoo.storage.steps import (
  ORIGIN,
  SUMS,
  Origin,
  checked_origin,
  chosen_step,
  damage_of,
  steps_in,
)
from zoo.storage.together import StepTogether, load_together, steps_of_point
from zoo.storage.workdir import CONFIG, POINTS

_MOST_CHARACTERS_OF_REASON = 1000  # The reason may quote a long list of a config.


@dataclasses.dataclass(frozen=True)
class SavedModel:
  """A loaded model with its task, its config and its step.

  `zoo.load` returns it.

  Attributes:
    model: The model, a `zoo.Model` that is ready to be called.
    task: The `zoo.Task` that it was trained on.
    config: The config of the run, a locked `ConfigDict`. A model that was saved without
      a run may have only the sections `model` and `task`.
    step: The number of steps that the model was trained for.
  """

  # The config names the classes of both, so no type checker can know them. Nor does it
  # know the fields of a ConfigDict.
  model: Any
  task: Any
  config: Any
  step: int

  def untrained(self, seed: int) -> Any:
    """Returns a model of the same config with new initial weights.

    It is a control for what training adds, such as for `zoo.probing.probe_latents`.

    Args:
      seed: The seed of the weights. The seed of the config gives the weights from which
        the training of this model began, unless they came from another run.

    Example:
      >>> saved = zoo.load('checkpoints/yq_lsa')
      >>> type(saved.untrained(1)).__name__
      'YqLSA'
    """
    rngs = nnx.Rngs(check_count('seed', seed, minimum=0))
    return build_model(read(self.config), self.task, rngs)

  def __repr__(self) -> str:
    """Returns the class of the model, the task and the step, on one line."""
    model = type(self.model).__name__
    return f'SavedModel(model={model}(…), task={self.task!r}, step={self.step})'


def load(path: str | os.PathLike[str], step: int | None = None) -> SavedModel:
  """Opens a model from a run's workdir, its checkpoints, or what `zoo.save` wrote.

  The class of the model and its arguments come from the saved config, so the caller
  names neither. A class that is not part of ICL Zoo must be registered before.

  The arrays go to the first device, or to the mesh that `jax.set_mesh` has set,
  whatever devices they were saved from. On such a mesh heads are split over the axis
  `model`, if its size divides their number.

  Args:
    path: A run's workdir, its folder of checkpoints, a folder of `zoo.save`, a file of
      `zoo.export`, or the folder of a point of a sweep. A folder may be in a bucket:
      gs://bucket/runs/a. A path `checkpoints/NAME` that does not exist means the
      checkpoint of this name that ICL Zoo ships, and a warning says so. If the working
      directory has a folder `checkpoints` with other models, it is an error instead.
    step: The step to open; None opens the newest one.

  Returns:
    The model with its task, its config and its step.

  Raises:
    UserError: If the path has no checkpoint or not this step, if it has another format
      than this version writes, if its model or task is not registered, or if the arrays
      do not fit the model that the config names.
    RunError: If files are damaged.

  Example:
    >>> config = {
    ...   'model': {'name': 'yq_lsa'},
    ...   'task': {'name': 'linear_regression', 'num_features': 2, 'context_length': 4},
    ... }
    >>> model = zoo.create_model('yq_lsa', num_features=2, rngs=nnx.Rngs(0))
    >>> zoo.save(model, 'models/a', config, step=10)
    >>> zoo.load('models/a').step
    10
  """
  if step is not None:
    step = check_count('step', step, minimum=0)
  path = checkpoint_path(path)
  if path.suffix == weight_files.SUFFIX and not path.is_dir():
    return _load_file(path, step)
  while True:
    together = _step_together(path, step)
    folder = _step_folder(path, step) if together is None else together.folder
    try:
      if together is not None:
        return _load_together(together)
      return _load_step(folder, step)
    except (UserError, RunError):
      if folder.exists():
        raise
      # A run has deleted the step in the meantime, and has a newer one.


def identity_of(
  path: str | os.PathLike[str], step: int | None = None
) -> tuple[int, str]:
  """Returns the step that `load` would open, and a digest of the files of its weights.

  The arrays are not read.

  Raises:
    UserError: If the path has no checkpoint or not this step.
    RunError: If files are damaged.
  """
  path = checkpoint_path(path)
  if path.suffix == weight_files.SUFFIX and not path.is_dir():
    origin, _ = weight_files.read(path)
    saved_step = _origin(path, origin, step)['step']
    content = read_bytes(path)
  else:
    together = _step_together(path, step)
    folder = _step_folder(path, step) if together is None else together.folder
    saved_step = _origin(folder, read_json(folder / ORIGIN, dict), step)['step']
    sums = read_text(folder / SUMS).splitlines()
    place = '' if together is None else f'{together.place} of {together.number}'
    content = '\n'.join([*(s for s in sums if '  model/' in s), place]).encode()
  return saved_step, hashlib.sha256(content).hexdigest()[:16]


def steps_of(path: str | os.PathLike[str]) -> list[int]:
  """Returns the steps that `load` finds in a folder, in order; [] if it has none.

  The steps of a point of a sweep may be saved together with those of other points.
  """
  path = checkpoint_path(path)
  if not path.is_dir():
    return []
  return sorted({*_own_steps(path), *steps_of_point(path)})


def _own_steps(path: pathlib.Path) -> list[int]:
  """Returns the steps in a workdir or in its folder of checkpoints."""
  in_workdir = path / 'checkpoints'
  return steps_in(in_workdir if in_workdir.is_dir() else path)


def _step_together(path: pathlib.Path, step: int | None) -> StepTogether | None:
  """Returns the step of a point that was saved only together with other points, if any.

  A sweep trains several points in one program, and saves their states as one.

  Raises:
    UserError: If neither the point nor the program has the step.
  """
  together = steps_of_point(path)
  if not together:
    return None
  own = _own_steps(path)
  if step is None:
    step = max([*own, *together])
  if step not in own and step not in together:
    raise UserError(f'{path} has no step {step!r}; it has {sorted({*own, *together})}')
  return None if step in own else together[step]


def _step_folder(path: pathlib.Path, step: int | None) -> pathlib.Path:
  """Returns the folder of a step, by default of the newest."""
  try:
    if not path.is_dir():
      what = 'is not a folder' if path.exists() else 'does not exist'
      cards = shipped_checkpoints().glob('*/card.json')
      near = nearest(path.name, [card.parent.name for card in cards])
      hint = f'; did you mean checkpoints/{near}?' if near else ''
      raise UserError(
        f'{path} {what}; it must be the folder of a run or of zoo.save, or a '
        f'{weight_files.SUFFIX} file of zoo.export{hint}'
      )
    if (path / 'origin').is_dir():
      return path
    points = path if path.name == POINTS else path / POINTS
    if points.is_dir() and any(points.iterdir()) and not _own_steps(path):
      some = ', '.join(sorted(point.name for point in points.iterdir())[:2])
      raise UserError(
        f'{path} is a sweep; give the folder of one of its points, which are in '
        f'{points}: {some}, …'
      )
    in_workdir = path / 'checkpoints'
    return chosen_step(in_workdir if in_workdir.is_dir() else path, step)
  except OSError as error:
    raise UserError(f'{path} cannot be read: {error.strerror or error}') from error


def _load_step(folder: pathlib.Path, step: int | None) -> SavedModel:
  from orbax.checkpoint import v1 as ocp  # It is slow to import.

  # A model needs no optimizer, so damage there does not count.
  reason = damage_of(folder, left_out=('optimizer/',))
  if reason is not None:
    raise damaged(folder, reason)
  origin = _origin(folder, read_json(folder / ORIGIN, dict), step)
  content = origin['config']
  task, graph, state = _abstract(folder, content, saved_arrays(folder))
  try:
    state = ocp.load_checkpointables(str(folder), {'model': state})['model']
  except Exception as error:
    raise cannot_be_read(folder, error) from error
  return SavedModel(
    nnx.merge(graph, state), task, ConfigDict(content).lock(), origin['step']
  )


def _load_together(step: StepTogether) -> SavedModel:
  """Opens the model of a point of a sweep at a step that several points share."""
  origin = _origin(step.folder, read_json(step.folder / ORIGIN, dict), None)
  content = read_json(step.point / CONFIG, dict)
  saved = {
    name: jax.ShapeDtypeStruct(array.shape[1:], array.dtype)
    for name, array in saved_arrays(step.folder).items()
  }
  task, graph, abstract = _abstract(step.folder, content, saved)
  (state,) = load_together(step.folder, abstract, step.number, [step.place])
  return SavedModel(
    nnx.merge(graph, state), task, ConfigDict(content).lock(), origin['step']
  )


def _load_file(path: pathlib.Path, step: int | None) -> SavedModel:
  """Opens a file of `zoo.export`."""
  metadata, arrays = weight_files.read(path)
  origin = _origin(path, metadata, step)
  content = origin['config']
  saved = {
    name: jax.ShapeDtypeStruct(array.shape, array.dtype)
    for name, array in arrays.items()
  }
  task, graph, state = _abstract(path, content, saved)

  def put(where: tuple, leaf: jax.ShapeDtypeStruct) -> jax.Array:
    array = arrays[array_name(where)]
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
      return jax.device_put(jax.random.wrap_key_data(jnp.asarray(array)), leaf.sharding)
    return jax.device_put(array.astype(leaf.dtype), leaf.sharding)

  state = jax.tree_util.tree_map_with_path(put, state)
  return SavedModel(
    nnx.merge(graph, state), task, ConfigDict(content).lock(), origin['step']
  )


def _origin(folder: pathlib.Path, content: Any, step: int | None) -> Origin:
  """Returns the content of an origin after a check.

  Raises:
    UserError: If the format or a wanted step is another one.
    RunError: If the content is damaged.
  """
  origin = checked_origin(folder, content)
  if step not in (None, origin['step']):
    raise UserError(f'{folder} has no step {step}; it has {[origin["step"]]}')
  return origin


def _abstract(
  folder: pathlib.Path,
  content: Mapping[str, Any],
  saved: Mapping[str, jax.ShapeDtypeStruct],
) -> tuple[Any, Any, PyTree]:
  """Returns the task of a config, and the graph and the abstract state of its model."""
  for section, known in ('model', MODELS), ('task', TASKS):
    if (name := content[section]['name']) not in known:
      raise UserError(
        f'{folder} holds the {section} {name!r}, which is not registered; import the '
        'module that registers it first (--import=MODULE); known: '
        f'{", ".join(sorted(known))}'
      )
  try:
    config = read(content)
    task = build_task(config)
    graph, state = abstract_parts(config, task)
  except UserError as error:
    raise UserError(
      f'{folder}: {in_one_line(error, _MOST_CHARACTERS_OF_REASON)}'
    ) from None
  return task, graph, _as_saved(folder, state, saved)


def _as_saved(
  folder: pathlib.Path, state: PyTree, saved: Mapping[str, jax.ShapeDtypeStruct]
) -> PyTree:
  """Returns the abstract state with the saved precision and the shardings to load with.

  Raises:
    UserError: If the saved arrays are not those of the state.
  """
  shapes = {name: array.shape for name, array in saved.items()}
  check_same_arrays(
    f'{folder} does not fit the model that its config names now',
    shapes,
    shapes_of(state),
  )
  variables = {
    '.'.join(map(str, path)): variable
    for path, variable in nnx.to_flat_state(state)
    if isinstance(variable, nnx.Variable)  # An array may be a plain attribute instead.
  }

  def as_saved(path: tuple, leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    name = array_name(path)
    dtype, saved_dtype = leaf.dtype, saved[name].dtype
    if jnp.issubdtype(dtype, jnp.floating):
      if not jnp.issubdtype(saved_dtype, jnp.floating):
        raise UserError(f'{folder} holds {name} as {saved_dtype}, not as {dtype}')
      dtype = jax.dtypes.canonicalize_dtype(saved_dtype)
    sharding = sharding_to_load(variables.get(name), leaf.shape)
    return jax.ShapeDtypeStruct(leaf.shape, dtype, sharding=sharding)

  return jax.tree_util.tree_map_with_path(as_saved, state)
