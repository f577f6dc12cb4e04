"""Every field of a run's config, once: its default, what it may hold, what it means.

The configs (zoo/config/defaults.py), the checks of single fields
(zoo/config/validation.py), the comparison with a saved run (zoo/config/saved.py), the
help of flags (launch/config_flag.py) and the page docs/fields.md read this list.
`validate` of zoo/config/validation.py says what fields require of one another.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, ClassVar, Literal

from ml_collections import ConfigDict

from zoo.config.curricula import CURRICULA
from zoo.config.optimizers import OPTIMIZERS, SCHEDULES
from zoo.config.own import METRICS, OBJECTIVES, OF_THE_LIBRARY
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
      changes neither the prompts nor the updates; a mesh changes the order of sums.
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
  check_name(name, value, [*OF_THE_LIBRARY, *OBJECTIVES])


def _check_metrics(name: str, value: Any) -> None:
  if not isinstance(value, list | tuple):
    raise UserError(
      f"{name} is {value!r}; it must be a tuple of names, such as ('norm',)"
    )
  for metric in value:
    check_registered(name, metric, METRICS)


def _check_steps(name: str, value: Any) -> None:
  if not (value == 'log' or isinstance(value, list | tuple)):
    raise UserError(
      f"{name} is {value!r}; it must be None, 'log', or steps such as (1, 10, 100)"
    )
  for step in value if isinstance(value, list | tuple) else ():
    check_count(f'a step of {name}', step)


# The learning rate is ten times that of the paper (arXiv 2512.04268) and decays, since
# Adam changes a weight by at most the learning rate per step, and a guess has to grow
# from 0 to 2. The task is that of Table 1 there.
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
    'its constructor, which checks them; the task gives the sizes.',
  ),
  'task.name': Field(
    'linear_regression',
    ByClass('the name of a task', str),
    'Name of the task. The other fields of the section `task` are the fields of its '
    'class, which checks them; those below are for `linear_regression`, '
    'y = w·x + σ n with w ~ N(w*, Λ) and x ~ N(0, Σ). The variant `task=NAME` replaces '
    'the section.',
  ),
  'task.num_features': Field(
    10, ByClass('an integer ≥ 1', int), 'Number of features of an input, d.'
  ),
  'task.context_length': Field(
    10,
    ByClass('an integer ≥ 1', int),
    'Number of labelled examples of a prompt, C.',
  ),
  'task.prior_mean': Field(
    2.0,
    ByClass('a number, or one for each feature', object),
    'Mean of the weights of the functions, w*. Most other papers centre the labels, '
    'which is 0.',
  ),
  'task.prior_covariance': Field(
    None,
    ByClass('a d × d matrix', object),
    'Covariance of the weights of the functions, Λ. None is the identity.',
  ),
  'task.feature_covariance': Field(
    None,
    ByClass('a d × d matrix', object),
    'Covariance of the inputs, Σ. None is the identity.',
  ),
  'task.noise_std': Field(
    0.0,
    ByClass('a number from 0 to 1e+19', float),
    'Standard deviation of the noise of labels, σ.',
  ),
  'objective.name': Field(
    'sampled',
    Own(_check_objective, '`sampled`, `nll`, `rows`, `exact`, or one of your own', str),
    '`sampled` is the mean loss of fresh prompts at every step. `nll` is the mean '
    'negative log likelihood of their observed labels, for models with a distribution '
    '(`model.head`). `rows` is the same for all rows behind a random place of each '
    'prompt, for the model `tabular`. `exact` is the expectation of the loss by a '
    'formula, on linear regression, for models that theory covers.',
  ),
  'objective.positions': Field(
    'query',
    OneOf(('query', 'every')),
    '`query` trains on the loss of the query alone, `every` on the mean loss of all '
    'examples and the query.',
  ),
  'objective.min_examples': Field(
    None,
    Count(0),
    'With positions = `query`, each prompt is cut to a random number of examples from '
    'this to C, and the next example becomes its query. None does not cut.',
  ),
  'objective.labels': Field(
    'clean',
    OneOf(('clean', 'observed')),
    'What predictions are compared with in training: `clean` are the targets, such as '
    'labels without noise or the probabilities of classes; `observed` are labels drawn '
    'from them. The same predictor minimises both. Most papers train on observed '
    'labels, with noisier gradients. The objective `nll` always has observed labels.',
  ),
  'curriculum.name': Field(
    'growing',
    Registered(CURRICULA),
    'Curriculum: training starts with few features, examples or loops (Garg et al., '
    'arXiv 2208.01066). `growing` has all from the first step on where `features`, '
    '`examples` and `loops` are None.',
  ),
  'curriculum.every': Field(2000, Count(), 'Steps from one stage to the next.'),
  'curriculum.features': Field(
    None,
    Count(),
    'Number of features of the first stage; further features are 0. None has all.',
  ),
  'curriculum.more_features': Field(
    1, Count(), 'Number of features that each stage adds.'
  ),
  'curriculum.examples': Field(
    None,
    Count(0),
    'Longest context of the first stage, in examples, for positions = `every`. Losses '
    'after more examples do not count, and prompts keep their length, which for causal '
    'models is the same as shorter prompts. None has all.',
  ),
  'curriculum.more_examples': Field(
    2, Count(), 'Number of examples that each stage adds.'
  ),
  'curriculum.loops': Field(
    None,
    Count(),
    'Number of trained loops of the first stage, for models with several. None has '
    'all.',
  ),
  'curriculum.more_loops': Field(1, Count(), 'Number of loops that each stage adds.'),
  'optimizer.name': Field('adam', Registered(OPTIMIZERS), 'Name of the optimizer.'),
  'optimizer.learning_rate': Field(
    5e-3, Number(above=0.0), 'Learning rate at the peak of the schedule.'
  ),
  'optimizer.beta1': Field(
    None,
    Number(0.0, maximum=_ALMOST_ONE),
    "Momentum. None is optax's default.",
  ),
  'optimizer.beta2': Field(
    None,
    Number(0.0, maximum=_ALMOST_ONE),
    "Decay of the mean of squared gradients. None is optax's default.",
  ),
  'optimizer.weight_decay': Field(
    None,
    Number(0.0),
    'Weight decay, which is multiplied by the learning rate; `adam` and `sgd` take '
    "none. None is optax's default.",
  ),
  'optimizer.decay': Field(
    'hidden',
    Own(_check_decay, 'roles, `all`, or patterns, joined by commas', str),
    'Which weights decay: the roles `hidden`, `embedding` and `vector`, `all`, or '
    'patterns of paths such as `*/norm`. docs/parameters.md lists roles and paths.',
  ),
  'optimizer.scales': Field(
    {},
    Own(_check_scales, 'a dictionary of numbers ≥ 0', dict),
    'Factors of the learning rate by patterns of paths, such as '
    "`{'layers/*/value': 10.0}`. The factor 0 freezes weights.",
  ),
  'optimizer.schedule': Field(
    'cosine',
    OneOf(SCHEDULES),
    'Schedule of the learning rate after the warm-up. `wsd` is constant, and decays at '
    'the end.',
  ),
  'optimizer.warmup_steps': Field(
    0,
    Count(0),
    'Number of steps of a linear warm-up from 0.',
    may_change='with more steps',
  ),
  'optimizer.warmup_share': Field(
    None,
    Number(0.0, maximum=1.0),
    'Warm-up as a share of `train.num_steps`, in place of `warmup_steps`. None takes '
    '`warmup_steps`.',
  ),
  'optimizer.decay_share': Field(
    0.2,
    Number(above=0.0, maximum=1.0),
    'Share of `train.num_steps` in which the schedule `wsd` decays.',
  ),
  'optimizer.final_share': Field(
    0.0,
    Number(0.0, maximum=1.0),
    'Last learning rate as a share of the peak.',
  ),
  'optimizer.clip_norm': Field(
    None,
    Number(above=0.0),
    'Maximum global norm of the gradient. None disables clipping.',
  ),
  'optimizer.ema_decay': Field(
    None,
    Number(0.0, maximum=_ALMOST_ONE),
    'Decay of an exponential moving average of the weights, which is then the model. '
    'None takes no average.',
  ),
  'train.num_steps': Field(
    5000,
    Count(maximum=_LARGEST_STEP),
    'Number of steps. It may be raised later, to go on.',
    may_change='with more steps',
  ),
  'train.init_from': Field(
    None,
    Own(_check_folder, 'a folder', str),
    'Run or saved model whose weights the run starts from; it is read at step 0 alone. '
    'None starts from random weights.',
  ),
  'train.init_from_other': Field(
    False,
    Truth(),
    'Whether the model of `init_from` may compute something else from the same '
    'weights.',
  ),
  'train.batch_size': Field(
    2048,
    Count(),
    'Number of prompts of a step, a multiple of `mesh.data` times `num_parts`.',
  ),
  'train.num_parts': Field(
    1,
    Count(),
    'Number of parts of a batch that are computed one after the other, to save memory.',
  ),
  'train.compute_dtype': Field(
    'float32',
    OneOf(('float32', 'bfloat16')),
    'Type in which the model computes. Weights and moments keep their types.',
  ),
  'train.log_every': Field(
    50,
    Count(),
    'Number of steps between log lines. They run in one compiled call, which also ends '
    'at each evaluation and each save, so that these have log lines of their own.',
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
    'Number of devices that share the batch. -1 takes all that are left.',
    may_change='always',
  ),
  'mesh.model': Field(
    1, Count(), 'Number of devices that share the heads.', may_change='always'
  ),
  'mesh.fsdp': Field(
    False,
    Truth(),
    'Whether the weights and the state of the optimizer are also split over `data`.',
    may_change='always',
  ),
  'mesh.heartbeat_timeout': Field(
    10,
    Count(),
    'Seconds after which a silent process counts as lost.',
    may_change='always',
  ),
  'mesh.start_timeout': Field(
    300,
    Count(),
    'Seconds to wait for the other processes at the start.',
    may_change='always',
  ),
  'checkpoint.every': Field(
    2500, Count(), 'Number of steps between checkpoints.', may_change='always'
  ),
  'checkpoint.every_minutes': Field(
    None,
    Number(above=0.0),
    'Minutes between checkpoints at most. None sets no limit.',
    may_change='always',
  ),
  'checkpoint.keep': Field(
    3, Count(), 'Number of the newest checkpoints that are kept.', may_change='always'
  ),
  'checkpoint.steps': Field(
    None,
    Own(_check_steps, '`log`, or a tuple of integers ≥ 1', object),
    'Steps whose checkpoints are kept besides the newest. `log` is 1, 2, 3, 4, 6, 8, '
    '11, 16, …, two for each factor of two. None keeps no others.',
    may_change='always',
  ),
  'eval.seed': Field(
    0,
    Count(0, LARGEST_SEED),
    'Seed of the held-out prompts and of those of comparisons.',
  ),
  'eval.every': Field(
    1000,
    Count(),
    'Number of steps between evaluations. The exact risk is computed at each log line.',
  ),
  'eval.num_batches': Field(
    32, Count(0), 'Number of held-out batches. 0 leaves only the exact risk.'
  ),
  'eval.num_compared': Field(
    4096,
    Count(0),
    'Number of prompts on which baselines are compared at the end.',
    may_change='always',
  ),
  'eval.metrics': Field(
    (),
    Own(_check_metrics, 'a tuple of names', tuple),
    'Names of metrics of your own, which are measured at each evaluation.',
    may_change='always',
  ),
}

# Saved configs may have these fields, which were removed. A run that goes on may lack
# them.
FORMER_FIELDS = 'checkpoint.patience', 'mesh.slices'


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
  own = {name for name, field in FIELDS.items() if field.may_change in reasons}
  return own | {*FORMER_FIELDS}
