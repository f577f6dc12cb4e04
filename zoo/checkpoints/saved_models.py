"""Models in folders: `load` opens one with no config at hand, `save` writes one.

A folder that `save` writes is one step of a run's checkpoints without the optimizer:
Orbax's arrays in `model`, JSON in `origin`, and `SHA256SUMS` over both. Nothing in it
is code, and nothing but those files is read.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import pathlib
import tempfile
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import AxisType, Mesh, NamedSharding, Sharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P
from ml_collections import ConfigDict
from orbax.checkpoint import v1 as ocp

from zoo import registry
from zoo.checkpoints.metadata import origin as origin_of
from zoo.checkpoints.steps import (
  FORMAT,
  fault,
  orbax_context,
  step_folders,
  write_manifest,
)
from zoo.config import Config, build_model, build_task
from zoo.errors import RunError, UserError, check_count


@dataclasses.dataclass(frozen=True)
class SavedModel:
  """A model that was opened, and what its folder says of it."""

  model: Any  # an NNX module, ready to be called
  task: Any  # the task that it was trained on
  config: Config  # of the run; of a model made by hand the sections model and task
  step: int  # steps trained


def load(path: str | os.PathLike[str], step: int | None = None) -> SavedModel:
  """Opens a model from a run's workdir, its checkpoints, or a folder of `zoo.save`.

  `step` None is the newest. The arrays go to the first device, or to the mesh that
  `jax.set_mesh` has set, whatever they were saved on; heads are split over its axis
  `model` where that divides them. Raises UserError for a folder without checkpoints, a
  step that is not there, a newer format, or a model or task that is not registered;
  RunError for files that are not as they were written.
  """
  folder = _step_folder(pathlib.Path(path).expanduser().resolve(), step)
  origin = _origin(folder)
  if step not in (None, origin['step']):
    raise UserError(f'{path} has no step {step}; it has {[origin["step"]]}')
  config: Any = ConfigDict(origin['config'])
  for section, known in ('model', registry.models), ('task', registry.tasks):
    if (name := config[section]['name']) not in known.names():
      raise UserError(
        f'{folder} holds the {section} {name!r}, which is not registered; import the '
        f'module that registers it first; known: {", ".join(known.names())}'
      )
  try:
    task = build_task(config)
    graph, state = nnx.split(_abstract_model(config))
  except UserError as error:
    raise UserError(f'{folder}: {error}') from None
  state = _as_saved(folder, state)
  try:
    state = ocp.load_checkpointables(str(folder), {'model': state})['model']
  except Exception as error:
    raise _unreadable(folder, error) from error
  return SavedModel(nnx.merge(graph, state), task, config.lock(), origin['step'])


def save(
  model: nnx.Module,
  path: str | os.PathLike[str],
  task: Any = None,
  *,
  config: Config | None = None,
  step: int = 0,
) -> None:
  """Writes a model into a new folder, from which `zoo.load` makes it again.

  Give the task that the model is for, or a `config` that names model and task, as a
  loaded model has. Without one the hyper-parameters are read off the model's
  attributes. Raises UserError when the folder is not empty, when both are given or
  none, or when the config does not make this model; RunError when the disk refuses.
  """
  step = check_count('step', step, minimum=0)
  path = pathlib.Path(path).expanduser().resolve()
  if path.exists() and not (path.is_dir() and not any(path.iterdir())):
    raise UserError(f'{path} exists already; it must be a new folder or an empty one')
  if (task is None) == (config is None):
    raise UserError('give zoo.save either a task or a config, not both')
  if config is None:
    config = ConfigDict(
      {
        'model': _described(model, registry.models),
        'task': _described(task, registry.tasks),
      }
    )
  state = nnx.state(model)
  _check_makes(config, state)
  origin = {'format': FORMAT, 'step': step, **origin_of(config)}
  try:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f'.{path.name}.') as place:
      folder = pathlib.Path(place, 'model')
      with orbax_context():
        ocp.save_checkpointables(str(folder), {'model': state, 'origin': origin})
      # They hold the absolute path of this machine, and no load needs them.
      for marker in folder.rglob('commit_success.txt'):
        marker.unlink()
      write_manifest(folder)
      folder.replace(path)
  except OSError as error:
    raise RunError(f'{path} cannot be written: {error.strerror or error}') from error


def _step_folder(path: pathlib.Path, step: int | None) -> pathlib.Path:
  """The folder of the step that is meant."""
  if not path.is_dir():
    raise UserError(
      f'{path} is not a folder' if path.exists() else f'{path} does not exist'
    )
  if (path / 'origin').is_dir():
    return path
  folder = path / 'checkpoints' if (path / 'checkpoints').is_dir() else path
  found = {int(one.name): one for one in step_folders(folder)}
  if not found:
    raise UserError(
      f'{path} holds no checkpoint; it must be the workdir of a run, its folder '
      'checkpoints, or a folder that zoo.save wrote'
    )
  if step is None:
    step = max(found)
  if step not in found:
    raise UserError(f'{path} has no step {step}; it has {sorted(found)}')
  return found[step]


def _origin(folder: pathlib.Path) -> dict[str, Any]:
  """What a step says of itself, once all its files are as they were written."""
  try:
    origin = json.loads((folder / 'origin' / 'data.json').read_text())
    written = origin['format']
  except (OSError, ValueError, KeyError, TypeError):
    origin, written = None, FORMAT  # the checksums say what is wrong
  if not isinstance(written, int) or written > FORMAT:
    raise UserError(
      f'{folder} has the format {written!r}, which is newer than this version of ICL '
      f'Zoo; it reads up to {FORMAT}'
    )
  reason = fault(folder)
  if reason is None and (origin is None or not {'step', 'config'} <= origin.keys()):
    reason = 'origin/data.json names no step or no config'
  if origin is None or reason is not None:
    others = [one for one in step_folders(folder.parent) if one != folder]
    good = sorted(int(one.name) for one in others if fault(one) is None)
    hint = f'; there are good ones at steps {good}' if good else ''
    raise RunError(f'the checkpoint {folder} is damaged: {reason}{hint}')
  return origin


def _abstract_model(config: Config) -> Any:
  """The model that a config names, with shapes for arrays."""
  # The mesh that is set need not have the model's axes: here there is none.
  no_mesh = jax.sharding.AbstractMesh((), ())
  with jax.sharding.use_abstract_mesh(no_mesh), nnx.use_eager_sharding(False):
    return nnx.eval_shape(lambda: build_model(config, nnx.Rngs(0)))


def _as_saved(folder: pathlib.Path, state: Any) -> Any:
  """The abstract state in the precision of what is saved, placed where it is to go.

  Raises UserError unless both have the same arrays.
  """
  try:
    metadata = ocp.checkpointables_metadata(str(folder)).metadata['model']
  except Exception as error:
    raise _unreadable(folder, error) from error
  saved = _leaves(metadata)
  shapes, wanted = (
    {name: leaf.shape for name, leaf in leaves.items()}
    for leaves in (saved, _leaves(state))
  )
  if shapes != wanted:
    raise UserError(
      f'{folder} does not fit the model that its config names now: it has '
      f'{_listed(shapes, wanted)}, and the model {_listed(wanted, shapes)}'
    )
  variables = {'.'.join(map(str, path)): v for path, v in nnx.to_flat_state(state)}

  def place(path: tuple, leaf: Any) -> jax.ShapeDtypeStruct:
    name = _name(path)
    axes = variables[name].get_metadata().get('out_sharding') or ()
    dtype = leaf.dtype
    if np.issubdtype(dtype, np.inexact):
      dtype = jax.dtypes.canonicalize_dtype(saved[name].dtype)
    return jax.ShapeDtypeStruct(
      leaf.shape, dtype, sharding=_sharding(jax.sharding.get_mesh(), axes, leaf.shape)
    )

  return jax.tree_util.tree_map_with_path(place, state)


def _leaves(tree: Any) -> dict[str, Any]:
  """The arrays of a state, or what Orbax tells of them, by the variable's path."""
  leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
  return {_name(path): leaf for path, leaf in leaves}


def _name(path: tuple) -> str:
  # Both end in the field of the variable that holds the array.
  name = jax.tree_util.keystr(path, simple=True, separator='.')
  return name.removesuffix('.value')


def _listed(shapes: dict[str, tuple], other: dict[str, tuple]) -> str:
  """What is in `shapes` and not so in `other`."""
  own = [
    f'{name} {shape}' for name, shape in shapes.items() if other.get(name) != shape
  ]
  return ', '.join(sorted(own)) or 'nothing else'


def _sharding(mesh: Mesh, axes: tuple, shape: tuple[int, ...]) -> Sharding:
  """Where an array goes: split as its model asks, as far as the mesh allows."""
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


def _described(thing: Any, entries: registry.Registry) -> dict[str, Any]:
  """The section of a config that makes a model or a task: its name and arguments."""
  names = [name for name in entries.names() if entries.get(name) is type(thing)]
  if not names:
    raise UserError(
      f'{type(thing).__name__} is not registered as a {entries.kind}; register it, so '
      f'that it can be loaded by name; known: {", ".join(entries.names())}'
    )
  arguments = inspect.signature(type(thing).__init__).parameters
  values = {name: getattr(thing, name) for name in arguments if hasattr(thing, name)}
  if entries is registry.models:
    values.pop('num_features', None)  # it is the task's
  plain = {
    name: value.tolist() if isinstance(value, np.ndarray) else value
    for name, value in values.items()
    if value is None or isinstance(value, bool | int | float | str | np.ndarray)
  }
  return {'name': names[0], **plain}


def _check_makes(config: Config, state: Any) -> None:
  """Raises UserError unless the config makes a model with the arrays of `state`."""
  made = nnx.state(_abstract_model(config))
  shapes, wanted = (
    {name: leaf.shape for name, leaf in _leaves(tree).items()} for tree in (state, made)
  )
  if shapes != wanted:
    raise UserError(
      f'the config makes another model: it has {_listed(wanted, shapes)}, and the '
      f'model given {_listed(shapes, wanted)}; give zoo.save a config with all its '
      'hyper-parameters'
    )


def _unreadable(folder: pathlib.Path, error: Exception) -> RunError:
  reason = ' '.join(str(error).split())[:300]
  return RunError(f'{folder} cannot be read: {type(error).__name__}: {reason}')
