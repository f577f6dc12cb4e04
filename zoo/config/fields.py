"""Every field of a run's config, once: its default, what it may hold, what it means.

The configs (zoo/config/defaults.py), the checks of single fields
(zoo/training/validation.py), the comparison with a saved run (zoo/config/saved.py), the
help of flags (launch/config_flag.py) and the page of fields of the site read this list.
`validate` of zoo/training/validation.py says what fields require of one another.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, ClassVar, Literal

from ml_collections import ConfigDict

from zoo.config.curricula import CURRICULA
from zoo.config.optimizers import OPTIMIZERS, SCHEDULES
from zoo.config.own import METRICS, OBJECTIVES
from zoo.core.errors import (
  UserError,
  check_count,
  check_name,
  check_number,
  check_truth,
  range_in_words,
)
from zoo.core.registry import check_registered


class Check:
  """The base class of checks, which say what a field may hold."""

  type: Any = object  # The flag of the field is read as this type.

  def check(self, name: str, value: object) -> None:
    """Raises UserError, which calls the field by `name`, for a value that is wrong."""
    raise NotImplementedError

  def words(self) -> str:
    """Returns what the field may hold, in words, for the documentation."""
    raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Number(Check):
  """A finite number within bounds."""

  minimum: float = -math.inf
  above: float = -math.inf
  maximum: float = math.inf
  type: ClassVar = float

  def check(self, name: str, value: object) -> None:
    check_number(name, value, self.minimum, self.above, self.maximum)

  def words(self) -> str:
    return f'a number {range_in_words(self.minimum, self.above, self.maximum)}'


@dataclasses.dataclass(frozen=True)
class Count(Check):
  """An integer within bounds."""

  minimum: int = 1
  maximum: int | float = math.inf
  type: ClassVar = int

  def check(self, name: str, value: object) -> None:
    check_count(name, value, self.minimum, self.maximum)

  def words(self) -> str:
    return f'an integer {range_in_words(self.minimum, maximum=self.maximum)}'


@dataclasses.dataclass(frozen=True)
class OneOf(Check):
  """One of a few names."""

  names: Iterable[str]
  type: ClassVar = str

  def check(self, name: str, value: object) -> None:
    check_name(name, value, self.names)

  def words(self) -> str:
    return ', '.join(f'`{name}`' for name in self.names)


@dataclasses.dataclass(frozen=True)
class Registered(Check):
  """A name under which something is registered, by the library or by the user."""

  entries: Collection[str]
  type: ClassVar = str

  def check(self, name: str, value: object) -> None:
    check_registered(name, value, self.entries)

  def words(self) -> str:
    return ', '.join(f'`{name}`' for name in self.entries) + ', or one of your own'


@dataclasses.dataclass(frozen=True)
class Truth(Check):
  """True or False."""

  type: ClassVar = bool

  def check(self, name: str, value: object) -> None:
    check_truth(name, value)

  def words(self) -> str:
    return '`True` or `False`'


@dataclasses.dataclass(frozen=True)
class Own(Check):
  """A value that is checked by a function of its own."""

  function: Callable[[str, Any], None]
  said: str
  type: Any

  def check(self, name: str, value: object) -> None:
    self.function(name, value)

  def words(self) -> str:
    return self.said


@dataclasses.dataclass(frozen=True)
class ByClass(Check):
  """A value that the class of the section `model` or `task` checks when it is built."""

  said: str
  type: Any

  def check(self, name: str, value: object) -> None:
    pass

  def words(self) -> str:
    return self.said


@dataclasses.dataclass(frozen=True)
class Field:
  """One field of a config.

  Attributes:
    default: The default. A field whose default is None may be set to None.
    check: The check of other values.
    comment: What the field means, in a sentence or two, and what None means.
    may_change: Whether a run that goes on in its folder may have another value: never,
      always, or only if it goes on for more steps than it had. A field marked `always`
      does not change the prompts. Only the mesh changes the updates: it changes the
      order of sums, and on a CPU also what an objective itself draws (`rows`, or an
      objective of the user's own).
  """

  default: Any
  check: Check
  comment: str
  may_change: Literal['never', 'always', 'with more steps'] = 'never'


LARGEST_SEED = 2**32 - 1
_LARGEST_STEP = 2**31 - 1
_ALMOST_ONE = 1 - 1e-6  # This is the largest decay of an average.


def _check_folder(name: str, value: Any) -> None:
  if not (isinstance(value, str) and value):
    raise UserError(f'{name} is {value!r}; it must be a folder with a checkpoint')


def _check_digest(name: str, value: Any) -> None:
  if not (isinstance(value, str) and re.fullmatch('[0-9a-f]{16}', value)):
    raise UserError(f'{name} is {value!r}; it must have 16 hexadecimal digits')


def _check_decay(name: str, value: Any) -> None:
  if not isinstance(value, str) or not all(value.split(',')):
    raise UserError(
      f"{name} is {value!r}; it must be 'hidden', 'all', or other roles or patterns of "
      'paths, joined by commas'
    )


def _check_scales(name: str, value: Any) -> None:
  scales = {} if value is None else value
  if not isinstance(scales, Mapping | ConfigDict):
    raise UserError(
      f'{name} is {scales!r}; it must have factors by pattern, such as '
      "{'layers/*/value': 10.0}"
    )
  for pattern in scales:
    if not isinstance(pattern, str):
      raise UserError(
        f'{name} has the pattern {pattern!r}; it must be text, a path of '
        "weights such as 'layers/0/mixer', in which * stands for any text"
      )
    check_number(f'{name}[{pattern!r}]', scales[pattern], minimum=0.0)


def _check_devices(name: str, value: Any) -> None:
  if value != -1:
    check_count(f'{name} (-1 for all left)', value)


def _check_objective(name: str, value: Any) -> None:
  check_registered(name, value, OBJECTIVES)


def _check_metrics(name: str, value: Any) -> None:
  if not isinstance(value, list | tuple):
    raise UserError(
      f"{name} is {value!r}; it must be a tuple of names, such as ('norm',)"
    )
  for metric in value:
    check_registered(name, metric, METRICS)
  for metric in value:
    if value.count(metric) > 1:
      raise UserError(f'{name} is {value!r}; it must name {metric!r} only once')


def _check_steps(name: str, value: Any) -> None:
  if not (value == 'log' or isinstance(value, list | tuple)):
    raise UserError(
      f"{name} is {value!r}; it must be None, 'log', or steps such as (1, 10, 100)"
    )
  for step in value if isinstance(value, list | tuple) else ():
    check_count(f'a step of {name}', step)


# The default task is that of Table 1 of arXiv 2512.04268.
FIELDS: dict[str, Field] = {
  'seed': Field(
    0,
    Count(0, LARGEST_SEED),
    'Seed of the initial weights and of the prompts of training.',
  ),
  'model.name': Field(
    'none',
    ByClass('the name of a model', str),
    'Name of the model. The other fields of the section `model` are the arguments of '
    'its constructor, which checks them. The numbers of features, examples and outputs '
    'come from the task. The default `none` stands for a missing name. Each file of '
    '`configs/` sets a name, and so does `zoo.default_config`.',
  ),
  'task.name': Field(
    'linear_regression',
    ByClass('the name of a task', str),
    'Name of the task. The other fields of the section `task` are the fields of its '
    'class, which checks them. The fields below are those of `linear_regression`, '
    'y = w·x + σ n with w ~ N(w*, Λ) and x ~ N(0, Σ). The variant `task=NAME` of a '
    'config replaces the whole section.',
  ),
  'task.num_features': Field(
    10, ByClass('an integer ≥ 1', int), 'Number of features of an input, d.'
  ),
  'task.context_length': Field(
    10,
    ByClass('an integer from 1 to 2147483647', int),
    'Number of labelled examples of a prompt, C.',
  ),
  'task.prior_mean': Field(
    2.0,
    ByClass('a number, or one for each feature', object),
    'Mean of the weights of the functions, w*. Most other papers have the mean 0.',
  ),
  'task.prior_covariance': Field(
    None,
    ByClass('a d × d matrix', object),
    'Covariance of the weights of the functions, Λ. None means the identity.',
  ),
  'task.feature_covariance': Field(
    None,
    ByClass('a d × d matrix', object),
    'Covariance of the inputs, Σ. None means the identity.',
  ),
  'task.noise_std': Field(
    0.0,
    ByClass('a number from 0 to 1e+19', float),
    'Standard deviation of the noise of labels, σ.',
  ),
  'objective.name': Field(
    'sampled',
    Own(_check_objective, '`sampled`, `nll`, `rows`, `exact`, or one of your own', str),
    'What training minimises. `sampled` is the mean loss on prompts that are drawn '
    'anew at every step. `nll` is the mean negative log likelihood of the observed '
    'labels of such prompts, for models that predict a distribution (`model.head`). '
    '`rows` is for the model `tabular`: each prompt is cut at a random place, and the '
    'negative log likelihood is a mean over all rows after the cut. `exact` is the '
    'expected loss by a formula, for linear regression and models that theory covers.',
  ),
  'objective.positions': Field(
    'query',
    OneOf(('query', 'every')),
    'Which predictions are trained. `query` is the loss of the query alone; `every` is '
    'the mean loss of all examples and the query. `every` needs a model that predicts '
    'them all in one pass: a token model with causal tokens, or a model with a method '
    '`predictions` or a learning rule.',
  ),
  'objective.min_examples': Field(
    None,
    Count(0),
    'Smallest number of examples in training, for positions = `query`. Each prompt is '
    'cut to a random number of examples, from this number to C, and the next example '
    'becomes its query. None keeps all prompts at C examples.',
  ),
  'objective.labels': Field(
    'clean',
    OneOf(('clean', 'observed')),
    'What predictions are compared with in training. `clean` means the targets, such '
    'as labels without noise or the probabilities of classes. `observed` means labels '
    'that are drawn from the targets, as in most papers; gradients are then noisier. '
    'The expected losses with `clean` and with `observed` are least for the same '
    'predictions. The objectives `nll` and `rows` always use observed labels.',
  ),
  'curriculum.name': Field(
    'growing',
    Registered(CURRICULA),
    'Name of the curriculum. `growing` starts training with few features, examples or '
    'loops, and adds more stage by stage (Garg et al., arXiv 2208.01066). With the '
    'defaults of `features`, `examples` and `loops`, which are None, there is no '
    'curriculum.',
  ),
  'curriculum.every': Field(2000, Count(), 'Number of steps of a stage.'),
  'curriculum.features': Field(
    None,
    Count(),
    'Number of features in the first stage. The other features are set to 0. None '
    'means all features.',
  ),
  'curriculum.more_features': Field(
    1, Count(), 'Number of features that each stage adds.'
  ),
  'curriculum.examples': Field(
    None,
    Count(0),
    'Number of examples in the longest context of the first stage, for positions = '
    '`every`. Prompts keep their length, and losses after more examples do not count. '
    'For causal models this is the same as shorter prompts. None means all examples.',
  ),
  'curriculum.more_examples': Field(
    2, Count(), 'Number of examples that each stage adds.'
  ),
  'curriculum.loops': Field(
    None,
    Count(),
    'Number of trained loops in the first stage, for models with several loops. None '
    'means all loops.',
  ),
  'curriculum.more_loops': Field(1, Count(), 'Number of loops that each stage adds.'),
  'optimizer.name': Field('adam', Registered(OPTIMIZERS), 'Name of the optimizer.'),
  # The default is ten times that of the paper and decays: Adam changes a weight by at
  # most the learning rate per step, and a guess has to grow from 0 to 2.
  'optimizer.learning_rate': Field(
    5e-3, Number(above=0.0), 'Learning rate at the peak of the schedule.'
  ),
  'optimizer.beta1': Field(
    None,
    Number(0.0, maximum=_ALMOST_ONE),
    'Momentum. For `adam`, `adamw` and `muon` it is the decay of the moving average of '
    'gradients, and for `sgd` the decay of the sum of gradients. In `muon` it is for '
    'the matrices of hidden layers; NAdam, which trains the other weights, has 0.9. '
    '`lion` updates by the sign of beta1 · average + (1 − beta1) · gradient, with the '
    'moving average of gradients. `schedule_free` takes gradients at beta1 · model + '
    '(1 − beta1) · iterate, with the newest iterate of the inner optimizer; the model '
    'is the average of the iterates, and beta1 is at least 0.01. None means 0.9 for '
    '`adam`, `adamw`, `lion` and `schedule_free`, 0.95 for `muon`, and no momentum for '
    '`sgd`.',
  ),
  'optimizer.beta2': Field(
    None,
    Number(0.0, maximum=_ALMOST_ONE),
    'Decay of the moving average of squared gradients. In `lion`, which has no such '
    'average, it is the decay of the moving average of gradients. `muon` uses it for '
    'the weights that NAdam trains. `sgd` has no beta2. '
    'None means 0.99 for `lion` and 0.999 for all others.',
  ),
  'optimizer.weight_decay': Field(
    None,
    Number(0.0),
    'Strength of the weight decay. Each step subtracts learning rate × `weight_decay` '
    '× weight from the weights that decay. `adam` and `sgd` have no weight decay. None '
    'means 1e-4 for `adamw`, 1e-3 for `lion`, and 0 for `muon` and `schedule_free`.',
  ),
  'optimizer.decay': Field(
    'hidden',
    Own(_check_decay, 'roles, `all`, or patterns, joined by commas', str),
    'Which weights decay: roles (`hidden`, `embedding`, `vector`), `all`, or patterns '
    'of paths such as `*/norm`. The page parameters of the site lists roles and paths.',
  ),
  'optimizer.scales': Field(
    {},
    Own(_check_scales, 'a dictionary of numbers ≥ 0', dict),
    'Factors of the learning rate, by patterns of paths, such as '
    "`{'layers/*/value': 10.0}`. A factor of 0 freezes these weights.",
  ),
  'optimizer.schedule': Field(
    'cosine',
    OneOf(SCHEDULES),
    'Schedule of the learning rate after the warm-up. `wsd` (warm-up, stable, decay) '
    'is constant until it decays at the end.',
  ),
  'optimizer.warmup_steps': Field(
    0,
    Count(0),
    'Number of steps in which the learning rate rises linearly from 0.',
    may_change='with more steps',
  ),
  'optimizer.warmup_share': Field(
    None,
    Number(0.0, maximum=1.0),
    'Length of the warm-up as a share of `train.num_steps`. It replaces '
    '`warmup_steps`. None means that `warmup_steps` is used.',
  ),
  'optimizer.decay_share': Field(
    0.2,
    Number(above=0.0, maximum=1.0),
    'Length of the decay, as a share of `train.num_steps`. Only the schedule `wsd` '
    'uses it.',
  ),
  'optimizer.final_share': Field(
    0.0,
    Number(0.0, maximum=1.0),
    'Learning rate at the end of the decay, as a share of the peak. The last step is '
    'taken one step before this end: steps are counted from 0, so that it has the rate '
    'of the schedule at `train.num_steps` − 1.',
  ),
  'optimizer.clip_norm': Field(
    None,
    Number(above=0.0),
    'Maximum global norm of the gradient. None disables clipping.',
  ),
  'optimizer.ema_decay': Field(
    None,
    Number(0.0, maximum=_ALMOST_ONE),
    'Decay of an exponential moving average of the weights. The model that is '
    'evaluated, saved and loaded is then this average. None takes no average.',
  ),
  'train.num_steps': Field(
    5000,
    Count(maximum=_LARGEST_STEP),
    'Number of training steps. A larger number later continues the run.',
    may_change='with more steps',
  ),
  'train.init_from': Field(
    None,
    Own(_check_folder, 'a path, or `gs://bucket/folder`', str),
    'Folder of a run or a saved model from whose weights the run starts. It is kept as '
    'its full path, and its weights are read at step 0 alone. None starts from random '
    'weights.',
  ),
  'train.init_from_step': Field(
    None,
    Count(0),
    'Step of `train.init_from` that is read. None means the newest step, whose number '
    'is then kept.',
  ),
  'train.init_from_digest': Field(
    None,
    Own(_check_digest, '16 hexadecimal digits', str),
    'Digest that the weights of `train.init_from` must have. None means that of the '
    'weights as they are now, which is then kept.',
  ),
  'train.init_from_other': Field(
    False,
    Truth(),
    'Whether `train.init_from` may be a model that has the same weights and computes '
    'another function of them, such as a transformer with another number of heads.',
  ),
  'train.batch_size': Field(
    2048,
    Count(),
    'Number of prompts in a step. It must be a multiple of `mesh.data` times '
    '`num_parts`.',
  ),
  'train.num_parts': Field(
    1,
    Count(),
    'Number of parts into which a batch is split. They are computed one after the '
    'other, which saves memory. The prompts are the same for each number. What an '
    'objective itself draws is not: the cuts of `rows`, or what an objective of your '
    'own draws by its key.',
  ),
  'train.compute_dtype': Field(
    'float32',
    OneOf(('float32', 'bfloat16')),
    'Type in which the model computes. Weights and the moments of the optimizer keep '
    'their types.',
  ),
  'train.log_every': Field(
    50,
    Count(),
    'Number of steps from one log line to the next. All these steps run in one '
    'compiled call. A call also ends at each evaluation and at each save, so that '
    'these have log lines of their own.',
    may_change='always',
  ),
  'train.matmul_precision': Field(
    'highest',
    OneOf(('default', 'high', 'highest')),
    'Precision of matrix products. `default` is bfloat16 on a TPU.',
  ),
  'mesh.data': Field(
    -1,
    Own(_check_devices, 'an integer ≥ 1, or -1', int),
    'Number of devices among which the batch is split. -1 takes all devices that '
    '`mesh.model` leaves. The prompts are the same for each number. What an objective '
    'itself draws may differ: the cuts of `rows`, or what an objective of your own '
    'draws by its key.',
    may_change='always',
  ),
  'mesh.model': Field(
    1,
    Count(),
    'Number of devices among which the heads are split.',
    may_change='always',
  ),
  'mesh.fsdp': Field(
    False,
    Truth(),
    'Whether the weights and the state of the optimizer are split over the devices of '
    '`mesh.data`, too.',
    may_change='always',
  ),
  'mesh.heartbeat_timeout': Field(
    100,  # It is the default of JAX.
    Count(),
    'Number of seconds after which a process that sends nothing counts as lost.',
    may_change='always',
  ),
  'mesh.start_timeout': Field(
    300,
    Count(),
    'Number of seconds to wait for the other processes at the start.',
    may_change='always',
  ),
  'checkpoint.every': Field(
    2500, Count(), 'Number of steps between checkpoints.', may_change='always'
  ),
  'checkpoint.every_minutes': Field(
    None,
    Number(above=0.0),
    'Number of minutes after which a checkpoint is saved. The clock is read after each '
    'logged step, so that up to `train.log_every` steps more may pass. None sets no '
    'limit.',
    may_change='always',
  ),
  'checkpoint.keep': Field(
    3,
    Count(),
    'Number of newest checkpoints that are kept. Points of a sweep that are trained '
    'side by side keep one, whatever it is.',
    may_change='always',
  ),
  'checkpoint.steps': Field(
    None,
    Own(_check_steps, '`log`, or a tuple of integers ≥ 1', object),
    'Steps whose checkpoints are kept in addition to the newest. `log` means 1, 2, 3, '
    '4, 6, 8, 11, 16, …, which are two steps for each factor of two. Steps beyond '
    '`train.num_steps` are ignored. None keeps no others.',
    may_change='always',
  ),
  'eval.seed': Field(
    0,
    Count(0, LARGEST_SEED),
    'Seed of the held-out prompts and of the prompts on which baselines are compared.',
  ),
  'eval.every': Field(
    1000,
    Count(),
    'Number of steps between evaluations on held-out prompts. The exact risk, where '
    'there is one, is computed at each log line.',
    may_change='always',
  ),
  'eval.num_batches': Field(
    32,
    Count(0),
    'Number of held-out batches, each of `train.batch_size` prompts. With 0 there is '
    'no loss on held-out prompts; the exact risk and the metrics of `eval.metrics` are '
    'still measured.',
  ),
  'eval.num_compared': Field(
    4096,
    Count(0),
    'Number of prompts on which the model and the baselines are compared at the end. '
    'They are the first prompts of `zoo.curve` with the seed `eval.seed`. With fewer '
    'than 2 prompts, or if `eval.num_batches` is 0, there is no comparison. If this '
    'number changes, a run or a point that has ended and was compared is compared '
    'again.',
    may_change='always',
  ),
  'eval.metrics': Field(
    (),
    Own(_check_metrics, 'a tuple of names', tuple),
    'Names of metrics of your own, which are measured at each evaluation.',
    may_change='always',
  ),
}


def is_of_class(name: str) -> bool:
  """Returns whether a field is an argument of the model or the task.

  Its class checks it.
  """
  return name.startswith(('model.', 'task.'))


def check_field(name: str, value: object) -> None:
  """Checks the value of one field by itself.

  Args:
    name: The name of the field, such as 'optimizer.learning_rate'.
    value: The value of the field in a config.

  Raises:
    UserError: If the field may not have this value.
  """
  field = FIELDS[name]
  if value is None and field.default is None:
    return
  field.check.check(f'config.{name}', value)


def may_change(more_steps: bool) -> set[str]:
  """Returns the fields in which a run that goes on may differ from its saved config.

  Args:
    more_steps: Whether it goes on for more steps than it had.
  """
  reasons = {'always', 'with more steps'} if more_steps else {'always'}
  return {name for name, field in FIELDS.items() if field.may_change in reasons}
