"""The fields of all configs of the paper's setting, with units or ranges."""

from typing import Any

from ml_collections import ConfigDict, FieldReference
from ml_collections.config_dict import placeholder

from zoo import UserError


def get_config(variant: str = '') -> Any:
  """The setting of Table 1 (arXiv 2512.04268), without a model.

  The variant `paper` is exactly the paper's training, and `smoke` ends in seconds. By
  default the learning rate is ten times the paper's and decays, since Adam changes a
  weight by at most the learning rate per step, and a guess has to grow from 0 to 2.
  """
  if variant not in ('', 'paper', 'smoke'):
    raise UserError(f'unknown variant {variant!r} of the config; known: paper, smoke')
  config: Any = ConfigDict()
  config.seed = 0  # ≥ 0: initial weights, prompts, held-out prompts

  config.model = model = ConfigDict()
  model.name = 'none'  # from zoo.list_models(); its hyper-parameters are fields, too

  config.task = task = ConfigDict()
  task.name = 'linear_regression'  # a name from zoo.list_tasks()
  task.num_features = 10  # d ≥ 1
  task.context_length = 10  # C ≥ 1, labelled examples per prompt
  task.prior_mean = FieldReference(2.0, field_type=object)  # w*: a number or [d]
  task.prior_covariance = placeholder(object)  # Λ [d, d], None: the identity
  task.feature_covariance = placeholder(object)  # Σ [d, d], None: the identity
  task.noise_std = 0.0  # σ ≥ 0, in units of the labels

  config.objective = objective = ConfigDict()
  objective.name = 'sampled'  # fresh prompts at every step; or exact: the risk itself

  config.optimizer = optimizer = ConfigDict()
  optimizer.name = 'adam'  # adam, adamw or sgd
  optimizer.learning_rate = 5e-3  # > 0, the peak of the schedule
  optimizer.schedule = 'cosine'  # constant, or cosine: decays to 0 at the last step
  optimizer.warmup_steps = 0  # 0 ≤ steps ≤ num_steps, linear from 0
  optimizer.clip_norm = placeholder(float)  # > 0, of the whole gradient; None: off

  config.train = train = ConfigDict()
  train.num_steps = 5000  # ≥ 1
  train.batch_size = 2048  # ≥ 1 prompts per step; a multiple of mesh.data
  train.log_every = 50  # ≥ 1 steps, run by one call of the compiled loop
  train.matmul_precision = (
    'highest'  # default, high or highest (a TPU's default is bf16)
  )

  config.mesh = mesh = ConfigDict()
  mesh.data = -1  # ≥ 1 devices that share the batch; -1: all that remain
  mesh.model = 1  # ≥ 1 devices that share the heads
  mesh.fsdp = False  # True: weights and optimizer state are also split over data
  # Only for several processes. JAX's default is 100 s, for which a whole pod would wait
  # for a lost process. Heartbeats come from a separate thread, however busy the process
  # is, so 10 s without one means that it is lost.
  mesh.heartbeat_timeout = 10  # ≥ 1 s without a heartbeat: a process is lost
  mesh.start_timeout = 300  # ≥ 1 s that processes wait for each other at the start

  config.checkpoint = checkpoint = ConfigDict()
  checkpoint.every = 2500  # ≥ 1 steps
  checkpoint.keep = 3  # ≥ 1 newest checkpoints that are kept

  config.eval = evaluation = ConfigDict()
  evaluation.every = 1000  # ≥ 1 steps; the exact risk is computed at every logged step
  # ≥ 0 held-out batches of train.batch_size prompts; 0: only the exact risk
  evaluation.num_batches = 32

  if variant == 'paper':
    optimizer.learning_rate, optimizer.schedule = 5e-4, 'constant'
  if variant == 'smoke':
    train.num_steps, train.batch_size, train.log_every = 20, 64, 5
    checkpoint.every, evaluation.every, evaluation.num_batches = 10, 10, 4
  return config
