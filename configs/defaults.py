"""The fields of all configs, with units or ranges; tasks/ has the fields of tasks."""

from collections.abc import Collection
from typing import Any

from ml_collections import ConfigDict, FieldReference
from ml_collections.config_dict import placeholder

from configs import tasks
from zoo import UserError
from zoo.config.types import Config

_VARIANTS = 'paper', 'smoke'


def get_config(variant: str = '', own: Collection[str] = ()) -> Config:
  """The fields of a config without a model.

  The variant `task=NAME` replaces the linear regression of Table 1 (arXiv 2512.04268)
  by the task of that name. `paper` is exactly the paper's training, and `smoke` ends in
  seconds; a comma joins variants: `smoke,task=logistic_regression`. By default the
  learning rate is ten times the paper's and decays, since Adam changes a weight by at
  most the learning rate per step, and a guess has to grow from 0 to 2. `own` names
  further variants, which the caller handles. Raises UserError for an unknown variant or
  task.
  """
  names, task_name = _parse(variant, own)
  config: Any = ConfigDict()
  config.seed = 0  # ≥ 0: initial weights, prompts, held-out prompts

  config.model = model = ConfigDict()
  model.name = 'none'  # from zoo.list_models(); the hyper-parameters are fields, too

  config.task = tasks.get_config(task_name)  # a name from zoo.list_tasks()

  config.objective = objective = ConfigDict()
  # sampled: fresh prompts at every step; exact: the risk itself; low_variance, for
  # deep_lsa: fresh contexts, with the query integrated out.
  objective.name = 'sampled'
  objective.positions = 'query'  # or every: the loss at all examples, too

  config.optimizer = optimizer = ConfigDict()
  optimizer.name = 'adam'  # adam, adamw or sgd
  optimizer.learning_rate = 5e-3  # > 0, the peak of the schedule
  optimizer.schedule = 'cosine'  # constant, or cosine: decays to 0 at the last step
  optimizer.warmup_steps = 0  # 0 ≤ steps ≤ num_steps, linear from 0
  optimizer.clip_norm = placeholder(float)  # > 0, of the whole gradient; None: off

  config.train = train = ConfigDict()
  train.num_steps = 5000  # ≥ 1
  train.batch_size = 2048  # ≥ 1 prompts per step; a multiple of mesh.data
  # ≥ 1 parts of a batch, computed one after the other to save memory
  train.num_parts = 1
  train.compute_dtype = 'float32'  # or bfloat16; weights and moments are float32
  train.log_every = 50  # ≥ 1 steps, which one call of the compiled loop runs
  train.matmul_precision = (
    'highest'  # default, high or highest (a TPU's default is bf16)
  )

  config.mesh = mesh = ConfigDict()
  mesh.data = -1  # ≥ 1 devices that share the batch; -1: all that remain
  mesh.model = 1  # ≥ 1 devices that share the heads
  mesh.slices = 1  # ≥ 1 slices of devices, each with its own network; divides data
  mesh.fsdp = False  # True: weights and optimizer state are also split over data
  # Only for several processes. JAX's default is 100 s, so that a whole pod would wait
  # that long for a lost process. A separate thread sends the heartbeats, however busy
  # the process is, so a process that sends none for 10 s is lost.
  mesh.heartbeat_timeout = 10  # ≥ 1 s without a heartbeat: a process is lost
  mesh.start_timeout = 300  # ≥ 1 s that processes wait for each other at the start

  config.checkpoint = checkpoint = ConfigDict()
  checkpoint.every = 2500  # ≥ 1 steps
  # > 0, the longest time between two checkpoints; None: off
  checkpoint.every_minutes = placeholder(float)
  checkpoint.keep = 3  # ≥ 1 newest checkpoints that are kept
  checkpoint.patience = 10.0  # > 0 minutes to wait for a bucket that is out of reach

  config.eval = evaluation = ConfigDict()
  evaluation.every = 1000  # ≥ 1 steps; the exact risk is computed at every logged step
  # ≥ 0 held-out batches of train.batch_size prompts; 0: only the exact risk
  evaluation.num_batches = 32
  # ≥ 0 further prompts, but no more than num_batches · train.batch_size, on which the
  # model is compared at the end with the baselines of the task, after each number of
  # examples; 0: no comparison
  evaluation.num_compared = 4096

  if 'paper' in names:
    optimizer.learning_rate, optimizer.schedule = 5e-4, 'constant'
  if 'smoke' in names:
    train.num_steps, train.batch_size, train.log_every = 20, 64, 5
    checkpoint.every, evaluation.every, evaluation.num_batches = 10, 10, 4
    evaluation.num_compared = 256
  return config


def get_general_config(variant: str = '', own: Collection[str] = ()) -> Config:
  """Like `get_config`, for models that are not linear attention.

  Without `task=NAME` the task is noiseless linear regression with d = 5, C = 10 and a
  prior mean of 0. The loss covers every example, since one pass predicts all of them.
  """
  config = get_config(variant, own)
  if config.task.name == 'linear_regression':
    config.task.num_features, config.task.context_length = 5, 10
    config.task.prior_mean = 0.0
  config.objective.positions = 'every'
  config.optimizer.learning_rate, config.optimizer.clip_norm = 2e-3, 1.0
  # A tenth of the steps, but at most 200, also if num_steps is set later.
  tenth = config.train.get_ref('num_steps') // 10
  config.optimizer.warmup_steps = (tenth + 200 - abs(tenth - 200)) // 2
  config.train.batch_size = min(config.train.batch_size, 256)
  return config


def set_tokens(config: Config, tokens: str) -> None:
  """Adds the fields of models that read prompts as tokens."""
  config.model.tokens = tokens  # joint, interleaved or shifted: zoo/models/tokens.py
  set_guess(config)


def set_guess(config: Config) -> None:
  """Adds the fields of models with an initial guess of each label."""
  model: Any = config.model
  # zero, fixed, linear, network, residual or residual_network
  model.guess = 'zero'
  # Of a fixed guess g·x + β: g, a number or [d], and β.
  model.guess_weights, model.guess_bias = FieldReference(0.0, field_type=object), 0.0


def _parse(variant: str, own: Collection[str]) -> tuple[list[str], str]:
  """The names of the variants, and the name of the task."""
  known = [*own, *_VARIANTS]
  names = variant.split(',') if variant else []
  task_names = [name[5:] for name in names if name.startswith('task=')]
  names = [name for name in names if not name.startswith('task=')]
  for name in names:
    if name not in known:
      raise UserError(
        f'unknown variant {name!r} of the config; known: {", ".join(known)}, task=NAME'
      )
  if len(task_names) > 1:
    raise UserError(f'the variant {variant!r} names several tasks; it can name one')
  if task_names and 'paper' in names:
    raise UserError(f'the variant {variant!r} has a task that the paper does not have')
  return names, task_names[0] if task_names else 'linear_regression'
