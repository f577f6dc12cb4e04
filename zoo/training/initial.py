"""The state of a run at step 0: drawn from its seed, or read from a saved model.

The full path, the step and a digest of the weights of such a source are part of the
config of the run. A run from other weights is another run, even if they are at the same
path.
"""

from __future__ import annotations

import functools
import pathlib
from typing import Any

import jax
from flax import nnx
from jaxtyping import PyTree

from zoo.config.read import read
from zoo.config.run import Run
from zoo.config.saved import other_function
from zoo.core.draws import INIT_STREAM, stream_of
from zoo.core.errors import RunError, UserError, shown
from zoo.host.files import UnreadableFile, checkpoint_path, is_url, read_json
from zoo.sharding import State, shardings_of
from zoo.storage.checkpoints import check_same_arrays, shapes_of
from zoo.storage.loading import identity_of, load
from zoo.storage.workdir import CONFIG
from zoo.training.experiment import Experiment, create


def init_state(experiment: Experiment, from_source: bool = True) -> State:
  """Returns the state at step 0, with each array created in its final sharding.

  Args:
    experiment: The experiment.
    from_source: Whether the weights are read from `train.init_from`, if it names any;
      otherwise they are random.
  """
  config, task = experiment.config, experiment.task

  @functools.partial(jax.jit, out_shardings=shardings_of(experiment.abstract))
  def init(weights: PyTree | None) -> State:
    # The key is made inside, so that every process of a pod can make the same call.
    key = stream_of(config.seed, INIT_STREAM)
    modules = create(config, task, key, weights)
    return {name: nnx.state(module) for name, module in modules.items()}

  return init(initial_weights(experiment) if from_source else None)


def initial_weights(experiment: Experiment) -> PyTree | None:
  """Returns the arrays that `train.init_from` names; None if it is None.

  These are all arrays of a run or a saved model, including those that are not trained,
  such as a fixed guess or the averages of a normalisation. Only random keys are not
  read: they are drawn from the seed of the config. The saved model may have been
  trained on another task, or with another optimizer.

  Raises:
    UserError: If the arrays cannot be read, if their digest is not the one of the
      config, if they differ from those of the config's model in names or shapes, or if
      this model computes something else from them and `train.init_from_other` is False.
  """
  config = experiment.config
  if (path := config.train.init_from) is None:
    return None
  step, digest = config.train.init_from_step, config.train.init_from_digest
  saved = load(path, step)
  if digest is not None and (found := identity_of(path, step)[1]) != digest:
    raise UserError(
      f'config.train.init_from is {path}, whose weights at step {saved.step} have the '
      f'digest {found}; config.train.init_from_digest is {digest}'
    )
  weights = _without_keys(nnx.state(saved.model))
  wanted = _without_keys(experiment.asked['model'])
  check_same_arrays(
    f'config.train.init_from is {path}, whose weights do not fit the model '
    f'{config.model.name!r}',
    shapes_of(weights),
    shapes_of(wanted),
  )
  differing = other_function(read(saved.config).model, config.model)
  if differing and not config.train.init_from_other:
    raise UserError(
      f'config.train.init_from is {path}, whose model computes something else from the '
      f'same weights; it differs in {shown(differing)}; '
      'config.train.init_from_other=True takes them all the same'
    )
  # A model that was saved in another precision starts from its rounded weights.
  return jax.tree.map(
    lambda weight, like: weight.astype(like.dtype),
    nnx.to_pure_dict(weights),
    nnx.to_pure_dict(wanted),
  )


def _without_keys(state: PyTree) -> PyTree:
  """Returns a state without the keys and counters of random streams."""
  return nnx.filter_state(state, nnx.Not(nnx.RngState))


_FIELDS = 'init_from', 'init_from_step', 'init_from_digest'


def source_of(config: Run, workdir: pathlib.Path) -> dict[str, str | int | None]:
  """Returns the fields of the config that identify the source; {} without one.

  A run that goes on reads nothing from its source, which may be gone. The step and the
  digest are then those in the config of the workdir, if it names the same source.

  Args:
    config: The valid config of the run.
    workdir: The folder of the run, which may not exist yet.

  Raises:
    UserError: If the path cannot be that of a saved model.
  """
  path, step = config.train.init_from, config.train.init_from_step
  digest = config.train.init_from_digest
  if path is None:
    return {}
  if not is_url(path):
    path = str(checkpoint_path(path))
  if digest is None:
    try:
      step, digest = identity_of(path, step)
    except (UserError, RunError):  # A new run raises it when it reads the weights.
      saved = _saved_source(workdir)
      if saved.get('init_from') == path and step in (None, saved['init_from_step']):
        step, digest = saved['init_from_step'], saved['init_from_digest']
  return {
    'train.init_from': path,
    'train.init_from_step': step,
    'train.init_from_digest': digest,
  }


def _saved_source(workdir: pathlib.Path) -> dict[str, Any]:
  """Returns the fields of the source in the config of a workdir; {} if it has none."""
  try:
    train = read_json(workdir / CONFIG, dict)['train']
    return {field: train[field] for field in _FIELDS}
  except (UnreadableFile, KeyError, TypeError):
    return {}
