"""`zoo.save`: writes a model into a folder, from which `zoo.load` restores it.

The folder is one step of a run's checkpoints without the optimizer: Orbax's arrays in
`model`, JSON in `origin`, and `SHA256SUMS` over both.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import tempfile
from typing import Any, cast

import jax
import numpy as np
from flax import nnx
from jaxtyping import Array, PyTree
from ml_collections import ConfigDict

from zoo.config.validation import Config, abstract_model, to_json
from zoo.core import registry
from zoo.core.errors import RunError, UserError, check_count
from zoo.core.prompt import Prompt
from zoo.core.protocols import Model, Task
from zoo.host.files import delete_folder, is_url, names_below, upload, workdir_path
from zoo.storage.metadata import run_metadata
from zoo.storage.orbax_errors import one_line, quiet_orbax
from zoo.storage.orbax_folders import MARKER, start_save
from zoo.storage.saved_models import (
  SavedModel,
  absolute,
  list_differing,
  load,
  shapes_of,
)
from zoo.storage.steps import FORMAT, MANIFEST, write_manifest
from zoo.theory.trust import changed_weights, compiled

# What build_model takes from the task, and the keys of the initial weights.
_GIVEN = {'num_features', 'num_outputs', 'context_length', 'rngs'}
_NUM_PROMPTS = 4  # on which a saved model must predict what it did before


def save(
  model: Model,
  path: str | os.PathLike[str],
  task: Task | None = None,
  *,
  config: Config | None = None,
  step: int = 0,
) -> None:
  """Writes a model into a new folder, from which `zoo.load` restores it.

  Give either the task that the model is for, or a `config` that names model and task,
  such as that of a loaded model. Without a config the hyper-parameters are those that
  model and task were constructed with. Raises UserError if the folder is not empty, if
  both or neither of task and config are given, if JSON cannot hold a hyper-parameter,
  or if the loaded model does not predict the same on a few prompts; RunError if the
  folder cannot be written. An error leaves no folder behind. The folder may be in a
  bucket: gs://bucket/models/a.
  """
  if is_url(path):
    target = workdir_path(path)
    if names_below(target):
      raise UserError(f'{path} exists already; it must be a new folder or an empty one')
    with tempfile.TemporaryDirectory(prefix='icl_zoo_') as temporary:
      local = pathlib.Path(temporary, 'model')
      save(model, local, task, config=config, step=step)
      return _upload(local, target)
  step = check_count('step', step, minimum=0)
  path = absolute(path)
  if (task is None) == (config is None):
    raise UserError('give zoo.save either a task or a config, not both')
  if config is None:
    sections = {
      'model': _described(model, registry.models, _GIVEN),
      'task': _described(task, registry.tasks, set()),
    }
    try:
      config = cast(Config, ConfigDict(sections))
    except ValueError as error:  # a dot in the key of a dict
      raise UserError(f'the hyper-parameters cannot be saved: {error}') from None
  else:
    _check_arguments(config, model)
  state = nnx.state(model)
  _check_makes(config, state)
  metadata = {'format': FORMAT, 'step': step, **run_metadata(config)}
  try:
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
      raise UserError(f'{path} exists already; it must be a new folder or an empty one')
    path.parent.mkdir(parents=True, exist_ok=True)
    prefix = f'.{path.name}.'
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=prefix) as temporary:
      folder = pathlib.Path(temporary, 'model')
      _write(folder, state, metadata)
      _check_predicts_the_same(model, task, load(folder))
      folder.replace(path)
  except OSError as error:
    raise RunError(f'{path} cannot be written: {error.strerror or error}') from error


def _upload(local: pathlib.Path, target: pathlib.Path) -> None:
  """Copies a saved model into a bucket, or nothing; raises RunError."""
  try:
    upload(local, target, last=MANIFEST)  # without it no model is loaded
  except OSError as error:
    with contextlib.suppress(OSError):
      delete_folder(target)
    raise RunError(f'{target} cannot be written: {error}') from error


def _write(folder: pathlib.Path, state: PyTree, metadata: dict[str, object]) -> None:
  """Writes the folder; raises OSError for whatever Orbax raises."""
  try:
    with quiet_orbax():
      start_save(folder, {'model': state}, metadata)()
  except Exception as error:
    raise OSError(one_line(error)) from error
  for marker in folder.rglob(MARKER):
    marker.unlink()
  write_manifest(folder)


def _described(
  thing: object, entries: registry.Registry, others: set[str]
) -> dict[str, object]:
  """The section of a config that makes a model or a task: its name and arguments.

  Arguments named in `others` are left out.
  """
  cls = type(thing).__name__
  names = [name for name in entries.names() if entries.get(name) is type(thing)]
  if not names:
    raise UserError(
      f'{cls} is not registered as a {entries.kind}; register it, so that it can be '
      f'loaded by name; known: {", ".join(entries.names())}'
    )
  arguments = registry.arguments_of(thing)
  if arguments is None:
    raise UserError(
      f'the arguments of this {cls} are unknown, since it was constructed before the '
      f'class was registered; give zoo.save a config'
    )
  for name, kind in arguments.unrecorded.items():
    if name not in others:
      raise UserError(
        f'the hyper-parameter {name!r} of {cls} is a {kind}, which cannot be saved; it '
        'must be None, a number, text, an array, or a list or dict of these'
      )
  own = {
    name: value for name, value in arguments.values().items() if name not in others
  }
  return {'name': names[0], **own}


def _check_arguments(config: Config, model: Model) -> None:
  """Raises UserError if a config contradicts what the model was constructed with."""
  arguments = registry.arguments_of(model)
  known = {} if arguments is None else arguments.values()
  for name, value in json.loads(to_json(config))['model'].items():
    if name in known and not _is_same(value, known[name]):
      raise UserError(
        f'config.model.{name} is {value!r}, and the {type(model).__name__} was '
        f'constructed with {known[name]!r}'
      )


def _is_same(one: object, other: object) -> bool:
  """Whether two arguments are equal; a number stands for a vector of that number."""
  if one == other or (one in (None, {}) and other in (None, {})):  # no options
    return True
  try:
    return bool(np.all(np.asarray(one, float) == np.asarray(other, float)))
  except (TypeError, ValueError):  # not numbers, or of different shapes
    return False


def _check_makes(config: Config, state: PyTree) -> None:
  """Raises UserError unless the config makes a model with the arrays of `state`."""
  shapes, wanted = shapes_of(state), shapes_of(nnx.state(abstract_model(config)))
  if shapes != wanted:
    raise UserError(
      f'the config makes another model: it has {list_differing(wanted, shapes)}, and '
      f'the model given {list_differing(shapes, wanted)}; give zoo.save a config with '
      'all its hyper-parameters'
    )


def _check_predicts_the_same(
  model: Model, task: Task | None, saved: SavedModel
) -> None:
  """Raises UserError unless the loaded model and task act like the given ones."""
  key = jax.random.key(0)
  prompt = saved.task.sample(key, _NUM_PROMPTS)
  if task is not None:
    given = task.sample(key, _NUM_PROMPTS)
    if not jax.tree.all(jax.tree.map(np.array_equal, given, prompt)):
      raise UserError(
        f'a {type(task).__name__} made from its arguments samples other prompts; was '
        'an attribute changed after it was made? give zoo.save a config instead'
      )
  before, after = (_predict(one, prompt) for one in (model, saved.model))
  if np.array_equal(before, after, equal_nan=True):
    return
  # The weights are bit-equal, but other devices round sums differently. Agreement in
  # half of the digits rules out another hyper-parameter.
  allowed = np.sqrt(jax.numpy.finfo(before.dtype).eps) * np.abs(before).max()
  if before.shape != after.shape or not np.abs(after - before).max() <= allowed:
    raise UserError(
      f'a {type(model).__name__} made from its hyper-parameters predicts '
      f'{after.flat[0]:g} where the given one predicts {before.flat[0]:g}; was an '
      'attribute changed after it was made? give zoo.save a config that makes it'
    )


def _predict(model: Model, prompt: Prompt) -> np.ndarray:
  """Predictions with other weights than the model's, which may all be 0."""
  # Calling a model may change it, so a copy is called.
  graph, *arrays = nnx.split(model, nnx.Param, ...)
  return np.asarray(compiled(_predicted, graph)(*arrays, prompt))


def _predicted(graph: Any, parameters: PyTree, rest: PyTree, prompt: Prompt) -> Array:
  return nnx.merge(graph, changed_weights(parameters), rest)(prompt)
