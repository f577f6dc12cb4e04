"""Validation of configs: every field is checked before anything is built."""

from __future__ import annotations

import jax
from flax import nnx
from jaxtyping import PyTree

from zoo import theory
from zoo.config import memory
from zoo.config.building import abstract_model as abstract_model
from zoo.config.building import build_model as build_model
from zoo.config.building import build_task as build_task
from zoo.config.curricula import check_curriculum
from zoo.config.optimizers import (
  build_optimizer,
  check_groups,
  check_optimizer,
  optimizers,
)
from zoo.config.schema import Config as Config
from zoo.config.schema import Section as Section
from zoo.config.schema import check_fields as check_fields
from zoo.config.schema import complete as complete
from zoo.config.schema import differences as differences
from zoo.config.schema import to_json as to_json
from zoo.core.classes import from_zoo
from zoo.core.errors import UserError
from zoo.core.protocols import FollowsRule, HasExactForm, Model, Task, predicts_all
from zoo.core.roles import parameter_roles
from zoo.measure import contracts
from zoo.models import TokenModel
from zoo.tasks.linear_regression import require_covered


def validate(config: Config, num_devices: int | None = None) -> Config:
  """Checks a whole config; raises UserError at the first field that is wrong.

  Returns it with the defaults of the fields that it lacks.

  Nothing is written, and no array is made except by a model of the user's own, which is
  built and called once. The mesh must fit the devices of this machine, or `num_devices`
  that need not exist. Raises RunError if the memory is not even enough for these
  checks; whether it is enough for training is known once that is compiled.
  """
  config = complete(config)
  with memory.in_config(config):
    _validate_whole(config, num_devices)
  return config


def _validate_whole(config: Config, num_devices: int | None) -> None:
  check_optimizer(config.optimizer, config.train.num_steps)
  task = build_task(config)
  data, model = mesh_shape(config, num_devices)
  parts = config.train.num_parts
  if config.train.batch_size % (data * parts):
    times = f' times train.num_parts, which is {parts}' if parts > 1 else ''
    raise UserError(
      f'config.train.batch_size is {config.train.batch_size}; it must be divisible by '
      f'the data axis of the mesh, which is {data}{times}'
    )
  abstract = abstract_model(config)
  if num_devices is None:  # the memory of another machine is unknown
    memory.check_reference(task)
    memory.check_weights(abstract)
  _check_model(config, task, abstract, model)
  has_risk = theory.covers(task) and isinstance(abstract, FollowsRule | HasExactForm)
  if config.checkpoint.keep_best and not (config.eval.num_batches or has_risk):
    raise UserError(
      'config.checkpoint.keep_best is True, and config.eval.num_batches is 0; it needs '
      f'held-out prompts, since no exact risk of {config.model.name!r} is known'
    )
  contracts.check_forms(abstract, task)
  roles = parameter_roles(abstract)
  check_groups(config.optimizer, roles)
  _check_own_optimizer(config, abstract, roles)
  # These checks compute, so they are left out for devices that need not exist.
  if num_devices is None and not theory.is_ours(task):
    contracts.check_sampled(task, batch_size=min(512, config.train.batch_size))
  if num_devices is None and not theory.is_ours(abstract):
    made = nnx.jit(lambda: build_model(config, nnx.Rngs(0)))()
    contracts.check_before_training(made, task)


def _check_own_optimizer(config: Config, model: Model, roles: dict[str, str]) -> None:
  """Raises UserError for a user's optimizer that cannot update the abstract model."""
  name = config.optimizer.name
  if from_zoo(optimizers.get(name)):
    return

  def update(weights: PyTree) -> PyTree:
    optimizer = build_optimizer(config.optimizer, config.train.num_steps, roles=roles)
    return optimizer.update(weights, optimizer.init(weights), weights)

  with contracts.noted(f'the optimizer {name!r}'):
    jax.eval_shape(update, nnx.as_pure(nnx.state(model, nnx.Param)))


def num_heads(config: Config) -> int:
  """The model's number of heads; 1 if the config does not say."""
  return config.model.get('num_heads', 1)


def mesh_shape(config: Config, num_devices: int | None = None) -> tuple[int, int]:
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
  slices = config.mesh.slices
  if data % slices:
    raise UserError(
      f'config.mesh.slices is {slices}; it must divide the data axis of the mesh, '
      f'which is {data}'
    )
  several = 'slices' if slices > 1 else 'processes' if jax.process_count() > 1 else ''
  if several and data * model < devices:
    raise UserError(
      f'config.mesh is data {config.mesh.data} × model {model}, which leaves out '
      f'{devices - data * model} of {devices} devices; with several {several} it must '
      'have all of them'
    )
  return data, model


def _check_model(config: Config, task: Task, model: Model, model_axis: int) -> None:
  _check_positions(config, task, model)
  check_curriculum(config, task, model)
  if config.objective.name != 'sampled':
    _check_objective(config, task, model)
    train = config.train
    for field, found, wanted in (
      ('num_parts', train.num_parts, 1),
      ('compute_dtype', train.compute_dtype, 'float32'),
    ):
      if found != wanted:
        raise UserError(
          f'config.train.{field} is {found!r}; it must be {wanted!r} for the objective '
          f'{config.objective.name!r}, which has no batch of prompts'
        )
  abstract = nnx.state(model)
  for path, variable in nnx.to_flat_state(abstract):
    axes = variable.get_metadata().get('out_sharding') or ()
    for size, axis in zip(variable.get_value().shape, axes, strict=False):
      if axis == 'model' and size % model_axis:
        name = '.'.join(map(str, path))
        unit = 'heads' if size == num_heads(config) else 'entries'
        raise UserError(
          f'config.model: the {size} {unit} of {config.model.name!r} (in {name}) must '
          f'be divisible by config.mesh.model, which is {model_axis}'
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
      form = nnx.eval_shape(theory.exact_form, model)
      theory.form_constants(form, regression)
    elif not isinstance(model, FollowsRule):
      raise UserError(
        f"it must be 'sampled' for {subject!r}, which has no learning rule and so no "
        'exact risk'
      )
  except UserError as error:
    raise UserError(f'config.objective.name is {name!r}; {error}') from None


def _check_positions(config: Config, task: Task, model: Model) -> None:
  """Raises UserError unless the model predicts all examples that are trained on."""
  positions, least = config.objective.positions, config.objective.min_examples
  said = "config.objective.positions is 'every'; it must be 'query'"
  if least is not None:
    said = f'config.objective.min_examples is {least}; it must be None'
    if positions == 'every':
      raise UserError(f"{said} for config.objective.positions = 'every'")
    if least > task.context_length:
      raise UserError(f'{said}, or at most {task.context_length}, the context length')
  elif positions == 'query':
    return
  if config.objective.name != 'sampled':
    raise UserError(
      f'{said} for the objective {config.objective.name!r}, which is the risk at the '
      'query'
    )
  if not (predicts_all(model) or isinstance(model, FollowsRule)):
    why = 'which has no method predictions'
    if isinstance(model, TokenModel) and model.layout == 'joint':
      why = "whose tokens are 'joint': each holds the label of its example"
    elif config.model.get('causal') is False:
      why = 'whose config.model.causal is False: it would see the labels'
    raise UserError(f'{said} for {config.model.name!r}, {why}')
