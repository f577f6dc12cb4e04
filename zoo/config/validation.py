"""Validation of configs: every field is checked before anything is built."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from flax.traverse_util import flatten_dict

from zoo import theory
from zoo.config import memory
from zoo.config.building import abstract_model as abstract_model
from zoo.config.building import build_model as build_model
from zoo.config.building import build_task as build_task
from zoo.config.building import check_forms
from zoo.config.optimizers import OPTIMIZERS, SCHEDULES
from zoo.config.types import AnyConfig as AnyConfig
from zoo.config.types import Config as Config
from zoo.config.types import Section as Section
from zoo.core.errors import (
  UserError,
  check_count,
  check_name,
  check_number,
  check_truth,
)
from zoo.core.protocols import FollowsRule, HasExactForm, Model, Task, predicts_all
from zoo.measure import contracts
from zoo.tasks.linear_regression import require_covered

Check = Callable[[str, Any], Any]


def _count(minimum: int, below: int = sys.maxsize) -> Check:
  def check(name: str, value: Any) -> None:
    if check_count(name, value, minimum) >= below:
      raise UserError(f'{name} is {value}; it must be below {below}')

  return check


def _positive(name: str, value: Any) -> float:
  return check_number(name, value, above=0.0)


def _optional(check: Check) -> Check:
  return lambda name, value: None if value is None else check(name, value)


def _one_of(kind: str, *allowed: str) -> Check:
  def check(name: str, value: Any) -> None:
    check_name(f'{kind} in {name}:', value, allowed)

  return check


def _axis_size(name: str, value: Any) -> None:
  if value != -1:
    check_count(f'{name} (-1 for all devices left)', value)


# The sections `model` and `task` are checked by what they build.
_CHECKS: dict[str, Check] = {
  'seed': _count(0, below=2**32),  # a larger one would be cut to 32 bits
  'objective.name': _one_of('objective', 'sampled', 'exact', 'low_variance'),
  'objective.positions': _one_of('positions', 'query', 'every'),
  'optimizer.name': _one_of('optimizer', *OPTIMIZERS),
  'optimizer.learning_rate': _positive,
  'optimizer.schedule': _one_of('schedule', *SCHEDULES),
  'optimizer.warmup_steps': _count(0),
  'optimizer.clip_norm': _optional(_positive),
  'train.num_steps': _count(1, below=2**31),  # steps are counted in int32
  'train.batch_size': _count(1),
  'train.log_every': _count(1),
  'train.num_parts': _count(1),
  'train.compute_dtype': _one_of('type', 'float32', 'bfloat16'),
  'train.matmul_precision': _one_of('matmul precision', 'default', 'high', 'highest'),
  'mesh.data': _axis_size,
  'mesh.model': _count(1),
  'mesh.slices': _count(1),
  'mesh.heartbeat_timeout': _count(1),
  'mesh.start_timeout': _count(1),
  'mesh.fsdp': check_truth,
  'checkpoint.every': _count(1),
  'checkpoint.every_minutes': _optional(_positive),
  'checkpoint.keep': _count(1),
  'checkpoint.patience': _positive,
  'eval.every': _count(1),
  'eval.num_batches': _count(0),
  'eval.num_compared': _count(0),
}

# Needed by several processes only. The configs in older checkpoints lack them.
_OF_PROCESSES = {'mesh.heartbeat_timeout', 'mesh.start_timeout'}
# Configs of earlier versions lack these fields, and then mean these values.
_ADDED = {
  'objective.positions': 'query',
  'train.num_parts': 1,
  'train.compute_dtype': 'float32',
  'mesh.slices': 1,
  'checkpoint.every_minutes': None,
  'checkpoint.patience': 10.0,
  'eval.num_compared': 0,
}
# The same for fields of models, which only some models have.
_ADDED_TO_MODELS = {
  'model.guess_weights': 0.0,
  'model.guess_bias': 0.0,
  'model.hidden_features': None,
  'model.num_trained_loops': None,
}
# Fields that may change when a run is resumed, besides the section `mesh`.
_CHANGE_NO_TRAINING = (
  *('checkpoint.every_minutes', 'checkpoint.patience', 'eval.num_compared'),
)


def validate_fields(config: Config, several_processes: bool = False) -> None:
  """Checks each field by itself, as `validate` does, and starts no JAX backend."""
  fields = flatten_dict(config.to_dict(), sep='.')
  optional = set() if several_processes else _OF_PROCESSES
  _check_names(set(fields), optional | _ADDED.keys())
  for field, check in _CHECKS.items():
    if field in fields:
      check(f'config.{field}', fields[field])


def validate(config: Config, num_devices: int | None = None) -> None:
  """Checks a whole config; raises UserError at the first field that is wrong.

  Nothing is written, and no array is made except by a model of the user's own, which is
  built and called once. The mesh and the memory must fit the devices of this machine;
  if `num_devices` is given, only the mesh must fit that many devices, which need not
  exist. Raises RunError if the memory is not even enough for these checks.
  """
  validate_fields(config)
  with memory.in_config(config):
    _validate_whole(config, num_devices)


def _validate_whole(config: Config, num_devices: int | None) -> None:
  warmup, num_steps = config.optimizer.warmup_steps, config.train.num_steps
  if warmup > num_steps:
    raise UserError(
      f'config.optimizer.warmup_steps is {warmup}; it must be ≤ train.num_steps, '
      f'which is {num_steps}'
    )
  task = build_task(config)
  data, model = mesh_shape(config, num_devices)
  parts = num_parts(config)
  if config.train.batch_size % (data * parts):
    times = f' times train.num_parts, which is {parts}' if parts > 1 else ''
    raise UserError(
      f'config.train.batch_size is {config.train.batch_size}; it must be divisible by '
      f'the data axis of the mesh, which is {data}{times}'
    )
  abstract = abstract_model(config)
  if num_devices is None:  # the memory of other devices is unknown
    memory.check(config, task, abstract, (data, model))
  _check_model(config, task, abstract, model)
  check_forms(config, abstract, task)
  # These checks compute, so they are left out for devices that need not exist.
  if num_devices is None and not theory.is_ours(task):
    contracts.check_sampled(task, batch_size=min(512, config.train.batch_size))
  if num_devices is None and not theory.is_ours(abstract):
    made = nnx.jit(lambda: build_model(config, nnx.Rngs(0)))()
    contracts.check_before_training(made, task)


def positions(config: Config) -> str:
  """The examples whose loss is trained on: `query` or `every`."""
  return config.objective.get('positions', _ADDED['objective.positions'])


def num_parts(config: Config) -> int:
  """The parts of a batch whose gradients are computed one after the other."""
  return config.train.get('num_parts', _ADDED['train.num_parts'])


def compute_dtype(config: Config) -> str:
  """The type in which models are computed while they train."""
  return config.train.get('compute_dtype', _ADDED['train.compute_dtype'])


def minutes_between_saves(config: Config) -> float | None:
  """The longest time in minutes between two checkpoints; None: no such limit."""
  return config.checkpoint.get('every_minutes', _ADDED['checkpoint.every_minutes'])


def minutes_of_patience(config: Config) -> float:
  """For how many minutes calls to a bucket out of reach are retried."""
  return config.checkpoint.get('patience', _ADDED['checkpoint.patience'])


def num_compared(config: Config) -> int:
  """The number of prompts on which the baselines are compared with the model."""
  return config.eval.get('num_compared', _ADDED['eval.num_compared'])


def num_heads(config: Config) -> int:
  """The model's number of heads; 1 if the config does not say."""
  return config.model.get('num_heads', 1)


def num_slices(config: AnyConfig) -> int:
  """The slices of devices, with a slow network between them, that share the batch."""
  return config.mesh.get('slices', _ADDED['mesh.slices'])


def mesh_shape(config: AnyConfig, num_devices: int | None = None) -> tuple[int, int]:
  """Devices on the axes `data` and `model`, with −1 resolved; raises UserError."""
  data, model = config.mesh.data, config.mesh.model
  devices = jax.device_count() if num_devices is None else num_devices
  if data == -1:
    data = max(devices // model, 1)
  if data * model > devices:
    raise UserError(
      f'config.mesh is data {config.mesh.data} × model {model}; it needs '
      f'{data * model} devices, and there are {devices}'
    )
  if jax.process_count() > 1 and data * model < devices:
    raise UserError(
      f'config.mesh is data {config.mesh.data} × model {model}, which leaves out '
      f'{devices - data * model} of {devices} devices; the {jax.process_count()} '
      'processes must use all of theirs'
    )
  slices = num_slices(config)
  if data % slices:
    raise UserError(
      f'config.mesh.slices is {slices}; it must divide the data axis of the mesh, '
      f'which is {data}'
    )
  if slices > 1 and data * model < devices:
    raise UserError(
      f'config.mesh is data {config.mesh.data} × model {model}, which leaves out '
      f'{devices - data * model} of {devices} devices; with several slices it must '
      'have all of them'
    )
  return data, model


def to_json(config: AnyConfig | Section) -> str:
  """The config as JSON text; tuples become lists."""
  return json.dumps(config.to_dict(), indent=2, sort_keys=True, default=_plain)


def differences(saved: Mapping[str, object], config: AnyConfig) -> list[str]:
  """The fields in which a config differs from a saved one, with both values.

  Fields that do not change training are left out, so that a resumed run may change
  them: the mesh, the minutes between checkpoints and of patience, and the number of
  prompts to compare on.
  """
  old, new = (
    flatten_dict(fields, sep='.') for fields in (saved, json.loads(to_json(config)))
  )
  if 'objective.name' in old:  # a training run
    old = _ADDED | old

  def value(fields: Mapping[str, object], name: str) -> object:
    return fields.get(name, _ADDED_TO_MODELS.get(name, 'absent'))

  return [
    f'{field} ({value(old, field)!r} there, {value(new, field)!r} here)'
    for field in sorted(old.keys() | new.keys())
    if not field.startswith('mesh.')
    and field not in _CHANGE_NO_TRAINING
    and value(old, field) != value(new, field)
  ]


def _check_names(given: set[str], optional: set[str]) -> None:
  own = {field for field in given if field.startswith(('model.', 'task.'))}
  wanted = {*_CHECKS, 'model.name', 'task.name'}
  for field in sorted(wanted - given - optional):
    raise UserError(f'the config has no field {field!r}; it is needed')
  for field in sorted(given - own - wanted):
    check_name('field of the config', field, wanted)


def _check_model(config: Config, task: Task, model: Model, model_axis: int) -> None:
  _check_positions(config, model)
  if config.objective.name != 'sampled':
    _check_objective(config, task, model)
    for field, wanted in (('num_parts', 1), ('compute_dtype', 'float32')):
      if (found := config.train.get(field, wanted)) != wanted:
        raise UserError(
          f'config.train.{field} is {found!r}; it must be {wanted!r} for the objective '
          f'{config.objective.name!r}, which has no batch of prompts'
        )
  if config.mesh.fsdp:  # pads arrays that it cannot divide
    return
  abstract = nnx.state(model)
  for path, variable in nnx.to_flat_state(abstract):
    axes = variable.get_metadata().get('out_sharding') or ()
    for size, axis in zip(variable.get_value().shape, axes, strict=False):
      if axis == 'model' and size % model_axis:
        name = '.'.join(map(str, path))
        unit = 'heads' if size == num_heads(config) else 'entries'
        raise UserError(
          f'config.model: the {size} {unit} of {config.model.name!r} (in {name}) must '
          f'be divisible by config.mesh.model, which is {model_axis}, unless '
          'config.mesh.fsdp is True'
        )


def _check_objective(config: Config, task: Task, model: Model) -> None:
  """Raises UserError unless theory covers an objective that uses no whole prompts."""
  name, subject = config.objective.name, config.model.name
  try:
    regression = require_covered(task)
    if name == 'low_variance':
      deep = theory.deep.require_deep(model, regression)
      theory.deep.check_depth(deep.num_layers)
    elif isinstance(model, HasExactForm):
      form = nnx.eval_shape(lambda: theory.exact_form(_made(model)))
      theory.form_constants(form, regression)
    elif not isinstance(model, FollowsRule):
      raise UserError(
        f"it must be 'sampled' for {subject!r}, which has no learning rule and so no "
        'exact risk'
      )
  except UserError as error:
    raise UserError(f'config.objective.name is {name!r}; {error}') from None


def _made(model: Model) -> Any:
  """A model of zeros like an abstract one; for use under eval_shape."""
  graph, state = nnx.split(model)
  zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), state)
  return nnx.merge(graph, zeros)


def _check_positions(config: Config, model: Model) -> None:
  """Raises UserError unless the model predicts all examples that are trained on."""
  if positions(config) == 'query':
    return
  if config.objective.name != 'sampled':
    raise UserError(
      "config.objective.positions is 'every'; it must be 'query' for the objective "
      f'{config.objective.name!r}, which is the risk at the query'
    )
  if not (predicts_all(model) or isinstance(model, FollowsRule)):
    why = 'which has no method predictions'
    if config.model.get('tokens') == 'joint':
      why = "whose config.model.tokens are 'joint': each holds the label of its example"
    elif config.model.get('causal') is False:
      why = 'whose config.model.causal is False: it would see the labels'
    raise UserError(
      f"config.objective.positions is 'every'; it must be 'query' for "
      f'{config.model.name!r}, {why}'
    )


def _plain(value: Any) -> Any:
  return value.tolist()  # NumPy arrays and scalars, as a covariance in a config may be
