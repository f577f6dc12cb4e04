"""The type, range and meaning of each field of a config, and defaults of missing ones.

The sections `model` and `task` have the arguments of the class that they name, as its
constructor describes them. configs/common.py repeats the defaults for readers;
tests/test_task_configs.py compares them. Importing this module does not import the
trainer.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import inspect
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from flax.traverse_util import flatten_dict
from ml_collections import ConfigDict, FieldReference
from ml_collections.config_dict import placeholder

from zoo.config.curricula import GROWING, curricula
from zoo.config.optimizers import SCHEDULES, optimizers
from zoo.core import registry, values
from zoo.core.errors import UserError, check_count, check_name, check_number
from zoo.core.registry import check_registered
from zoo.core.values import choice, number, size, static, truth
from zoo.tasks.arrays import checksum, full_path
from zoo.tasks.mixture import PARTS


def _check_path(name: str, given: object) -> object:
  if not isinstance(given, str) or not given:
    raise UserError(f'{name} is {given!r}; it must be a folder with a checkpoint')
  return given


def _check_axis(name: str, given: object) -> object:
  return given if given == -1 else check_count(f'{name} (-1 for all left)', given)


def _check_decay(name: str, given: object) -> object:
  if not isinstance(given, str) or not all(given.split(',')):
    raise UserError(
      f"{name} is {given!r}; it must be 'hidden', 'all', or other roles or patterns of "
      'paths, joined by commas'
    )
  return given


def _check_scales(name: str, given: object) -> object:
  if not isinstance(given, Mapping):
    raise UserError(
      f'{name} is {given!r}; it must have factors by pattern, such as '
      "{'layers/*/value': 10.0}"
    )
  for pattern, factor in given.items():
    check_number(f'{name}[{pattern!r}]', factor, minimum=0.0)
  return given


_ALMOST_ONE = 1 - 1e-6


@dataclasses.dataclass
class Top:
  """Outside of the sections."""

  seed: int = size(
    default=0,
    minimum=0,
    maximum=2**32 - 1,
    about='Of the initial weights and the prompts of training.',
  )


@dataclasses.dataclass
class Objective:
  """What training minimises."""

  name: str = choice(
    ('sampled', 'exact', 'low_variance'),
    default='sampled',
    about='The loss on fresh prompts at every step; the risk itself; or, for '
    '`deep_lsa`, the loss on fresh contexts with the query integrated out.',
  )
  positions: str = choice(
    ('query', 'every'),
    default='query',
    about='The loss is that of the query, or of every example.',
  )
  min_examples: int | None = size(
    default=None,
    minimum=0,
    about='For the loss of the query: each prompt of a batch is cut to a number of '
    'examples of its own, drawn from this to C, and the next is its query; None: to C.',
  )


@dataclasses.dataclass
class Optimizer:
  """The optimizer; all its other options are those of optax."""

  name: str = static(
    default='adam',
    check=lambda name, given: check_registered(name, given, optimizers.names()),
    holds=str,
    allowed=', '.join(optimizers.names()),
    about='The optimizer, one of these or of your own; `muon` trains vectors with the '
    'NAdam of optax.',
  )
  learning_rate: float = number(
    default=5e-3, above=0.0, about='The peak of the schedule.'
  )
  beta1: float | None = number(
    default=None,
    minimum=0.0,
    maximum=_ALMOST_ONE,
    about='Decay of the mean of gradients, which is the momentum of `sgd` and `muon` '
    'and the interpolation of `schedule_free`; None: the default of optax.',
  )
  beta2: float | None = number(
    default=None,
    minimum=0.0,
    maximum=_ALMOST_ONE,
    about='Decay of the mean of squared gradients, of `lion` that of its momentum; '
    'None: the default of optax.',
  )
  weight_decay: float | None = number(
    default=None,
    minimum=0.0,
    about='Times the learning rate, the share of each weight that a step takes away; '
    'None: the default of optax. `adam` and `sgd` have none.',
  )
  decay: str = static(
    default='hidden',
    check=_check_decay,
    holds=str,
    allowed='roles, all, or patterns of paths',
    about='The weights that decay, joined by commas: roles (`hidden`, `embedding`, '
    '`vector`), `all`, and patterns of paths, such as `*/norm`.',
  )
  scales: Mapping[str, float] | None = static(
    default=None,
    check=_check_scales,
    holds=dict,
    allowed='factors ≥ 0 by pattern',
    about='Factors of the learning rate by patterns of paths, such as '
    "`{'layers/*/value': 10.0}`; they are multiplied where several match, and 0 "
    'freezes.',
  )
  schedule: str = choice(
    SCHEDULES,
    default='cosine',
    about='After the warm-up; `cosine` and `linear` decay up to the last step, `wsd` '
    'during the last `decay_share` of the steps.',
  )
  warmup_steps: int = size(
    default=0,
    minimum=0,
    about='Steps of a linear warm-up from 0; at most `train.num_steps`.',
  )
  warmup_share: float | None = number(
    default=None,
    minimum=0.0,
    maximum=1.0,
    about='The warm-up as a share of `train.num_steps`, in place of `warmup_steps`.',
  )
  decay_share: float = number(
    default=0.2,
    above=0.0,
    maximum=1.0,
    about='The share of `train.num_steps` in which `wsd` decays.',
  )
  final_share: float = number(
    default=0.0,
    minimum=0.0,
    maximum=1.0,
    about='The learning rate at the end of a decay, as a share of the peak.',
  )
  clip_norm: float | None = number(
    default=None,
    above=0.0,
    about='Norm at which the whole gradient is clipped; None: off.',
  )
  ema_decay: float | None = number(
    default=None,
    minimum=0.0,
    maximum=_ALMOST_ONE,
    about='The model that is evaluated and saved is an exponential average over steps '
    'with this decay; None: off.',
  )


@dataclasses.dataclass
class Train:
  """The steps of training."""

  num_steps: int = size(
    default=5000,
    maximum=2**31 - 1,
    about='Steps of training; it may be raised later, to go on.',
  )
  init_from: str | None = static(
    default=None,
    check=_check_path,
    holds=str,
    allowed='a folder',
    about='A run, a checkpoint or a saved model from whose weights training starts; '
    'None: from random ones.',
  )
  init_from_other: bool = truth(
    default=False,
    about='Whether `init_from` may be a model that computes something else from the '
    'same weights, such as one of another number of heads.',
  )
  batch_size: int = size(
    default=2048, about='Prompts of a step; a multiple of `mesh.data · num_parts`.'
  )
  num_parts: int = size(
    default=1,
    about='Parts of a batch, computed one after the other to save memory.',
  )
  compute_dtype: str = choice(
    ('float32', 'bfloat16'),
    default='float32',
    about='The type that models are computed in; weights and moments are float32.',
  )
  log_every: int = size(
    default=50, about='Steps between log lines, which one call of the loop runs.'
  )
  matmul_precision: str = choice(
    ('default', 'high', 'highest'),
    default='highest',
    about='Precision of matrix products; the default of a TPU is bfloat16.',
  )


@dataclasses.dataclass
class Mesh:
  """The devices."""

  data: int = static(
    default=-1,
    check=_check_axis,
    holds=int,
    allowed='≥ 1, or −1',
    about='Devices that share the batch; −1: all that remain.',
  )
  model: int = size(default=1, about='Devices that share the heads.')
  slices: int = size(
    default=1,
    about='Slices of devices, each with its own network; a divisor of `mesh.data`.',
  )
  fsdp: bool = truth(
    default=False,
    about='Whether weights and optimizer state are also split over `data`.',
  )
  # The default of JAX is 100 s, so that a whole pod would wait that long for a lost
  # process. A thread of its own sends the heartbeats, however busy the process is.
  heartbeat_timeout: int = size(
    default=10, about='Seconds without a heartbeat after which a process is lost.'
  )
  start_timeout: int = size(
    default=300, about='Seconds that processes wait for each other at the start.'
  )


@dataclasses.dataclass
class Checkpoint:
  """What is saved while a run trains."""

  every: int = size(default=2500, about='Steps between two checkpoints.')
  every_minutes: float | None = number(
    default=None,
    above=0.0,
    about='The longest time in minutes between two checkpoints; None: no limit.',
  )
  keep: int = size(default=3, about='The newest checkpoints that are kept.')
  keep_best: bool = truth(
    default=False,
    about='Whether the saved step with the lowest risk is kept as well, in `best`.',
  )
  patience: float = number(
    default=10.0,
    above=0.0,
    about='Minutes to wait for a bucket that is out of reach.',
  )


@dataclasses.dataclass
class Eval:
  """Evaluation; the exact risk is computed at every logged step."""

  every: int = size(default=1000, about='Steps between two evaluations.')
  num_batches: int = size(
    default=32,
    minimum=0,
    about='Held-out batches of `train.batch_size` prompts; 0: only the exact risk.',
  )
  num_compared: int = size(
    default=4096,
    minimum=0,
    about='Further prompts, at most `num_batches · train.batch_size`, on which the '
    'trained model is compared with the baselines of the task; 0: no comparison.',
  )
  seed: int = size(
    default=0,
    minimum=0,
    maximum=2**32 - 1,
    about='Of the held-out prompts and of those of comparisons, which are the same '
    'for every `seed` of training.',
  )


@dataclasses.dataclass
class Curriculum:
  """What training starts with (Garg et al., arXiv 2208.01066); None: everything."""

  name: str = static(
    default=GROWING,
    check=lambda name, given: check_registered(name, given, curricula.names()),
    holds=str,
    allowed=GROWING,
    about='What is trained on grows as the fields below say, or as a function of your '
    'own says.',
  )
  every: int = size(default=2000, about='Steps from one stage to the next.')
  features: int | None = size(
    default=None, about='Features of the first stage; further ones are 0.'
  )
  more_features: int = size(default=1, about='Features that each stage adds.')
  examples: int | None = size(
    default=None,
    minimum=0,
    about='Longest context of the first stage, in examples, for `positions=every`: '
    'losses after more do not count, which for causal models is as if prompts were '
    'shorter.',
  )
  more_examples: int = size(default=2, about='Examples that each stage adds.')
  loops: int | None = size(
    default=None, about='Trained loops of the first stage, of a looped transformer.'
  )
  more_loops: int = size(default=1, about='Loops that each stage adds.')


SECTIONS = {
  'objective': Objective,
  'curriculum': Curriculum,
  'optimizer': Optimizer,
  'train': Train,
  'mesh': Mesh,
  'checkpoint': Checkpoint,
  'eval': Eval,
}
# The sections that name a class, and what other sections than `model` give to a model.
CLASSES = {'model': registry.models, 'task': registry.tasks}
GIVEN = 'num_features', 'context_length', 'num_outputs', 'rngs'

if TYPE_CHECKING:

  class Section(Protocol):
    """A section that names a class; its other fields are the arguments."""

    name: str

    def __getattr__(self, field: str) -> Any: ...
    def __setattr__(self, field: str, value: Any) -> None: ...
    def __contains__(self, field: str) -> bool: ...
    def get(self, field: str, default: Any = None) -> Any: ...
    def to_dict(self) -> dict[str, Any]: ...
    def update(self, fields: Mapping[str, object], /) -> None: ...

  class Config(Protocol):
    """The config of a training run, an ml_collections.ConfigDict."""

    seed: int
    model: Section
    task: Section
    objective: Objective
    curriculum: Curriculum
    optimizer: Optimizer
    train: Train
    mesh: Mesh
    checkpoint: Checkpoint
    eval: Eval

    def __getitem__(self, field: str) -> Any: ...
    def __setitem__(self, field: str, value: Any) -> None: ...
    def to_dict(self) -> dict[str, Any]: ...
    def lock(self) -> Any: ...
    def unlocked(self) -> contextlib.AbstractContextManager[None]: ...

else:
  Config = Section = ConfigDict


class Field(NamedTuple):
  """A field of a config: its default, EMPTY if there is none, and what it holds."""

  default: object
  kind: values.Kind


EMPTY = inspect.Parameter.empty


@functools.cache
def fields() -> Mapping[str, Field]:
  """The fields outside of `model` and `task` by name, such as `train.num_steps`."""
  found = described(Top)
  for name, cls in SECTIONS.items():
    found |= {f'{name}.{field}': each for field, each in described(cls).items()}
  return found


def described(cls: type) -> dict[str, Field]:
  """The fields of a section, or the arguments of a class that a config can name.

  The arguments of a user's class need no description.
  """
  kinds, nothing = values.kinds(cls), values.Kind(is_leaf=False)
  return {
    name: Field(parameter.default, kinds.get(name, nothing))
    for name, parameter in registry.parameters(cls).items()
  }


def arguments(name: str, chosen: str) -> dict[str, Field]:
  """The fields of the section `model` or `task` for a class; raises UserError."""
  if chosen == 'mixture' and name == 'task':  # its tasks are sections themselves
    sections = values.Kind(is_leaf=False, holds=tuple)
    return {
      'parts': Field(PARTS, sections),
      'weights': Field(None, sections),
      'num_features': Field(5, values.Kind(is_leaf=False, holds=int)),
      'context_length': Field(10, values.Kind(is_leaf=False, holds=int)),
    }
  given = GIVEN if name == 'model' else ()
  found = described(CLASSES[name].get(chosen))
  return {field: each for field, each in found.items() if field not in given}


def section(name: str, chosen: str) -> Section:
  """The section `model` or `task` with the defaults of a class; raises UserError.

  An argument without a default is None.
  """
  config = _section(arguments(name, chosen))
  config.name = chosen
  return config


def default_config() -> Any:
  """A config of all defaults, unlocked, whose model and task are not yet chosen."""
  config = _section(described(Top))
  for name in CLASSES:
    config[name] = ConfigDict({'name': 'none'})
  for name, cls in SECTIONS.items():
    config[name] = _section(described(cls))
  return config


def _section(described: Mapping[str, Field]) -> Any:
  config = ConfigDict()
  for name, (default, kind) in described.items():
    if kind.holds is dict:
      config[name] = ConfigDict()
    elif default is None or default is EMPTY:
      config[name] = placeholder(kind.holds)
    elif kind.is_array:  # a number, or a list of them
      config[name] = FieldReference(default, field_type=object)
    else:
      config[name] = default
  return config


def check_fields(config: Config) -> None:
  """Checks each field by itself, but for the arguments of the model and the task.

  A field that the config lacks has its default, but for the names of the two. Raises
  UserError for a field that is wrong, and for anything but a ConfigDict.
  """
  if not isinstance(config, ConfigDict):
    raise UserError(
      f'the config is a {type(config).__name__}; it must be a ConfigDict, such as '
      "configs.get_config('yq_lsa')"
    )
  given, known = _flat(config), fields()
  for name in CLASSES:
    if f'{name}.name' not in given:
      raise UserError(f"the config has no field '{name}.name'; it is needed")
  for name, content in sorted(given.items()):
    if name.partition('.')[0] in CLASSES:
      continue
    default, kind = known[check_name('field of the config', name, known)]
    if kind.check is not None and not (content is None and default is None):
      kind.check(f'config.{name}', content)


def _flat(config: Config) -> dict[str, Any]:
  """The fields by name, of which one may hold a dictionary."""
  return flatten_dict(
    config.to_dict(),
    is_leaf=lambda path, _: path == ('optimizer', 'scales'),
    sep='.',
  )


def complete(config: Config) -> Config:
  """The config with the defaults of the fields that it lacks, but for arguments.

  Configs of earlier versions lack the fields that were added since. An argument that
  can be found, such as the full path of a file and its checksum, is. Raises UserError
  as `check_fields` does.
  """
  check_fields(config)
  given = _flat(config)
  lacking = {
    name: default for name, (default, _) in fields().items() if name not in given
  } | _found(config)
  if not lacking:
    return config
  whole: Any = copy.deepcopy(config)
  with whole.unlocked():
    for name, content in lacking.items():
      section, _, field = name.rpartition('.')
      if section and section not in whole:
        whole[section] = ConfigDict()
      holder = whole[section] if section else whole
      holder[field] = content
  return whole


def _found(config: Config) -> dict[str, object]:
  """What is to be found, by name, and differs from a config; raises UserError."""
  found: dict[str, object] = {}
  for name, entries in CLASSES.items():
    section = config.to_dict()[name]
    if section['name'] not in entries.names():
      continue
    if name == 'task' and section['name'] == 'arrays':
      path = full_path(section.get('path'))
      sha256 = section.get('sha256') or checksum(path)
      for field, one in ('path', path), ('sha256', sha256):
        if section.get(field) != one:
          found[f'task.{field}'] = one
  return found


def to_json(config: Any) -> str:
  """The config as JSON text; tuples become lists."""
  return json.dumps(config.to_dict(), indent=2, sort_keys=True, default=_plain)


def differences(
  saved: Mapping[str, Any], config: Any, resumes: bool = True
) -> list[str]:
  """The fields in which a config differs from a saved one, with both values.

  Fields that one of them lacks have their defaults. If the config `resumes` the saved
  one, those are left out that it may change: the mesh, the minutes between checkpoints
  and of patience, the number of prompts to compare on, and more steps of training.
  """
  one, other = (
    _defaults(each) | flatten_dict(each, sep='.')
    for each in (saved, json.loads(to_json(config)))
  )
  free = _CHANGE_NO_TRAINING if resumes else ()
  before, now = (each.get('train.num_steps') for each in (one, other))
  if resumes and isinstance(before, int) and isinstance(now, int) and now > before:
    free += _CHANGE_WITH_THE_END
  return [
    f'{name} ({one.get(name, "absent")!r} there, {other.get(name, "absent")!r} here)'
    for name in sorted(one.keys() | other.keys())
    if not (name.startswith('mesh.') and resumes)
    and name not in free
    and one.get(name, 'absent') != other.get(name, 'absent')
  ]


# Fields of a model that change how it is trained or where its weights start, but not
# what it computes from them.
# `hidden_features` shows in the shapes, which are compared, too.
_SAME_FUNCTION = 'hidden_features', 'init_scale', 'num_trained_loops', 'remat'
_OPTIONS = 'mixer_options'


def other_function(saved: Config, config: Config) -> list[str]:
  """The fields in which the model of a config computes otherwise than a saved one.

  Both have the same arrays. Fields that one of them lacks have their defaults.
  """
  one, other = map(_arguments_of, (saved, config))
  return [
    f'model.{name} ({one.get(name, "absent")!r} there, {other.get(name, "absent")!r} '
    'here)'
    for name in sorted(one.keys() | other.keys())
    if name not in _SAME_FUNCTION
    and one.get(name, 'absent') != other.get(name, 'absent')
  ]


def _arguments_of(config: Config) -> dict[str, Any]:
  """The arguments of a config's model and its mixers by name, as JSON holds them."""
  given = json.loads(to_json(config.model))
  known = {
    name: each.default for name, each in arguments('model', given['name']).items()
  }
  takes_mixers = _OPTIONS in known
  mixers = given.get('mixer', known.get('mixer')) or () if takes_mixers else ()
  for mixer in mixers.split(',') if isinstance(mixers, str) else mixers:
    for name, parameter in registry.mixers.parameters(mixer).items():
      known[f'{_OPTIONS}.{name}'] = parameter.default
  given |= {f'{_OPTIONS}.{k}': v for k, v in (given.pop(_OPTIONS, None) or {}).items()}
  with_default = {name: one for name, one in known.items() if one is not EMPTY}
  return registry.recorded({}, with_default).values | given


# Fields that may change when a run is resumed, besides the section `mesh`.
_CHANGE_NO_TRAINING = (
  'checkpoint.every_minutes',
  'checkpoint.patience',
  'eval.num_compared',
)
# Those that may change if a run goes on for more steps than it had; a config may set
# the warm-up by the number of steps.
_CHANGE_WITH_THE_END = 'train.num_steps', 'optimizer.warmup_steps'


def _defaults(config: Mapping[str, Any]) -> dict[str, Any]:
  """The default of each field of a training run's config, as JSON holds it."""
  if not {'objective', 'optimizer', 'train'} <= config.keys():
    return {}  # it is damaged, or of something else
  found = dict(fields())
  for name, entries in CLASSES.items():
    chosen = config[name].get('name') if isinstance(config.get(name), dict) else None
    if chosen in entries.names():
      own = arguments(name, chosen)
      found |= {f'{name}.{field}': each for field, each in own.items()}
  known = {name: each.default for name, each in found.items()}
  with_default = {name: one for name, one in known.items() if one is not EMPTY}
  # Leaves out what JSON cannot hold, which a user's class may have.
  return registry.recorded({}, with_default).values


def _plain(value: Any) -> Any:
  return value.tolist()  # NumPy arrays and scalars, as a covariance in a config may be
