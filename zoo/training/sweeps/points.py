"""Points of a sweep: the fields of a config in which they differ, and their names."""

import copy
import hashlib
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from flax.traverse_util import flatten_dict

from zoo.config.validation import (
  Config,
  check_fields,
  validate,
  with_full_path,
)
from zoo.core.errors import UserError, check_name

# Fields of a config, such as 'task.prior_mean', and their values.
Point = Mapping[str, object]
# The fields of some axes of a grid: one, or several whose values go together.
Fields = str | tuple[str, ...]

_OPTIONS = 'model.mixer_options'
_PATH, _SHA256 = 'task.path', 'task.sha256'  # of the file of the task `arrays`
_PLAIN = {'seed', 'optimizer.learning_rate'}  # numbers that fit any model and task


def grid(axes: Mapping[Fields, Sequence[Any]]) -> list[Point]:
  """All combinations of the values of some fields; the last field varies fastest.

  The values of a tuple of fields are tuples, and go together: `{('model.mixer',
  'model.hidden_features'): [('softmax', 137), ('delta', 128)], 'seed': [0, 1]}` gives
  four points. Raises UserError for a tuple of another length, and for a field that is
  given twice.
  """
  groups = [(fields,) if isinstance(fields, str) else fields for fields in axes]
  names = [name for fields in groups for name in fields]
  if twice := [name for name in names if names.count(name) > 1]:
    raise UserError(f'the field {twice[0]} is given twice')
  points = []
  for chosen in itertools.product(*axes.values()):
    point: dict[str, object] = {}
    for fields, key, value in zip(groups, axes, chosen, strict=True):
      values = (value,) if isinstance(key, str) else value
      if not isinstance(values, tuple | list) or len(values) != len(fields):
        raise UserError(
          f'{", ".join(fields)} go together, and one of their values is {value!r}; it '
          f'must have {len(fields)}, one for each field'
        )
      point |= dict(zip(fields, values, strict=True))
    points.append(point)
  return points


def at_point(config: Config, point: Point) -> Config:
  """The validated config with the fields of a point; raises UserError."""
  return validate(with_fields(config, point))


def of_all(config: Config, points: Sequence[Point]) -> Config:
  """The whole config of a sweep, without a file of the task if each point names one.

  Raises UserError if it is invalid.
  """
  if not points or any(_PATH not in point for point in points):
    check_fields(config)
    return with_full_path(config)
  check_fields(config)
  config = with_full_path(with_fields(config, {_PATH: points[0][_PATH]}))
  config.task.path = config.task.sha256 = None
  return config


def check_points(config: Config, points: Sequence[Point]) -> list[Config]:
  """The validated config of each point; UserError if there is none, or one twice."""
  configs = [with_fields(config, point) for point in points]
  # All but the file of the task is complete.
  configs = [
    with_full_path(point_config) if _PATH in point else point_config
    for point_config, point in zip(configs, points, strict=True)
  ]
  validated: set[str] = set()
  for point_config, point in zip(configs, points, strict=True):
    # A whole validation builds the model, for which these two fields do not matter.
    others = {name: value for name, value in point.items() if name not in _PLAIN}
    text = json.dumps(others, default=repr)
    (check_fields if text in validated else validate)(point_config)
    validated.add(text)
  if not points:
    raise UserError('there is no point to train; at least one is needed')
  names = [name_of(point) for point in points]
  if len(set(names)) < len(names):
    twice = next(i for i, name in enumerate(names) if name in names[:i])
    raise UserError(f'the point {points[twice]} is given twice')
  return configs


def with_fields(config: Config, point: Point) -> Config:
  config = copy.deepcopy(config)
  if _PATH in point and _SHA256 not in point and 'sha256' in config.task:
    config.task.sha256 = None  # of another file
  known = flatten_dict(
    config.to_dict(),
    keep_empty_nodes=True,
    is_leaf=lambda path, _: path == ('optimizer', 'scales'),
    sep='.',
  )
  for field, value in point.items():
    section, _, leaf = field.rpartition('.')
    if field.startswith('config.'):
      raise UserError(f'a sweep has the field {field!r}; leave out config.')
    # Of the options of mixers those that are set are known, and the mixers check all.
    if section != _OPTIONS or 'mixer_options' not in config.model:
      check_name('field of the config', field, known)
    try:
      with config.unlocked():
        (config[section] if section else config)[leaf] = value
    except TypeError:
      kind = type(known[field]).__name__
      raise UserError(
        f'config.{field} cannot be {value!r}; it must be of the type {kind}, and '
        'values of a sweep are written 1,2,3 or 1..3'
      ) from None
  return config


def name_of(point: Point) -> str:
  """A folder name: the fields and values, or their digest if they are unwieldy.

  Points with equal numbers have one name, whether these are written 0 or 0.0.
  """
  return name_as_written({field: _plain(value) for field, value in point.items()})


def name_as_written(point: Point) -> str:
  """The fields and values of a point in one word, or its digest."""
  name = ','.join(f'{field}={json.dumps(value)}' for field, value in point.items())
  name = name.replace('"', '')
  if re.fullmatch(r'[\w.,=+-]{1,100}', name):
    return name
  return hashlib.sha256(name.encode()).hexdigest()[:16]


def _plain(value: object) -> object:
  """A value in which each float that is written with .0 at its end is an int."""
  if isinstance(value, list | tuple):
    return [_plain(element) for element in value]
  return int(value) if isinstance(value, float) and f'{value}'[-2:] == '.0' else value
