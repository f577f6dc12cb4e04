"""Validation of configs: every field is checked before anything is compiled.

`check_fields` checks each field by itself, section by section in the order of
zoo/config/defaults.py, and `validate` how they fit together.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax
from flax import nnx
from flax.traverse_util import flatten_dict
from ml_collections import ConfigDict

from zoo import theory
from zoo.config import defaults
from zoo.config.building import (
  Config,
  abstract_model,
  build_task,
  with_full_path,
  within_memory,
)
from zoo.config.curricula import CURRICULA, check_curriculum, has_curriculum
from zoo.config.optimizers import (
  OPTIMIZERS,
  SCHEDULES,
  check_groups,
  check_optimizer,
)
from zoo.config.own import METRICS, OBJECTIVES, OF_THE_LIBRARY
from zoo.config.sharding import check_heads, mesh_shape
from zoo.core.errors import (
  UserError,
  check_count,
  check_name,
  check_number,
  check_truth,
)
from zoo.core.protocols import (
  BaseTask,
  FollowsRule,
  HasExactForm,
  Model,
  Task,
  predicts_all,
)
from zoo.core.registry import check_registered
from zoo.core.roles import parameter_roles, shared_paths
from zoo.models import TokenModel
from zoo.tasks.linear_regression import require_covered

_LARGEST_SEED = 2**32 - 1
_ALMOST_ONE = 1 - 1e-6  # the largest decay of an average


def validate(config: Config, num_devices: int | None = None) -> Config:
  """Checks a whole config; raises UserError at the first field that is wrong.

  Nothing is written, and the model is built as shapes alone.

  Args:
    config: a config with all fields of zoo/config/defaults.py.
    num_devices: devices that the mesh must fit, which need not exist; None: those of
      this machine.

  Returns the config; a file that its task reads has its full path and its checksum.
  Raises RunError if the memory is not enough for these checks.
  """
  check_fields(config)
  config = with_full_path(config)
  objective, optimizer = config.objective, config.optimizer
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
    if objective.positions == 'every' or objective.min_examples is not None:
      _check_positions(config, task, model)
    if objective.labels == 'observed':
      _check_labels(config, task)
    if has_curriculum(config.curriculum):
      check_curriculum(config, task, model)
    if objective.name == 'exact':
      _check_objective(config, task, model)
    if model_axis > 1:
      check_heads(config, model, model_axis)
    if optimizer.scales or optimizer.weight_decay or optimizer.decay != 'hidden':
      check_groups(optimizer, parameter_roles(model), shared_paths(model))
  return config


def check_fields(config: Config) -> None:
  """Checks each field by itself, but for the arguments of the model and the task.

  Raises UserError for a field that is wrong, missing or unknown, and for anything but
  a ConfigDict.
  """
  _check_names(config)
  check_count('config.seed', config.seed, minimum=0, maximum=_LARGEST_SEED)

  objective, positions = config.objective, ('query', 'every')
  check_name('config.objective.name', objective.name, [*OF_THE_LIBRARY, *OBJECTIVES])
  check_name('config.objective.positions', objective.positions, positions)
  if objective.min_examples is not None:
    check_count('config.objective.min_examples', objective.min_examples, minimum=0)
  check_name('config.objective.labels', objective.labels, ('clean', 'observed'))

  curriculum = config.curriculum
  check_registered('config.curriculum.name', curriculum.name, CURRICULA)
  check_count('config.curriculum.every', curriculum.every)
  if curriculum.features is not None:
    check_count('config.curriculum.features', curriculum.features)
  check_count('config.curriculum.more_features', curriculum.more_features)
  if curriculum.examples is not None:
    check_count('config.curriculum.examples', curriculum.examples, minimum=0)
  check_count('config.curriculum.more_examples', curriculum.more_examples)
  if curriculum.loops is not None:
    check_count('config.curriculum.loops', curriculum.loops)
  check_count('config.curriculum.more_loops', curriculum.more_loops)

  _check_optimizer_fields(config.optimizer)
  _check_run_fields(config)


def _check_names(config: Config) -> None:
  """Raises UserError unless it is a ConfigDict with all fields, and no others.

  The sections `model` and `task` have the arguments of the class that they name.
  """
  if not isinstance(config, ConfigDict):
    raise UserError(
      f'the config is a {type(config).__name__}; it must be a ConfigDict, such as '
      "configs.get_config('yq_lsa')"
    )
  fields, known = (
    flatten_dict(
      of_config.to_dict(),
      is_leaf=lambda path, _: path == ('optimizer', 'scales'),  # a dictionary
      sep='.',
    )
    for of_config in (config, defaults.all_fields())
  )
  known = {name for name in known if not name.startswith(('model.', 'task.'))}
  for name in 'model.name', 'task.name', *sorted(known):
    if name not in fields:
      raise UserError(f'the config has no field {name!r}; it is needed')
  for name in sorted(fields):
    if not name.startswith(('model.', 'task.')):
      check_name('field of the config', name, known)


def _check_optimizer_fields(optimizer: Config) -> None:
  name = 'config.optimizer'
  check_registered(f'{name}.name', optimizer.name, OPTIMIZERS)
  check_number(f'{name}.learning_rate', optimizer.learning_rate, above=0.0)
  if optimizer.beta1 is not None:
    check_number(f'{name}.beta1', optimizer.beta1, minimum=0.0, maximum=_ALMOST_ONE)
  if optimizer.beta2 is not None:
    check_number(f'{name}.beta2', optimizer.beta2, minimum=0.0, maximum=_ALMOST_ONE)
  if optimizer.weight_decay is not None:
    check_number(f'{name}.weight_decay', optimizer.weight_decay, minimum=0.0)
  decay = optimizer.decay
  scales = {} if optimizer.scales is None else optimizer.scales
  if not isinstance(decay, str) or not all(decay.split(',')):
    raise UserError(
      f"{name}.decay is {decay!r}; it must be 'hidden', 'all', or other roles or "
      'patterns of paths, joined by commas'
    )
  if not isinstance(scales, Mapping | ConfigDict):
    raise UserError(
      f'{name}.scales is {scales!r}; it must have factors by pattern, such as '
      "{'layers/*/value': 10.0}"
    )
  for pattern in scales:
    if not isinstance(pattern, str):
      raise UserError(
        f'{name}.scales has the pattern {pattern!r}; it must be text, a path of '
        "weights such as 'layers/0/mixer', in which * stands for any text"
      )
    check_number(f'{name}.scales[{pattern!r}]', scales[pattern], minimum=0.0)
  check_name(f'{name}.schedule', optimizer.schedule, SCHEDULES)
  check_count(f'{name}.warmup_steps', optimizer.warmup_steps, minimum=0)
  if optimizer.warmup_share is not None:
    share = optimizer.warmup_share
    check_number(f'{name}.warmup_share', share, minimum=0.0, maximum=1.0)
  share = optimizer.decay_share
  check_number(f'{name}.decay_share', share, above=0.0, maximum=1.0)
  share = optimizer.final_share
  check_number(f'{name}.final_share', share, minimum=0.0, maximum=1.0)
  if optimizer.clip_norm is not None:
    check_number(f'{name}.clip_norm', optimizer.clip_norm, above=0.0)
  if optimizer.ema_decay is not None:
    decay = optimizer.ema_decay
    check_number(f'{name}.ema_decay', decay, minimum=0.0, maximum=_ALMOST_ONE)


def _check_run_fields(config: Config) -> None:
  """Checks the sections `train`, `mesh`, `checkpoint` and `eval`."""
  train = config.train
  check_count('config.train.num_steps', train.num_steps, maximum=2**31 - 1)
  path = train.init_from
  if path is not None and not (isinstance(path, str) and path):
    raise UserError(
      f'config.train.init_from is {path!r}; it must be a folder with a checkpoint'
    )
  check_truth('config.train.init_from_other', train.init_from_other)
  check_count('config.train.batch_size', train.batch_size)
  check_count('config.train.num_parts', train.num_parts)
  types = 'float32', 'bfloat16'
  check_name('config.train.compute_dtype', train.compute_dtype, types)
  check_count('config.train.log_every', train.log_every)
  precisions = 'default', 'high', 'highest'
  check_name('config.train.matmul_precision', train.matmul_precision, precisions)

  mesh = config.mesh
  if mesh.data != -1:
    check_count('config.mesh.data (-1 for all left)', mesh.data)
  check_count('config.mesh.model', mesh.model)
  check_truth('config.mesh.fsdp', mesh.fsdp)
  check_count('config.mesh.heartbeat_timeout', mesh.heartbeat_timeout)
  check_count('config.mesh.start_timeout', mesh.start_timeout)

  checkpoint = config.checkpoint
  check_count('config.checkpoint.every', checkpoint.every)
  if checkpoint.every_minutes is not None:
    check_number('config.checkpoint.every_minutes', checkpoint.every_minutes, above=0.0)
  check_count('config.checkpoint.keep', checkpoint.keep)
  steps = checkpoint.steps
  if not (steps in (None, 'log') or isinstance(steps, list | tuple)):
    raise UserError(
      f"config.checkpoint.steps is {steps!r}; it must be None, 'log', or steps such as "
      '(1, 10, 100)'
    )
  for step in steps if isinstance(steps, list | tuple) else ():
    check_count('a step of config.checkpoint.steps', step)

  seed, evaluation = config.eval.seed, config.eval
  check_count('config.eval.seed', seed, minimum=0, maximum=_LARGEST_SEED)
  check_count('config.eval.every', evaluation.every)
  check_count('config.eval.num_batches', evaluation.num_batches, minimum=0)
  check_count('config.eval.num_compared', evaluation.num_compared, minimum=0)
  if not isinstance(evaluation.metrics, tuple | list):
    raise UserError(
      f'config.eval.metrics is {evaluation.metrics!r}; it must be a tuple of names, '
      "such as ('norm',)"
    )
  for name in evaluation.metrics:
    check_registered('config.eval.metrics', name, METRICS)


def _check_objective(config: Config, task: Task, model: Model) -> None:
  """Raises UserError unless theory covers an objective that uses no whole prompts."""
  name, subject = config.objective.name, config.model.name
  try:
    regression = require_covered(task)
    if isinstance(model, HasExactForm):
      form = nnx.eval_shape(theory.exact_form, model)
      theory.form_constants(form, regression)
    elif not isinstance(model, FollowsRule):
      raise UserError(
        f"it must be 'sampled' for {subject!r}, which has no learning rule and so no "
        'exact risk'
      )
  except UserError as error:
    raise UserError(f'config.objective.name is {name!r}; {error}') from None
  for field, wanted in ('num_parts', 1), ('compute_dtype', 'float32'):
    if (value := config.train[field]) != wanted:
      raise UserError(
        f'config.train.{field} is {value!r}; it must be {wanted!r} for the objective '
        f'{name!r}, which has no batch of prompts'
      )


def _check_labels(config: Config, task: Task) -> None:
  """Raises UserError unless labels can be drawn from the targets."""
  said = "config.objective.labels is 'observed'; it must be 'clean'"
  if config.objective.name == 'exact':
    raise UserError(f'{said} for the objective {config.objective.name!r}')
  if task.label_kind != 'numbers':
    return
  prompt = jax.eval_shape(lambda key: task.sample(key, 1), jax.random.key(0))
  has_noise = prompt.context_targets is not None
  if has_noise and type(task).sample_labels is BaseTask.sample_labels:
    raise UserError(
      f'{said} for {config.task.name!r}, whose labels differ from their targets, and '
      'which has no method sample_labels'
    )


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
  if config.objective.name != 'sampled':
    is_exact = config.objective.name == 'exact'
    why = 'is the risk at the query' if is_exact else 'itself says what is trained'
    raise UserError(f'{said} for the objective {config.objective.name!r}, which {why}')
  if not (predicts_all(model) or isinstance(model, FollowsRule)):
    why = 'which has no method predictions'
    if isinstance(model, TokenModel) and model.layout == 'joint':
      why = "whose tokens are 'joint': each holds the label of its example"
    elif config.model.get('causal') is False:
      why = 'whose config.model.causal is False: it would see the labels'
    raise UserError(f'{said} for {config.model.name!r}, {why}')
