"""`zoo.save` and `zoo.export`: write a model that `zoo.load` restores.

`zoo.save` writes a folder, one step of a run's checkpoints without the optimizer:
Orbax's arrays in `model`, JSON in `origin`, and `SHA256SUMS` over both. `zoo.export`
writes one file of safetensors, which is also what is on the Hugging Face hub.
"""

from __future__ import annotations

import os
import pathlib
import tempfile
from typing import Any, cast

import jax
import numpy as np
from flax import nnx
from jaxtyping import Array, PyTree
from ml_collections import ConfigDict

from zoo.config.schema import GIVEN
from zoo.config.validation import Config, abstract_model
from zoo.core import registry
from zoo.core.errors import RunError, UserError, check_count
from zoo.core.prompt import Prompt
from zoo.core.protocols import Model, Task
from zoo.host.files import (
  hub,
  is_hub,
  user_path,
  workdir_path,
  write_atomically,
)
from zoo.mixers.attention import SoftmaxAttention
from zoo.models.transformer import Transformer
from zoo.storage import weight_files
from zoo.storage.checkpointer import new_step, run_metadata
from zoo.storage.saved_models import (
  SavedModel,
  check_same_arrays,
  load,
  shapes_of,
)
from zoo.storage.steps import FORMAT
from zoo.theory.trust import changed_weights, compiled

_NUM_PROMPTS = 4  # on which a saved model must predict what it did before
_TWIN = pathlib.Path(__file__).with_name('torch_twin.py')  # it is copied, not imported


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
  if is_hub(path):
    raise UserError(
      f'{path} is on the Hugging Face hub, where a model is one file; zoo.export '
      'writes it'
    )
  target = workdir_path(path)
  if (task is None) == (config is None):
    raise UserError('give zoo.save either a task or a config, not both')
  state, metadata = _parts(model, task, config, step)
  try:
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
      raise UserError(f'{path} exists already; it must be a new folder or an empty one')
    with new_step(target, {'model': state}, metadata) as folder:
      _check_predicts_the_same(model, task, load(folder))
  except OSError as error:
    raise RunError(f'{target} cannot be written: {error.strerror or error}') from error


def export(
  saved: Model | SavedModel,
  path: str | os.PathLike[str],
  task: Task | None = None,
  *,
  twin: str | os.PathLike[str] | None = None,
) -> None:
  """Writes a model as one file, NAME.safetensors, in place of any that is there.

  It has the weights by name, such as `layers.0.mixer.query.kernel`, and the config as
  metadata: `zoo.load` opens it, and so does whatever reads safetensors. The path may
  also be hf://owner/name, a repository of the Hugging Face hub, to which the file is
  committed; a new one is public. A model that `zoo.load` did not return needs the task
  that it is for. `twin` is a Python file to write as well, of plain PyTorch, whose
  `load(path)` predicts the same; it is for transformers with softmax attention. Raises
  UserError as `zoo.save` does, and for a twin of another model; RunError if something
  cannot be written.
  """
  if isinstance(saved, SavedModel):
    model, config, step = saved.model, saved.config, saved.step
  else:
    model, config, step = saved, None, 0
    if task is None:
      raise UserError('zoo.export needs the task that the model is for')
  target = None if is_hub(path) else _file(path, 'path', weight_files.SUFFIX)
  twin = None if twin is None else _file(twin, 'twin', '.py')
  has_twin = isinstance(model, Transformer) and all(
    isinstance(layer.mixer, SoftmaxAttention) for layer in model.layers
  )
  if twin is not None and not has_twin:
    raise UserError(
      f'twin is {str(twin)!r}; there is none of a {type(model).__name__} with these '
      "arguments, only of a Transformer whose mixers are all 'softmax'"
    )
  state, metadata = _parts(model, task, config, step)
  known = registry.arguments_of(model)
  metadata |= {'arguments': known.values if known else {}, 'has_twin': has_twin}
  try:
    with tempfile.TemporaryDirectory(prefix='icl_zoo_') as temporary:
      file = pathlib.Path(temporary, f'model{weight_files.SUFFIX}')
      weight_files.write(file, state, metadata)
      _check_predicts_the_same(model, task, load(file))
      if target is None:
        hub().upload(file, os.fspath(path))
      else:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, file.read_bytes())
      if twin is not None:
        write_atomically(twin, _TWIN.read_bytes())
  except OSError as error:
    raise RunError(
      f'{error.filename or path} cannot be written: {error.strerror or error}'
    ) from error


def _file(path: str | os.PathLike[str], argument: str, suffix: str) -> pathlib.Path:
  """The path of a file; raises UserError unless it ends in the suffix."""
  file = user_path(path)
  if file.suffix != suffix or file.is_dir():
    raise UserError(f'{argument} is {str(path)!r}; it must be a file NAME{suffix}')
  return file


def _parts(
  model: Model, task: Task | None, config: Config | None, step: int
) -> tuple[PyTree, dict[str, object]]:
  """The state and the metadata to write; without a config they describe the task."""
  step = check_count('step', step, minimum=0)
  if config is None:
    sections = {
      'model': registry.models.section_of(model, GIVEN),
      'task': registry.tasks.section_of(task),
    }
    try:
      config = cast(Config, ConfigDict(sections))
    except ValueError as error:  # a dot in the key of a dict
      raise UserError(f'the hyper-parameters cannot be saved: {error}') from None
  state, made = nnx.state(model), nnx.state(abstract_model(config))
  check_same_arrays('the config makes another model', shapes_of(made), shapes_of(state))
  return state, {'format': FORMAT, 'step': step, **run_metadata(config)}


def _check_predicts_the_same(
  model: Model, task: Task | None, saved: SavedModel
) -> None:
  """Raises UserError unless the loaded model and task act like the given ones."""
  if task not in (None, saved.task):
    raise UserError(
      f'{saved.task!r}, made from the arguments of the task, is not {task!r}; give '
      'zoo.save a config instead'
    )
  prompt = saved.task.sample(jax.random.key(0), _NUM_PROMPTS)
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
