"""`zoo.save` and `zoo.export`: write a model that `zoo.load` restores.

`zoo.save` writes a folder, one step of a run's checkpoints without the optimizer:
Orbax's arrays in `model`, JSON in `origin`, and `SHA256SUMS` over both. `zoo.export`
writes one file of safetensors.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
import tempfile
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from flax import nnx
from jaxtyping import Array, PyTree
from ml_collections import ConfigDict

from zoo.config.building import Config, abstract_parts
from zoo.config.saved import to_json
from zoo.core.errors import RunError, UserError, check_count
from zoo.core.programs import compiled
from zoo.core.prompt import Prompt
from zoo.core.protocols import Model
from zoo.core.taps import is_edited
from zoo.host.files import (
  delete_folder,
  failures,
  is_url,
  said,
  user_path,
  workdir_path,
  write_atomically,
)
from zoo.storage import weight_files
from zoo.storage.checkpoints import (
  FORMAT,
  check_can_be_saved,
  one_line,
  orbax_context,
  run_metadata,
)
from zoo.storage.loading import SavedModel, check_same_arrays, load, shapes_of
from zoo.storage.steps import write_sums
from zoo.theory.trust import changed_weights

_NUM_PROMPTS = 4  # on which a saved model must predict what it did before


def save(
  model: Model,
  path: str | os.PathLike[str],
  config: Config | Mapping[str, Any],
  *,
  step: int = 0,
) -> None:
  """Writes a model into a new folder, from which `zoo.load` restores it.

  Args:
    model: what is saved are its arrays, and the config that makes the rest.
    path: a new folder, or an empty one; it may be in a bucket, gs://bucket/models/a.
    config: the sections `model` and `task`, each with the name of a registered class
      and its arguments, and whatever else a config has; a dict or a ConfigDict.
    step: the number of steps that the model was trained for, ≥ 0.

  Raises UserError for an edited model, if the folder is not empty, if the config makes
  another model or JSON cannot hold it, or if the loaded model does not predict the same
  on a few prompts; RunError if the folder cannot be written. An error leaves no folder
  behind.
  """
  target = workdir_path(path)
  target = target if is_url(target) else target.absolute()  # as Orbax needs it
  state, metadata = _parts(model, _checked(config), step)
  try:
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
      raise UserError(f'{path} exists already; it must be a new folder or an empty one')
  except failures(target) as error:
    raise RunError(f'{target} cannot be written: {said(error)}') from error
  try:
    _write(target, {'model': state, 'origin': metadata})
    _check_predicts_the_same(model, load(target))
  except BaseException:
    with contextlib.suppress(OSError):
      for left in target, *target.parent.glob(f'{target.name}.orbax-checkpoint-tmp*'):
        delete_folder(left)
    raise


def _write(folder: pathlib.Path, items: Mapping[str, Any]) -> None:
  """Writes a step with its checksums; raises RunError."""
  from orbax.checkpoint import v1 as ocp  # slow to import

  try:
    with orbax_context():
      ocp.save_checkpointables(str(folder), dict(items), overwrite=True)
    if not is_url(folder):
      for marker in folder.rglob('commit_success.txt'):
        marker.write_text('')  # Orbax writes a path of this machine into it
    write_sums(folder)
  except Exception as error:
    raise RunError(f'{folder} cannot be written: {one_line(error)}') from error


def export(
  saved: Model | SavedModel,
  path: str | os.PathLike[str],
  config: Config | Mapping[str, Any] | None = None,
) -> None:
  """Writes a model as one file, NAME.safetensors, in place of any that is there.

  It has the weights by name, such as `layers.0.mixer.query.kernel`, and the config as
  metadata: `zoo.load` opens it, and so does whatever reads safetensors.

  Args:
    saved: what `zoo.load` returned, or a model.
    path: a file NAME.safetensors.
    config: of a model that `zoo.load` did not return, as for `zoo.save`.

  Raises UserError as `zoo.save` does; RunError if the file cannot be written.
  """
  if isinstance(saved, SavedModel):
    model, config, step = saved.model, saved.config, saved.step
  else:
    model, config, step = saved, _checked(config), 0
  target = user_path(path)
  if target.suffix != weight_files.SUFFIX or target.is_dir():
    raise UserError(
      f'path is {str(path)!r}; it must be a file NAME{weight_files.SUFFIX}'
    )
  state, metadata = _parts(model, config, step)
  try:
    with tempfile.TemporaryDirectory(prefix='icl_zoo_') as temporary:
      file = pathlib.Path(temporary, target.name)
      weight_files.write(file, state, metadata)
      _check_predicts_the_same(model, load(file))
      target.parent.mkdir(parents=True, exist_ok=True)
      write_atomically(target, file.read_bytes())
  except OSError as error:
    raise RunError(
      f'{error.filename or path} cannot be written: {error.strerror or error}'
    ) from error


def _checked(config: Config | Mapping[str, Any] | None) -> Config:
  """The config as a ConfigDict; raises UserError unless it names model and task."""
  if not isinstance(config, Mapping | ConfigDict):
    raise UserError(
      f'the config is a {type(config).__name__}; it must be a dict or a ConfigDict '
      'with the sections model and task'
    )
  try:
    fields: Any = config
    checked: Any = ConfigDict(fields)
  except ValueError as error:  # a dot in the key of a dict
    raise UserError(f'the config cannot be saved: {error}') from None
  for section in 'model', 'task':
    own = checked.get(section)
    if not isinstance(own, ConfigDict) or 'name' not in own:
      raise UserError(f"the config has no field '{section}.name'; it is needed")
  return checked


def _parts(model: Model, config: Config, step: int) -> tuple[PyTree, dict[str, object]]:
  """The state and the metadata to write."""
  step = check_count('step', step, minimum=0)
  if is_edited(model):
    raise UserError('the model is edited; save the model that it is a copy of')
  try:
    to_json(config)
  except TypeError as error:
    raise UserError(
      f'the config holds an object of the type {error}, which cannot be saved; it must '
      'hold None, numbers, texts, arrays, and lists or dicts of these'
    ) from None
  state, (_, made) = nnx.state(model), abstract_parts(config)
  check_can_be_saved(state)
  check_same_arrays('the config makes another model', shapes_of(made), shapes_of(state))
  return state, {'format': FORMAT, 'step': step, **run_metadata(config)}


def _check_predicts_the_same(model: Model, saved: SavedModel) -> None:
  """Raises UserError unless the loaded model predicts what the given one does."""
  prompt = saved.task.sample(jax.random.key(0), _NUM_PROMPTS)
  before, after = (_predict(m, prompt) for m in (model, saved.model))
  if np.array_equal(before, after, equal_nan=True):
    return
  # The weights are bit-equal, but other devices round sums differently. Agreement in
  # half of the digits rules out another hyper-parameter.
  allowed = np.sqrt(jax.numpy.finfo(before.dtype).eps) * np.abs(before).max()
  if before.shape != after.shape or not np.abs(after - before).max() <= allowed:
    raise UserError(
      f'a {type(model).__name__} made from the config predicts {after.flat[0]:g} where '
      f'the given one predicts {before.flat[0]:g}; the config must have the arguments '
      'that it was made with'
    )


def _predict(model: Model, prompt: Prompt) -> np.ndarray:
  """Predictions with other weights than the model's, which may all be 0."""
  # Calling a model may change it, so a copy is called.
  graph, *arrays = nnx.split(model, nnx.Param, ...)
  return np.asarray(compiled(functools.partial(_predicted, graph))(*arrays, prompt))


def _predicted(graph: Any, parameters: PyTree, rest: PyTree, prompt: Prompt) -> Array:
  return nnx.merge(graph, changed_weights(parameters), rest)(prompt)
