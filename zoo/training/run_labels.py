"""The labels of runs in a plot, and whether their losses may share an axis."""

import pathlib
from collections.abc import Mapping
from typing import Any, cast

import jax.numpy as jnp
import numpy as np
from absl import logging
from flax.traverse_util import flatten_dict

from zoo.config.read import read
from zoo.core import losses
from zoo.core.errors import UserError, in_one_line
from zoo.core.protocols import Task
from zoo.core.registry import create_task
from zoo.host.files import read_json
from zoo.objectives.functions import OBJECTIVES
from zoo.storage.workdir import CONFIG, POINTS
from zoo.tasks.base import BaseTask, FunctionClass, is_squared

TABLE = 'table.json'  # A sweep has this file.
ON_OBSERVED = ' on observed labels'  # A training loss may be measured on these.
_LOG_LOSS = 'the log loss'
# The trained model does not depend on these fields, up to rounding.
_NO_MATTER = 'checkpoint.', 'mesh.', 'eval.', 'train.log_every'
_MOST_FIELDS_OF_LABEL = 4

Config = Mapping[str, Any]  # The content of config.json has this type.


def config_of(workdir: pathlib.Path) -> dict[str, Any]:
  """Returns the config of a run, with the name of its model.

  Raises:
    UserError: If the folder holds no run or is a sweep, or if the config is damaged.
  """
  path = workdir / CONFIG
  points = workdir / POINTS
  if points.is_dir() or (workdir / TABLE).is_file():
    names = sorted(point.name for point in points.iterdir()) if points.is_dir() else []
    raise UserError(
      f'{workdir} is a sweep; plot it alone once it has ended, or some of its points, '
      f'such as {points / (names[0] if names else "NAME")}'
    )
  if not path.is_file():
    raise UserError(f'{workdir} holds no run: there is no config.json in it')
  content = read_json(path, dict)
  try:
    read(content)
  except UserError as error:
    raise UserError(f'{path} is damaged: {in_one_line(error)}') from error
  return content


def labels_of(configs: Mapping[pathlib.Path, Config]) -> dict[pathlib.Path, str]:
  """Returns a different label for each run: the fields in which their configs differ.

  If each run has another model, the model names the run, and the fields of the model
  and its optimizer are not compared. Runs that are still alike get their folders in
  addition.
  """
  fields = {
    folder: {
      name: value
      for name, value in flatten_dict(dict(config), sep='.').items()
      if not name.startswith(_NO_MATTER)
    }
    for folder, config in configs.items()
  }
  differing = _differing([*fields.values()])
  labels = {}
  for folder, values in fields.items():
    own = [name for name in differing if name in values]
    words = [named(name, values[name]) for name in own[:_MOST_FIELDS_OF_LABEL]]
    words += ['…'] * (len(own) > _MOST_FIELDS_OF_LABEL)
    labels[folder] = ', '.join(words) or named('model.name', values['model.name'])
  unique = labels
  # Labels that are alike get the last part of their paths, the last two, or all.
  for num_parts in 1, 2, 99:
    if len({*unique.values()}) == len(unique):
      break
    unique = {
      folder: f'{label} ({pathlib.PurePath(*folder.parts[-num_parts:])})'
      for folder, label in labels.items()
    }
  return unique


def _differing(fields: list[dict[str, Any]]) -> list[str]:
  """Returns the fields in which runs differ, names of models and tasks first.

  A field that only some runs have counts only if all models and tasks have one name.
  """
  models, tasks = (
    {str(of_run[name]) for of_run in fields} for name in ('model.name', 'task.name')
  )
  left_out = ()
  if 1 < len(models) == len(fields):
    left_out = 'model.', 'optimizer.'
  differing = []
  for name in dict.fromkeys(name for of_run in fields for name in of_run):
    values = {str(of_run[name]) for of_run in fields if name in of_run}
    only_some = len(models) == len(tasks) == 1 and any(
      name not in of_run for of_run in fields
    )
    if (len(values) > 1 or only_some) and not name.startswith(left_out):
      differing.append(name)
  if left_out:
    differing.append('model.name')
  return sorted(differing, key=lambda name: (not name.endswith('.name'), name))


def named(field: str, value: object) -> str:
  """Returns a field and its value in short: seed=0, mixer=softmax, lsa."""
  section, _, leaf = field.rpartition('.')
  if isinstance(value, float):
    value = f'{value:g}'
  text = f'{value!s:.80}' if field == 'model.name' else f'{value!s:.40}'
  if leaf == 'name':
    return text if section == 'model' else f'{section}={text}'
  return f'{leaf}={text}'


def check_losses(configs: Mapping[pathlib.Path, Config], training: bool) -> str:
  """Returns the loss of all runs in words.

  The result is empty if no task is known. A task that cannot be made here is left out
  with a warning.

  Args:
    configs: The configs of the runs by folder.
    training: Whether the loss is the one that is trained.

  Raises:
    UserError: If the runs have several losses, which cannot share an axis.
  """
  kinds: dict[str, pathlib.Path] = {}
  for folder, config in configs.items():
    if (task := _task_of(folder, config)) is not None:
      kind = loss_in_words(task)
      if training:
        kind = _trained_loss_in_words(kind, config)
        kind += ON_OBSERVED * (excess_in_training(folder, config) != 0)
      kinds.setdefault(kind, folder)
  if len(kinds) > 1:
    (kind, first), (other_kind, second), *_ = kinds.items()
    raise UserError(
      f'the loss of {first} is {kind}, and that of {second} is {other_kind}; plot them '
      'apart, since the two cannot share an axis'
    )
  return next(iter(kinds), '')


def excess_in_training(folder: pathlib.Path, config: Config) -> float | None:
  """Returns by how much the mean training loss exceeds the loss against the targets.

  Observed labels have noise about their targets, whose variance is part of the squared
  error of every prediction. The log losses are linear in the target, so that labels
  drawn from it do not change their mean. The result is None if the excess is unknown.
  """
  is_likelihood = _measured_by_objective(config) == 'likelihood'
  if config['objective']['labels'] == 'clean' and not is_likelihood:
    return 0.0
  task = _task_of(folder, config)
  if task is None:
    return None
  if not is_squared(task):
    return 0.0 if loss_in_words(task) == _LOG_LOSS else None
  if is_likelihood:  # The likelihood of numbers is not a squared error.
    return None
  if type(task).sample_labels is FunctionClass.sample_labels:
    return float(cast(FunctionClass, task).noise_std) ** 2
  # Labels are the targets if no class draws them; the validation ensures this.
  return 0.0 if type(task).sample_labels is BaseTask.sample_labels else None


def _task_of(folder: pathlib.Path, config: Config) -> Task | None:
  """Returns the task of a run; None, with a warning, if it is not known."""
  try:
    return create_task(**config['task'])
  except (UserError, TypeError):
    logging.warning(
      'the task %s of %s cannot be made here, so that its loss may be of another kind '
      'than that of other runs; --import=MODULE imports a task of your own',
      config['task']['name'],
      folder,
    )
    return None


def loss_in_words(task: Task) -> str:
  """Returns the loss of a task in words: one of the library's, or that of its class."""
  if is_squared(task):
    return 'the squared error'
  at = jnp.asarray([0.3, -2.0]), jnp.asarray([0.25, 0.75])
  loss = task.loss(*at)
  for known in losses.log_loss, losses.cross_entropy:
    expected = known(*at)
    if loss.shape == expected.shape and np.allclose(loss, expected):
      return _LOG_LOSS
  return f'the loss of {type(task).__name__}'


def _trained_loss_in_words(loss: str, config: Config) -> str:
  """Returns the loss that a run trains, given the loss of its task in words."""
  measured = _measured_by_objective(config)
  if measured == 'other':
    return f'the loss of the objective {_objective_of(config)!r}'
  if measured == 'likelihood':
    loss = 'the negative log likelihood'
  return loss + trained_at(config)


def trains_loss_of_task(config: Config) -> bool:
  """Returns whether a run trains the loss of its task, sampled or exact.

  The likelihood and objectives of one's own are other losses, in other units.
  """
  return _measured_by_objective(config) == 'loss'


def _measured_by_objective(config: Config) -> str:
  """Returns `measures` of the objective; 'other' for a function of a user."""
  return getattr(OBJECTIVES.get(_objective_of(config)), 'measures', 'other')


def _objective_of(config: Config) -> str:
  return config['objective']['name']


def trained_at(config: Config) -> str:
  """Returns what is trained besides the loss of samples at the query; else nothing."""
  if (name := _objective_of(config)) != 'sampled':
    return f', objective={name}'
  if config['objective']['min_examples'] is not None:
    return ' after a random number of examples'
  return ' of every example' if config['objective']['positions'] == 'every' else ''
