"""Validation of configs: every field is checked before anything is compiled.

`check_fields` checks each field by itself, in the order of zoo/config/fields.py.
`validate` also checks whether the fields fit together.
"""

from __future__ import annotations

from absl import logging
from flax.traverse_util import flatten_dict
from ml_collections import ConfigDict

from zoo.config.building import (
  Config,
  abstract_model,
  build_task,
  with_full_path,
  within_memory,
)
from zoo.config.curricula import GROWING, check_curriculum, has_curriculum
from zoo.config.fields import FIELDS, check_field, is_of_class
from zoo.config.optimizers import check_groups, check_optimizer
from zoo.config.saved import check_fits_json
from zoo.config.sharding import check_heads, mesh_shape
from zoo.core.errors import UserError, check_name
from zoo.core.roles import parameter_roles, shared_paths
from zoo.objectives import build_objective


def validate(config: Config, num_devices: int | None = None) -> Config:
  """Checks a whole config, and stops at the first field that is wrong.

  Nothing is written. The model is built as shapes alone, so that no memory is needed
  for its weights.

  Args:
    config: A config with all fields, such as `zoo.default_config` returns.
    num_devices: The number of devices that the mesh must fit. They need not exist, so
      that a config for a cluster can be checked elsewhere. None means the devices of
      this machine.

  Returns:
    The config. If its task reads data, the result is a copy with the full path of the
    data and with what identifies their content (`zoo.config.building.with_full_path`).

  Raises:
    UserError: If a field is missing, unknown or wrong, or does not fit another field.
      The message names the field, its value, and what is allowed.
    RunError: If the memory is not enough for these checks.

  Example:
    >>> config = zoo.default_config('yq_lsa')
    >>> config.train.batch_size = 0
    >>> zoo.training.validate(config)
    Traceback (most recent call last):
    ...
    zoo.core.errors.UserError: config.train.batch_size is 0; it must be an integer ≥ 1
  """
  check_fields(config)
  check_fits_json(config)
  _check_used(config)
  config = with_full_path(config)
  optimizer = config.optimizer
  with within_memory(config):
    check_optimizer(optimizer, config.train.num_steps)
    task = build_task(config)
    data, model_axis = mesh_shape(config, num_devices)
    parts = config.train.num_parts
    if config.train.batch_size % (data * parts):
      times = f' times train.num_parts, which is {parts}' if parts > 1 else ''
      raise UserError(
        f'config.train.batch_size is {config.train.batch_size}; it must be divisible '
        f'by the data axis of the mesh, which is {data}{times}'
      )
    model = abstract_model(config)
    build_objective(config, task, model)
    if has_curriculum(config.curriculum):
      check_curriculum(config, task, model)
    if model_axis > 1:
      check_heads(config, model, model_axis)
    if optimizer.scales or optimizer.weight_decay or optimizer.decay != 'hidden':
      check_groups(optimizer, parameter_roles(model), shared_paths(model))
  return config


def check_fields(config: Config) -> None:
  """Checks each field by itself; the arguments of the model and the task are left out.

  Raises:
    UserError: If a field is wrong, missing or unknown, or if the config is not a
      ConfigDict.
  """
  check_names(config)
  for name in FIELDS:
    if not is_of_class(name):
      section, _, key = name.rpartition('.')
      check_field(name, config[section][key] if section else config[key])


def check_names(config: Config) -> None:
  """Checks that the config is a ConfigDict with all fields, and no others.

  The sections `model` and `task` may have any arguments: the class that they name
  checks them.

  Raises:
    UserError: If the config is not a ConfigDict, or a field is missing or unknown.
  """
  if not isinstance(config, ConfigDict):
    raise UserError(
      f'the config is a {type(config).__name__}; it must be a ConfigDict, such as '
      "zoo.default_config('yq_lsa')"
    )
  fields = flatten_dict(
    config.to_dict(),
    is_leaf=lambda path, _: path == ('optimizer', 'scales'),  # Its value is a dict.
    sep='.',
  )
  known = {name for name in FIELDS if not is_of_class(name)}
  for name in 'model.name', 'task.name', *sorted(known):
    if name not in fields:
      raise UserError(f'the config has no field {name!r}; it is needed')
  for name in sorted(fields):
    if not is_of_class(name):
      check_name('field of the config', name, known)


def _check_used(config: Config) -> None:
  """Checks that a field which nothing in the config uses has its default.

  Raises:
    UserError: If such a field has another value, which would have no effect.
  """
  curriculum, optimizer = config.curriculum, config.optimizer
  schedule = optimizer.schedule
  unused: dict[str, str] = {}
  # The variant `paper` sets 'constant' in any config, and keeps a decay that is set.
  if schedule not in ('wsd', 'constant'):
    unused['optimizer.decay_share'] = (
      f"config.optimizer.schedule is {schedule!r}, and only 'wsd' uses it"
    )
  if curriculum.name != GROWING:
    for field in 'every', 'more_features', 'more_examples', 'more_loops':
      unused[f'curriculum.{field}'] = (
        f'the curriculum {curriculum.name!r} is a function of the step alone'
      )
  else:
    for size in 'features', 'examples', 'loops':
      if curriculum[size] is None:
        unused[f'curriculum.more_{size}'] = f'config.curriculum.{size} is None'
    if not has_curriculum(curriculum):
      unused['curriculum.every'] = (
        'config.curriculum.features, examples and loops are None'
      )
  if config.train.init_from is None:
    for field in 'step', 'digest', 'other':
      unused[f'train.init_from_{field}'] = 'config.train.init_from is None'
  if optimizer.warmup_share is not None and optimizer.warmup_steps:
    logging.warning(
      'config.optimizer.warmup_steps is %d, and is not used, since '
      'config.optimizer.warmup_share is %g',
      optimizer.warmup_steps,
      optimizer.warmup_share,
    )
  for name, why in unused.items():
    section, _, key = name.rpartition('.')
    if (value := config[section][key]) != (default := FIELDS[name].default):
      raise UserError(
        f'config.{name} is {value!r}; it must be {default!r}, the default, since {why}'
      )
