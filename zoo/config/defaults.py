"""Every field of a training run: its default, and what it may be.

zoo/config/validation.py checks the ranges; those of `task` stand in the `check` of its
class, those of `model` in its constructor.
"""

from inspect import Parameter
from typing import Any

from ml_collections import ConfigDict, FieldReference
from ml_collections.config_dict import placeholder

from zoo.core.registry import MODELS, PARTS, TASKS, check_registered, parameters

# The arguments of a model that its task gives, which no config names.
FROM_THE_TASK = 'num_features', 'context_length', 'num_outputs', 'rngs'
# Fields whose flags are read as one type: --config.task.path=my.npz is text.
_TYPES = {'bool': bool, 'int': int, 'float': float, 'Number': float, 'str': str}


def all_fields() -> Any:  # a ConfigDict, whose fields type checkers do not know
  """All fields; the task is that of Table 1 of arXiv 2512.04268, the model is missing.

  The learning rate is ten times the paper's and decays, since Adam changes a weight by
  at most the learning rate per step, and a guess has to grow from 0 to 2.
  """
  config = ConfigDict()
  config.seed = 0  # of the initial weights and the prompts of training; 0 to 2³² − 1

  config.model = ConfigDict({'name': 'none'})  # each file sets it

  # y = w·x + σ n with w ~ N(w*, Λ), x ~ N(0, Σ), in zoo/tasks/linear_regression.py. The
  # variant task=NAME replaces this section by the defaults of another class.
  config.task = task = ConfigDict({'name': 'linear_regression'})
  task.num_features = 10  # d ≥ 1
  task.context_length = 10  # C ≥ 1, labelled examples of a prompt
  task.prior_mean = number_or_vector(2.0)  # w*; most other papers centre labels, w* = 0
  task.prior_covariance = placeholder(object)  # Λ, a d × d matrix; None: the identity
  task.feature_covariance = placeholder(object)  # Σ, a d × d matrix; None: the identity
  task.noise_std = 0.0  # σ, 0 to 1e19, in the units of the labels

  config.objective = objective = ConfigDict()
  # 'sampled': the loss on fresh prompts at every step; 'exact': its expectation by a
  # formula, on linear regression for models of which theory has one; or one of your
  # own.
  objective.name = 'sampled'
  objective.positions = 'query'  # the loss of the query, or of 'every' example
  # 0 to C, for positions = 'query': each prompt is cut to a random number of examples,
  # from this to C, and the next example becomes its query; None: no cut.
  objective.min_examples = placeholder(int)
  # What predictions are compared with: 'clean', the targets, such as labels without
  # noise or the probabilities of classes; or 'observed', labels drawn from them. Both
  # have the same optimum; most papers train on observed labels, with noisier gradients.
  objective.labels = 'clean'

  # Training may start with few features, examples or loops (Garg et al., arXiv
  # 2208.01066). Where the three fields are None, it has all from the first step on.
  config.curriculum = curriculum = ConfigDict()
  curriculum.name = 'growing'  # or one of your own
  curriculum.every = 2000  # steps from one stage to the next, ≥ 1
  curriculum.features = placeholder(int)  # of the first stage, ≥ 1; further ones are 0
  curriculum.more_features = 1  # that each stage adds, ≥ 1
  # The longest context of the first stage, in examples, ≥ 0, for positions = 'every'.
  # Losses after more examples do not count and prompts keep their length, which for
  # causal models is the same as shorter prompts.
  curriculum.examples = placeholder(int)
  curriculum.more_examples = 2  # that each stage adds, ≥ 1
  curriculum.loops = placeholder(int)  # trained loops of the first stage, of several
  curriculum.more_loops = 1  # that each stage adds, ≥ 1

  config.optimizer = optimizer = ConfigDict()
  optimizer.name = 'adam'  # adamw, lion, muon, schedule_free, sgd, or one of your own
  optimizer.learning_rate = 5e-3  # > 0, the peak of the schedule
  optimizer.beta1 = placeholder(float)  # [0, 1), momentum; None: optax's default
  optimizer.beta2 = placeholder(float)  # [0, 1), for squared gradients; None: optax's
  # ≥ 0, times the learning rate; not for adam and sgd; None: optax's default.
  optimizer.weight_decay = placeholder(float)
  # The weights that decay, joined by commas: the roles hidden, embedding and vector, or
  # all, or patterns of paths such as */norm; docs/parameters.md has the roles.
  optimizer.decay = 'hidden'
  # Factors of the learning rate by patterns of paths, such as {'layers/*/value': 10.0};
  # 0 freezes.
  optimizer.scales = ConfigDict()
  optimizer.schedule = 'cosine'  # constant, cosine, linear, or wsd: a decay at the end
  optimizer.warmup_steps = 0  # ≥ 0, of a linear warm-up from 0
  # The warm-up as a share of train.num_steps, 0 to 1, in place of warmup_steps.
  optimizer.warmup_share = placeholder(float)
  optimizer.decay_share = 0.2  # (0, 1], the share of num_steps in which wsd decays
  optimizer.final_share = 0.0  # 0 to 1, last learning rate over the peak
  optimizer.clip_norm = placeholder(float)  # > 0, of the whole gradient; None: none
  optimizer.ema_decay = placeholder(float)  # [0, 1), of averaged weights; None: none

  config.train = train = ConfigDict()
  train.num_steps = 5000  # ≥ 1; may be raised later, to go on
  # A run or saved model whose arrays, but for random keys, the run starts from; it is
  # read at step 0 alone. None: random weights.
  train.init_from = placeholder(str)
  # Whether that may be a model that computes something else from the same weights.
  train.init_from_other = False
  train.batch_size = 2048  # prompts of a step, a multiple of mesh.data · num_parts
  train.num_parts = 1  # ≥ 1, parts of a batch, one after the other, to save memory
  train.compute_dtype = 'float32'  # or bfloat16; weights and moments are float32
  # Steps between log lines, ≥ 1. They run in one compiled call, which also ends at each
  # evaluation and each save, so that these have log lines of their own.
  train.log_every = 50
  train.matmul_precision = 'highest'  # or high, or default, which on a TPU is bfloat16

  config.mesh = mesh = ConfigDict()
  mesh.data = -1  # devices that share the batch; −1: all that are left
  mesh.model = 1  # devices that share the heads, ≥ 1
  mesh.fsdp = False  # whether weights and optimizer state are also split over `data`
  mesh.heartbeat_timeout = 10  # ≥ 1, seconds after which a silent process is lost
  mesh.start_timeout = 300  # ≥ 1, seconds to wait for other processes at the start

  config.checkpoint = checkpoint = ConfigDict()
  checkpoint.every = 2500  # steps, ≥ 1
  # Minutes between checkpoints at most, > 0; None: no limit.
  checkpoint.every_minutes = placeholder(float)
  checkpoint.keep = 3  # the newest checkpoints that are kept, ≥ 1
  # Steps, ≥ 1, whose checkpoints are kept besides the newest: a tuple, or 'log' for 1,
  # 2, 3, 4, 6, 8, 11, 16, …, two for each factor of two; None: none.
  checkpoint.steps = placeholder(object)

  config.eval = evaluation = ConfigDict()  # the exact risk is computed at each log line
  # Of the held-out prompts and those of comparisons, the same for every seed; ≥ 0.
  evaluation.seed = 0
  evaluation.every = 1000  # steps, ≥ 1
  evaluation.num_batches = 32  # held-out batches, ≥ 0; 0: only the exact risk
  evaluation.num_compared = 4096  # ≥ 0, prompts on which baselines are compared
  evaluation.metrics = ()  # names of metrics of your own, measured at each evaluation
  return config


def task_section(name: str) -> Any:
  """The section `task` with the defaults of a class; raises UserError.

  A field without a default is None. The tasks of a mixture are sections themselves; see
  configs/mixture.py.
  """
  if name == 'mixture':
    sizes = {'num_features': 5, 'context_length': 10}
    section = ConfigDict({'name': name, 'parts': PARTS, **sizes})
    section.weights = placeholder(tuple)
    return section
  cls = TASKS[check_registered('task', name, TASKS)]
  section = ConfigDict({'name': name})
  for field, parameter in parameters(cls).items():
    section[field] = _field(parameter)
  return section


def model_section(name: str) -> Any:
  """The section `model` with the defaults of a class; raises UserError.

  A field without a default is None.
  """
  cls = MODELS[check_registered('model', name, MODELS)]
  section = ConfigDict({'name': name})
  for field, parameter in parameters(cls).items():
    if field not in FROM_THE_TASK:
      section[field] = _field(parameter)
  return section


def _field(parameter: Parameter) -> Any:
  """What a config has for an argument of a constructor: its default, and its type."""
  default = None if parameter.default is parameter.empty else parameter.default
  annotation = parameter.annotation
  name = annotation.__name__ if isinstance(annotation, type) else str(annotation)
  if name.startswith('Mapping'):
    return ConfigDict(default or {})
  if default is not None and not isinstance(default, float):
    return default
  name = name.removeprefix('trees.').removesuffix(' | None')
  kind = _TYPES.get(name, object)
  return FieldReference(default, field_type=kind)


def number_or_vector(default: float) -> FieldReference:
  """A field that may hold a number, or one number for each feature."""
  return FieldReference(default, field_type=object)
