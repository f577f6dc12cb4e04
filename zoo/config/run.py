"""The config of a run as the library holds it: a frozen record for each section.

A user holds a `ConfigDict`: the files in configs/ and `zoo.default_config` return one,
and flags set its fields. `zoo.config.read` makes a `Run` of it, and checks the types,
the ranges and the names of fields. Each field is here once, with its type, its range,
its meaning and its default. The defaults of a `ConfigDict`, the help of flags and the
page of fields are made from these records. The title of a type says in words what a
field may hold.

A rule between fields of one section is in the section's `__post_init__`. What needs the
task, the model or the devices is checked where those are built
(zoo/training/experiment.py).
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from zoo.core.errors import UserError

LARGEST_SEED = 2**32 - 1
GROWING = 'growing'  # This is the curriculum of the library.
# Whether a run that goes on in its folder may have another value than it had: always,
# or only if it goes on for more steps. Any other field may never change. A field that
# may always change does not change the prompts. Only the mesh changes the updates: it
# changes the order of sums, and on a CPU also what an objective itself draws (`rows`,
# or an objective of the user's own).
ALWAYS = {'may_change': 'always'}
WITH_MORE_STEPS = {'may_change': 'with more steps'}

Seed = Annotated[
  int, Meta(ge=0, le=LARGEST_SEED, title=f'an integer from 0 to {LARGEST_SEED}')
]
Count = Annotated[int, Meta(ge=1, title='an integer ≥ 1')]
CountOrZero = Annotated[int, Meta(ge=0, title='an integer ≥ 0')]
NumSteps = Annotated[
  int, Meta(ge=1, le=2**31 - 1, title='an integer from 1 to 2147483647')
]
Devices = Annotated[int, Meta(title='an integer ≥ 1, or -1')]
_OF_FLOAT32 = 3.4e38  # This is nearly the largest number that float32 can hold.
Positive = Annotated[
  float, Meta(gt=0.0, le=_OF_FLOAT32, title='a number > 0 and ≤ 3.4e+38')
]
NotNegative = Annotated[
  float, Meta(ge=0.0, le=_OF_FLOAT32, title='a number from 0 to 3.4e+38')
]
Share = Annotated[float, Meta(ge=0.0, le=1.0, title='a number from 0 to 1')]
PositiveShare = Annotated[float, Meta(gt=0.0, le=1.0, title='a number > 0 and ≤ 1')]
Decay = Annotated[float, Meta(ge=0.0, le=1 - 1e-6, title='a number from 0 to 0.999999')]
Name = Annotated[str, Meta(title='a registered name')]
Names = Annotated[tuple[str, ...], Meta(title='a tuple of registered names')]
Folder = Annotated[str, Meta(min_length=1, title='a path, or `gs://bucket/folder`')]
Digest = Annotated[
  str, Meta(pattern='^[0-9a-f]{16}$', title='text of 16 hexadecimal digits')
]
Patterns = Annotated[
  str, Meta(title='roles, `all`, or patterns of paths, joined by commas')
]
Factors = Annotated[
  dict[str, NotNegative],
  Meta(title='a dictionary from patterns of paths to numbers ≥ 0'),
]
Steps = Annotated[
  Literal['log'] | tuple[Count, ...], Meta(title='`log`, or a tuple of integers ≥ 1')
]


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
  """The base class of the records: frozen, with names for all fields and no others."""


def _check_unused(name: str, section: Section, field: str, why: str) -> None:
  """Raises UserError if a field that has no effect differs from its default."""
  defaults = {entry.name: entry.default for entry in msgspec.structs.fields(section)}
  if (value := getattr(section, field)) != defaults[field]:
    raise UserError(
      f'config.{name}.{field} is {value!r}; it must be {defaults[field]!r}, the '
      f'default, since {why}'
    )


class Named(Section, frozen=True):
  """The section `model` or `task`: the name of a class, and arguments that it checks.

  Attributes:
    name: The name under which the class is registered.
    arguments: The arguments of its constructor, as JSON holds them.
  """

  name: str
  arguments: dict[str, Any] = {}

  def content(self) -> dict[str, Any]:
    """Returns the section of a config: the name and the arguments side by side."""
    return {'name': self.name, **self.arguments}

  def text(self) -> str:
    """Returns the section as JSON; equal sections have the same text."""
    return json.dumps(self.content(), sort_keys=True)


class ObjectiveFields(Section, frozen=True):
  """What a run minimises."""

  name: Annotated[
    Name,
    Meta(
      description=(
        'What training minimises. `sampled` is the mean loss on prompts that are '
        'drawn anew at every step. `nll` is the mean negative log likelihood of the '
        'observed labels of such prompts, for models that predict a distribution '
        '(`model.head`). `rows` is for the model `tabular`: each prompt is cut at a '
        'random place, and the negative log likelihood is a mean over all rows after '
        'the cut. `exact` is the expected loss by a formula, for linear regression '
        'and models that theory covers.'
      ),
    ),
  ] = 'sampled'
  positions: Annotated[
    Literal['query', 'every'],
    Meta(
      description=(
        'Which predictions are trained. `query` is the loss of the query alone; '
        '`every` is the mean loss of all examples and the query. `every` needs a '
        'model that predicts them all in one pass: a token model with causal tokens, '
        'or a model with a method `predictions` or a learning rule.'
      ),
    ),
  ] = 'query'
  min_examples: Annotated[
    CountOrZero | None,
    Meta(
      description=(
        'Smallest number of examples in training, for positions = `query`. Each '
        'prompt is cut to a random number of examples, from this number to C, and the '
        'next example becomes its query. None keeps all prompts at C examples.'
      ),
    ),
  ] = None
  labels: Annotated[
    Literal['clean', 'observed'],
    Meta(
      description=(
        'What predictions are compared with in training. `clean` means the targets, '
        'such as labels without noise or the probabilities of classes. `observed` '
        'means labels that are drawn from the targets, as in most papers; gradients '
        'are then noisier. The expected losses with `clean` and with `observed` are '
        'least for the same predictions. The objectives `nll` and `rows` always use '
        'observed labels.'
      ),
    ),
  ] = 'clean'


class CurriculumFields(Section, frozen=True):
  """Which part of prompts and loops a model is trained on at first."""

  name: Annotated[
    Name,
    Meta(
      description=(
        'Name of the curriculum. `growing` starts training with few features, '
        'examples or loops, and adds more stage by stage (Garg et al., arXiv '
        '2208.01066). With the defaults of `features`, `examples` and `loops`, which '
        'are None, there is no curriculum.'
      ),
    ),
  ] = GROWING
  every: Annotated[
    Count,
    Meta(
      description='Number of steps of a stage.',
    ),
  ] = 2000
  features: Annotated[
    Count | None,
    Meta(
      description=(
        'Number of features in the first stage. The other features are set to 0. None '
        'means all features.'
      ),
    ),
  ] = None
  more_features: Annotated[
    Count,
    Meta(
      description='Number of features that each stage adds.',
    ),
  ] = 1
  examples: Annotated[
    CountOrZero | None,
    Meta(
      description=(
        'Number of examples in the longest context of the first stage, for positions '
        '= `every`. Prompts keep their length, and losses after more examples do not '
        'count. For causal models this is the same as shorter prompts. None means all '
        'examples.'
      ),
    ),
  ] = None
  more_examples: Annotated[
    Count,
    Meta(
      description='Number of examples that each stage adds.',
    ),
  ] = 2
  loops: Annotated[
    Count | None,
    Meta(
      description=(
        'Number of trained loops in the first stage, for models with several loops. '
        'None means all loops.'
      ),
    ),
  ] = None
  more_loops: Annotated[
    Count,
    Meta(
      description='Number of loops that each stage adds.',
    ),
  ] = 1

  def __post_init__(self) -> None:
    if self.name != GROWING:
      why = f'the curriculum {self.name!r} is a function of the step'
      for field in 'features', 'examples', 'loops':
        _check_unused('curriculum', self, field, why)
      for field in 'every', 'more_features', 'more_examples', 'more_loops':
        _check_unused('curriculum', self, field, why)
      return
    if not self.grows:
      why = 'config.curriculum.features, examples and loops are None'
      _check_unused('curriculum', self, 'every', why)
    for size in 'features', 'examples', 'loops':
      if getattr(self, size) is None:
        why = f'config.curriculum.{size} is None'
        _check_unused('curriculum', self, f'more_{size}', why)

  @property
  def grows(self) -> bool:
    """Whether the curriculum leaves anything out at any step."""
    sizes = self.features, self.examples, self.loops
    return self.name != GROWING or sizes != (None, None, None)


class OptimizerFields(Section, frozen=True):
  """How gradients change weights."""

  name: Annotated[
    Name,
    Meta(
      description=(
        'Name of the optimizer: `adam`, `adamw`, `lion`, `sgd`, `muon`, '
        '`schedule_free`, or one of your own.'
      ),
    ),
  ] = 'adam'
  learning_rate: Annotated[
    Positive,
    Meta(
      description='Learning rate at the peak of the schedule.',
    ),
  ] = 5e-3
  beta1: Annotated[
    Decay | None,
    Meta(
      description=(
        'Momentum. For `adam`, `adamw` and `muon` it is the decay of the moving '
        'average of gradients, and for `sgd` the decay of the sum of gradients. In '
        '`muon` it is for the matrices of hidden layers; NAdam, which trains the '
        'other weights, has 0.9. `lion` updates by the sign of beta1 · average + (1 − '
        'beta1) · gradient, with the moving average of gradients. `schedule_free` '
        'takes gradients at beta1 · model + (1 − beta1) · iterate, with the newest '
        'iterate of the inner optimizer; the model is the average of the iterates, '
        'and beta1 is at least 0.01. None means 0.9 for `adam`, `adamw`, `lion` and '
        '`schedule_free`, 0.95 for `muon`, and no momentum for `sgd`.'
      ),
    ),
  ] = None
  beta2: Annotated[
    Decay | None,
    Meta(
      description=(
        'Decay of the moving average of squared gradients. In `lion`, which has no '
        'such average, it is the decay of the moving average of gradients. `muon` '
        'uses it for the weights that NAdam trains. `sgd` has no beta2. None means '
        '0.99 for `lion` and 0.999 for all others.'
      ),
    ),
  ] = None
  weight_decay: Annotated[
    NotNegative | None,
    Meta(
      description=(
        'Strength of the weight decay. Each step subtracts learning rate × '
        '`weight_decay` × weight from the weights that decay. `adam` and `sgd` have '
        'no weight decay. None means 1e-4 for `adamw`, 1e-3 for `lion`, and 0 for '
        '`muon` and `schedule_free`.'
      ),
    ),
  ] = None
  decay: Annotated[
    Patterns,
    Meta(
      description=(
        'Which weights decay: roles (`hidden`, `embedding`, `vector`), `all`, or '
        'patterns of paths such as `*/norm`. The page parameters of the site lists '
        'roles and paths.'
      ),
    ),
  ] = 'hidden'
  scales: Annotated[
    Factors,
    Meta(
      description=(
        'Factors of the learning rate, by patterns of paths, such as '
        "`{'layers/*/value': 10.0}`. A factor of 0 freezes these weights."
      ),
    ),
  ] = {}
  schedule: Annotated[
    Literal['constant', 'cosine', 'linear', 'wsd'],
    Meta(
      description=(
        'Schedule of the learning rate after the warm-up. `wsd` (warm-up, stable, '
        'decay) is constant until it decays at the end.'
      ),
    ),
  ] = 'cosine'
  warmup_steps: Annotated[
    CountOrZero | None,
    Meta(
      description=(
        'Number of steps in which the learning rate rises linearly from 0. If '
        '`warmup_share` is set as well, the warm-up has the smaller of both lengths. '
        'None sets no length; if both are None, there is no warm-up.'
      ),
      extra=WITH_MORE_STEPS,
    ),
  ] = None
  warmup_share: Annotated[
    Share | None,
    Meta(
      description=(
        'Length of the warm-up as a share of `train.num_steps`, rounded down to whole '
        'steps. None sets no length.'
      ),
    ),
  ] = None
  decay_share: Annotated[
    PositiveShare,
    Meta(
      description=(
        'Length of the decay, as a share of `train.num_steps`. Only the schedule '
        '`wsd` uses it.'
      ),
    ),
  ] = 0.2
  final_share: Annotated[
    Share,
    Meta(
      description=(
        'Learning rate at the end of the decay, as a share of the peak. The last step '
        'is taken one step before this end: steps are counted from 0, so that it has '
        'the rate of the schedule at `train.num_steps` − 1.'
      ),
    ),
  ] = 0.0
  clip_norm: Annotated[
    Positive | None,
    Meta(
      description='Maximum global norm of the gradient. None disables clipping.',
    ),
  ] = None
  ema_decay: Annotated[
    Decay | None,
    Meta(
      description=(
        'Decay of an exponential moving average of the weights. The model that is '
        'evaluated, saved and loaded is then this average. None takes no average.'
      ),
    ),
  ] = None

  def __post_init__(self) -> None:
    if not all(self.decay.split(',')):
      raise UserError(
        f'config.optimizer.decay is {self.decay!r}; it must be roles, `all`, or '
        'patterns of paths, joined by commas'
      )
    if self.schedule == 'constant' and self.final_share != 0:
      raise UserError(
        f'config.optimizer.final_share is {self.final_share:g}; it must be 0 for the '
        "schedule 'constant', which has no decay"
      )
    # The variant `paper` sets 'constant' in any config, and keeps a decay that is set.
    if self.schedule not in ('wsd', 'constant'):
      why = f"config.optimizer.schedule is {self.schedule!r}, and only 'wsd' uses it"
      _check_unused('optimizer', self, 'decay_share', why)


class TrainFields(Section, frozen=True):
  """How long a run trains, from what, and in which batches."""

  num_steps: Annotated[
    NumSteps,
    Meta(
      description=(
        'Number of training steps. A larger number later continues the run.'
      ),
      extra=WITH_MORE_STEPS,
    ),
  ] = 5000
  init_from: Annotated[
    Folder | None,
    Meta(
      description=(
        'Folder of a run or a saved model from whose weights the run starts. It is '
        'kept as its full path, and its weights are read at step 0 alone. None starts '
        'from random weights.'
      ),
    ),
  ] = None
  init_from_step: Annotated[
    CountOrZero | None,
    Meta(
      description=(
        'Step of `train.init_from` that is read. None means the newest step, whose '
        'number is then kept.'
      ),
    ),
  ] = None
  init_from_digest: Annotated[
    Digest | None,
    Meta(
      description=(
        'Digest that the weights of `train.init_from` must have. None means that of '
        'the weights as they are now, which is then kept.'
      ),
    ),
  ] = None
  init_from_other: Annotated[
    bool,
    Meta(
      description=(
        'Whether `train.init_from` may be a model that has the same weights and '
        'computes another function of them, such as a transformer with another number '
        'of heads.'
      ),
    ),
  ] = False
  batch_size: Annotated[
    Count,
    Meta(
      description=(
        'Number of prompts in a step. It must be a multiple of `mesh.data` times '
        '`num_parts`.'
      ),
    ),
  ] = 2048
  num_parts: Annotated[
    Count,
    Meta(
      description=(
        'Number of parts into which a batch is split. They are computed one after the '
        'other, which saves memory. The prompts are the same for each number. What '
        'an objective itself draws is not: the cuts of `rows`, or what an objective '
        'of your own draws by its key.'
      ),
    ),
  ] = 1
  compute_dtype: Annotated[
    Literal['float32', 'bfloat16'],
    Meta(
      description=(
        'Type in which the model computes. Weights and the moments of the optimizer '
        'keep their types.'
      ),
    ),
  ] = 'float32'
  log_every: Annotated[
    Count,
    Meta(
      description=(
        'Number of steps from one log line to the next. All these steps run in one '
        'compiled call. A call also ends at each evaluation and at each save, so that '
        'these have log lines of their own.'
      ),
      extra=ALWAYS,
    ),
  ] = 50
  matmul_precision: Annotated[
    Literal['default', 'high', 'highest'],
    Meta(
      description='Precision of matrix products. `default` is bfloat16 on a TPU.',
    ),
  ] = 'highest'

  def __post_init__(self) -> None:
    if self.init_from is None:
      for field in 'init_from_step', 'init_from_digest', 'init_from_other':
        _check_unused('train', self, field, 'config.train.init_from is None')


class MeshFields(Section, frozen=True):
  """How a run is divided among devices and processes."""

  data: Annotated[
    Devices,
    Meta(
      description=(
        'Number of devices among which the batch is split. -1 takes all devices that '
        '`mesh.model` leaves. The prompts are the same for each number. What an '
        'objective itself draws may differ: the cuts of `rows`, or what an objective '
        'of your own draws by its key.'
      ),
      extra=ALWAYS,
    ),
  ] = -1
  model: Annotated[
    Count,
    Meta(
      description='Number of devices among which the heads are split.',
      extra=ALWAYS,
    ),
  ] = 1
  fsdp: Annotated[
    bool,
    Meta(
      description=(
        'Whether the weights and the state of the optimizer are split over the '
        'devices of `mesh.data`, too.'
      ),
      extra=ALWAYS,
    ),
  ] = False
  heartbeat_timeout: Annotated[
    Count,
    Meta(
      description=(
        'Number of seconds after which a process that sends nothing counts as lost.'
      ),
      extra=ALWAYS,
    ),
  ] = 100
  start_timeout: Annotated[
    Count,
    Meta(
      description='Number of seconds to wait for the other processes at the start.',
      extra=ALWAYS,
    ),
  ] = 300

  def __post_init__(self) -> None:
    if self.data != -1 and self.data < 1:
      raise UserError(
        f'config.mesh.data is {self.data}; it must be an integer ≥ 1, or -1 for all '
        'devices that config.mesh.model leaves'
      )


class CheckpointFields(Section, frozen=True):
  """Which steps are saved and kept."""

  every: Annotated[
    Count,
    Meta(
      description='Number of steps between checkpoints.',
      extra=ALWAYS,
    ),
  ] = 2500
  every_minutes: Annotated[
    Positive | None,
    Meta(
      description=(
        'Number of minutes after which a checkpoint is saved. The clock is read after '
        'each logged step, so that up to `train.log_every` steps more may pass. None '
        'sets no limit.'
      ),
      extra=ALWAYS,
    ),
  ] = None
  keep: Annotated[
    Count,
    Meta(
      description=(
        'Number of newest checkpoints that are kept. Points of a sweep that are '
        'trained side by side keep one, whatever it is.'
      ),
      extra=ALWAYS,
    ),
  ] = 3
  steps: Annotated[
    Steps | None,
    Meta(
      description=(
        'Steps whose checkpoints are kept in addition to the newest. `log` means 1, '
        '2, 3, 4, 6, 8, 11, 16, …, which are two steps for each factor of two. Steps '
        'beyond `train.num_steps` are ignored. None keeps no others.'
      ),
      extra=ALWAYS,
    ),
  ] = None


class EvalFields(Section, frozen=True):
  """What is measured during and after training."""

  seed: Annotated[
    Seed,
    Meta(
      description=(
        'Seed of the held-out prompts and of the prompts on which baselines are '
        'compared.'
      ),
    ),
  ] = 0
  every: Annotated[
    Count,
    Meta(
      description=(
        'Number of steps between evaluations on held-out prompts. The exact risk, '
        'where there is one, is computed at each log line.'
      ),
      extra=ALWAYS,
    ),
  ] = 1000
  num_batches: Annotated[
    CountOrZero,
    Meta(
      description=(
        'Number of held-out batches, each of `train.batch_size` prompts. With 0 there '
        'is no loss on held-out prompts; the exact risk and the metrics of '
        '`eval.metrics` are still measured.'
      ),
    ),
  ] = 32
  num_compared: Annotated[
    CountOrZero,
    Meta(
      description=(
        'Number of prompts on which the model and the baselines are compared at the '
        'end. They are the first prompts of `zoo.curve` with the seed `eval.seed`. '
        'With fewer than 2 prompts, or if `eval.num_batches` is 0, there is no '
        'comparison. If this number changes, a run or a point that has ended and was '
        'compared is compared again.'
      ),
      extra=ALWAYS,
    ),
  ] = 4096
  metrics: Annotated[
    Names,
    Meta(
      description=(
        'Names of metrics of your own, which are measured at each evaluation.'
      ),
      extra=ALWAYS,
    ),
  ] = ()

  def __post_init__(self) -> None:
    for metric in self.metrics:
      if self.metrics.count(metric) > 1:
        raise UserError(
          f'config.eval.metrics is {self.metrics!r}; it must name {metric!r} only once'
        )


class Run(Section, frozen=True, kw_only=True):
  """The config of a run, whose sections are records."""

  seed: Annotated[
    Seed,
    Meta(description='Seed of the initial weights and of the prompts of training.'),
  ] = 0
  model: Annotated[
    Named,
    Meta(
      description=(
        'Name of the model. The other fields of the section `model` are the arguments '
        'of its constructor, which checks them. The numbers of features, examples and '
        'outputs come from the task.'
      )
    ),
  ]
  task: Annotated[
    Named,
    Meta(
      description=(
        'Name of the task. The other fields of the section `task` are the fields of '
        'its class, which checks them. The variant `task=NAME` of a config replaces '
        'the whole section.'
      )
    ),
  ]
  objective: ObjectiveFields = ObjectiveFields()
  curriculum: CurriculumFields = CurriculumFields()
  optimizer: OptimizerFields = OptimizerFields()
  train: TrainFields = TrainFields()
  mesh: MeshFields = MeshFields()
  checkpoint: CheckpointFields = CheckpointFields()
  eval: EvalFields = EvalFields()
