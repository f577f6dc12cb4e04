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

from zoo.config.building import abstract_parts, build_task
from zoo.config.read import Readable, read, to_content
from zoo.core.errors import RunError, UserError, check_count, check_object
from zoo.core.programs import compiled
from zoo.core.prompt import Prompt
from zoo.core.protocols import Model
from zoo.core.saved_arrays import check_can_be_saved
from zoo.core.taps import is_edited
from zoo.host.files import (
  delete_folder,
  failures,
  names_below,
  said,
  user_path,
  workdir_path,
  write_atomically,
)
from zoo.storage import weight_files
from zoo.storage.checkpoints import (
  check_same_arrays,
  one_line,
  orbax_context,
  shapes_of,
)
from zoo.storage.loading import SavedModel, load
from zoo.storage.steps import Origin, new_origin, write_sums
from zoo.theory.trust import changed_weights

_NUM_PROMPTS = 4  # A saved model must predict on them what it did before.


def save(
  model: Model | SavedModel,
  path: str | os.PathLike[str],
  config: Readable | None = None,
  *,
  step: int | None = None,
) -> None:
  """Writes a model into a new folder, from which `zoo.load` restores it.

  The folder holds the arrays of the model and the config. `zoo.load` makes the model
  and the task from the config, and puts the arrays into the model. After writing,
  `zoo.save` loads the folder as a check: the loaded model must make the same
  predictions for 4 prompts as the given one. If there is an error, the folder is
  deleted.

  Args:
    model: The model to save, or a `SavedModel` that `zoo.load` has returned.
    path: A folder that is missing or empty. It may be in a bucket:
      gs://bucket/models/a.
    config: A dict or a ConfigDict with the sections `model` and `task`. Each of them
      has the `name` of a registered class and its arguments. Other sections of a config
      are saved, too. Without it, a `SavedModel` has its own config; any other model
      needs one.
    step: The number of steps that the model was trained for, ≥ 0. None means that of a
      `SavedModel`, and 0 for any other model.

  Raises:
    UserError: If the model is no NNX module, or is an edited copy (see
      `zoo.probing.edited`); if it is not a `SavedModel` and has no config; if the
      folder is not empty; if the arrays do not fit the model that the config makes; if
      JSON cannot hold the config; if `step` is negative; or if the loaded model makes
      other predictions for the 4 prompts.
    RunError: If the folder cannot be written.

  Example:
    >>> config = {
    ...   'model': {'name': 'yq_lsa'},
    ...   'task': {'name': 'linear_regression', 'num_features': 2, 'context_length': 4},
    ... }
    >>> model = zoo.create_model('yq_lsa', num_features=2, rngs=nnx.Rngs(0))
    >>> zoo.save(model, 'models/a', config)
    >>> type(zoo.load('models/a').model).__name__
    'YqLSA'
  """
  target = workdir_path(path)
  if isinstance(model, SavedModel):
    config = model.config if config is None else config
    step = model.step if step is None else step
  own: Any = model.model if isinstance(model, SavedModel) else model
  state, origin = _parts(own, _content(config), step or 0)
  try:
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
      raise UserError(f'{path} exists already; it must be a new folder or an empty one')
  except failures(target) as error:
    raise RunError(f'{target} cannot be written: {said(error)}') from error
  try:
    _write(target, {'model': state, 'origin': origin})
    _check_predicts_the_same(own, load(target))
  except BaseException:
    with contextlib.suppress(OSError):
      for left in target, *target.parent.glob(f'{target.name}.orbax-checkpoint-tmp*'):
        delete_folder(left)
    raise


def _write(folder: pathlib.Path, items: Mapping[str, Any]) -> None:
  """Writes a step with its checksums.

  Raises:
    RunError: If the folder cannot be written.
  """
  from orbax.checkpoint import v1 as ocp  # It is slow to import.

  try:
    with orbax_context():
      ocp.save_checkpointables(str(folder), dict(items), overwrite=True)
    for name in names_below(folder):
      if name.endswith('commit_success.txt'):
        (folder / name).write_text('')  # Orbax writes a path of this machine into it.
    write_sums(folder)
  except Exception as error:
    raise RunError(f'{folder} cannot be written: {one_line(error)}') from error


def export(
  saved: Model | SavedModel,
  path: str | os.PathLike[str],
  config: Readable | None = None,
) -> None:
  """Writes a model as one file in the format of safetensors.

  The file holds the weights by name, such as `layers.0.mixer.query.kernel`, and the
  config as metadata. `zoo.load` makes the model from this file, and any program that
  reads safetensors can read the weights. Before the file is put in its place, it is
  loaded as a check: the loaded model must make the same predictions for 4 prompts as
  the given one. A file that exists at the path is replaced.

  Args:
    saved: A model, or the `SavedModel` that `zoo.load` returns.
    path: The path of the file. It must end with `.safetensors`.
    config: A dict or a ConfigDict with the sections `model` and `task`, as for
      `zoo.save`. It is required if `saved` is a model. Without it, a `SavedModel` has
      its own config.

  Raises:
    UserError: If the path has another ending or is a folder; if the model is an edited
      copy (see `zoo.probing.edited`); if `saved` is a model and `config` is missing; if
      the arrays do not fit the model that the config makes; if JSON cannot hold the
      config; or if the loaded model makes other predictions for the 4 prompts.
    RunError: If the file cannot be written.

  Example:
    >>> config = {
    ...   'model': {'name': 'yq_lsa'},
    ...   'task': {'name': 'linear_regression', 'num_features': 2, 'context_length': 4},
    ... }
    >>> model = zoo.create_model('yq_lsa', num_features=2, rngs=nnx.Rngs(0))
    >>> zoo.export(model, 'a.safetensors', config)
    >>> type(zoo.load('a.safetensors').model).__name__
    'YqLSA'
  """
  if isinstance(saved, SavedModel):
    config = saved.config if config is None else config
    model, step = saved.model, saved.step
  else:
    model, step = saved, 0
  target = user_path(path)
  if target.suffix != weight_files.SUFFIX or target.is_dir():
    raise UserError(
      f'path is {str(path)!r}; it must be a file NAME{weight_files.SUFFIX}'
    )
  state, origin = _parts(model, _content(config), step)
  try:
    with tempfile.TemporaryDirectory(prefix='icl_zoo_') as temporary:
      file = pathlib.Path(temporary, target.name)
      weight_files.write(file, state, origin)
      _check_predicts_the_same(model, load(file))
      target.parent.mkdir(parents=True, exist_ok=True)
      write_atomically(target, file.read_bytes())
  except OSError as error:
    raise RunError(
      f'{error.filename or path} cannot be written: {error.strerror or error}'
    ) from error


def _content(config: Readable | None) -> dict[str, Any]:
  """Returns the config as JSON holds it; raises UserError if there is none."""
  if config is None:
    raise UserError(
      'config is missing; a model needs one, since it does not know its task'
    )
  return to_content(config)


def _parts(
  model: Model, content: Mapping[str, Any], step: int
) -> tuple[PyTree, Origin]:
  """Returns the state and the origin to write."""
  step = check_count('step', step, minimum=0)
  what = 'it must be an nnx.Module, or what zoo.load returns'
  check_object('a model', model, nnx.Module, what)
  if is_edited(model):
    raise UserError('the model is edited; save the model that it is a copy of')
  config = read(content)
  state, (_, made) = nnx.state(model), abstract_parts(config, build_task(config))
  check_can_be_saved(state)
  check_same_arrays('the config makes another model', shapes_of(made), shapes_of(state))
  return state, new_origin(content, step)


def _check_predicts_the_same(model: Model, saved: SavedModel) -> None:
  """Raises UserError unless the loaded model predicts the same as the given one."""
  prompt = saved.task.sample(jax.random.key(0), _NUM_PROMPTS)
  before, after = (_predict(m, prompt) for m in (model, saved.model))
  if np.array_equal(before, after, equal_nan=True):
    return
  # The weights are bit-equal, but other devices round sums differently. Agreement in
  # half of the digits rules out another hyper-parameter.
  allowed = np.sqrt(jax.numpy.finfo(before.dtype).eps) * np.abs(before).max()
  made = f'a {type(model).__name__} made from the config predicts'
  advice = 'the config must have the arguments that it was made with'
  if before.shape != after.shape:
    raise UserError(
      f'{made} an array of shape {after.shape}, and the given one one of shape '
      f'{before.shape}; {advice}'
    )
  apart = np.abs(after - before)
  if not apart.max() <= allowed:
    worst = np.argmax(apart)  # NaN counts as the largest.
    raise UserError(
      f'{made} {after.flat[worst]:g} where the given one predicts '
      f'{before.flat[worst]:g}; {advice}'
    )


def _predict(model: Model, prompt: Prompt) -> np.ndarray:
  """Returns predictions with changed weights, since the model's own may all be 0."""
  # Calling a model may change it, so a copy is called.
  graph, *arrays = nnx.split(model, nnx.Param, ...)
  return np.asarray(compiled(functools.partial(_predicted, graph))(*arrays, prompt))


def _predicted(graph: Any, parameters: PyTree, rest: PyTree, prompt: Prompt) -> Array:
  return nnx.merge(graph, changed_weights(parameters), rest)(prompt)
