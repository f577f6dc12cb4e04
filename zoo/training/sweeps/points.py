"""Points of a sweep: the fields of a config in which they differ, and their names."""

import dataclasses
import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import msgspec
import numpy as np

from zoo.config.building import with_full_path
from zoo.config.read import Readable, read, to_json, with_fields
from zoo.config.run import Run
from zoo.core.errors import UserError, in_one_line
from zoo.core.protocols import Task
from zoo.training.experiment import Experiment, build, validate

# A point has the fields of a config that it sets, such as 'task.prior_mean', and their
# values.
Point = Mapping[str, object]
# An axis of a grid has one field, or several fields whose values go together.
Fields = str | tuple[str, ...]

# The task `arrays` reads the file of this path and checks its content.
_PATH, _SHA256 = 'task.path', 'task.sha256'
_SOURCE = 'train.init_from'  # Two other fields say which weights it had.


def grid(axes: Mapping[Fields, Sequence[Any]]) -> list[Point]:
  """Returns all combinations of the values of some fields.

  The last field varies fastest.

  Args:
    axes: The values of each field. The values of a tuple of fields are tuples, and go
      together.

  Returns:
    A point for each combination.

  Raises:
    UserError: If the axes are not a dictionary whose keys are text or tuples of text,
      if the values of a field are no list, if a tuple of values has another length than
      its fields, or if a field is given twice.

  Example:
    >>> wide = {('model.mixer', 'model.width'): [('softmax', 64), ('delta', 48)]}
    >>> points = zoo.training.grid({**wide, 'seed': [0, 1]})
    >>> points[0]
    {'model.mixer': 'softmax', 'model.width': 64, 'seed': 0}
    >>> len(points)
    4
  """
  if not isinstance(axes, Mapping):
    raise UserError(
      f'the axes of a grid are a {type(axes).__name__}; they must be a dictionary of '
      "fields and lists of values, such as {'seed': [0, 1]}"
    )
  fields_of_axes = [(axis,) if isinstance(axis, str) else axis for axis in axes]
  for fields in fields_of_axes:
    if not (isinstance(fields, tuple) and all(isinstance(f, str) for f in fields)):
      raise UserError(
        f'a field of the grid is {fields!r}; it must be text, or a tuple of texts'
      )
  names = [name for fields in fields_of_axes for name in fields]
  if twice := [name for name in names if names.count(name) > 1]:
    raise UserError(f'the field {twice[0]} is given twice')
  for fields, values in zip(fields_of_axes, axes.values(), strict=True):
    if isinstance(values, str) or not isinstance(values, Iterable):
      raise UserError(
        f'the values of {", ".join(fields)} are {values!r}; they must be a list'
      )
  points = []
  for chosen in itertools.product(*axes.values()):
    point: dict[str, object] = {}
    for axis, fields, value in zip(axes, fields_of_axes, chosen, strict=True):
      values = (value,) if isinstance(axis, str) else value
      if not isinstance(values, tuple | list) or len(values) != len(fields):
        raise UserError(
          f'{", ".join(fields)} go together, and one of their values is {value!r}; it '
          f'must have {len(fields)}, one for each field'
        )
      point |= dict(zip(fields, values, strict=True))
    points.append(point)
  return points


def at_point(config: Readable, point: Point) -> Run:
  """Returns the validated config with the fields of a point.

  Args:
    config: A config, which is not changed.
    point: The fields to set.

  Returns:
    The config of the point, as a record.

  Raises:
    UserError: If a field is unknown, or if the config with these fields is invalid.

  Example:
    >>> config = zoo.default_config('yq_lsa')
    >>> point = zoo.training.sweeps.at_point(config, {'task.noise_std': 0.5})
    >>> point.task.arguments['noise_std']
    0.5
  """
  (point,) = without_arrays([point])
  return validate(config_at(read(config), point))


def config_at(config: Run, point: Point) -> Run:
  """Returns the config with the fields of a point; its experiment is not built.

  Raises:
    UserError: If a field is unknown, or if a value has another type or range.
  """
  fields = dict(point)
  if _PATH in point and _SHA256 not in point and 'sha256' in config.task.arguments:
    fields[_SHA256] = None  # The config has the checksum of another file.
  if _SOURCE in point:
    fields |= {f'{_SOURCE}_{name}': None for name in ('step', 'digest')}
    fields |= point  # The point may name the step itself.
  return with_fields(config, fields)


def without_arrays(points: Sequence[Point]) -> list[Point]:
  """Returns points with lists and Python numbers in place of NumPy's and JAX's.

  Raises:
    UserError: If the points are not a list of dictionaries whose keys are text.
  """

  def plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic | jax.Array):
      return value.tolist()
    if isinstance(value, list | tuple):
      return type(value)(plain(element) for element in value)
    return value

  points = _listed(points)
  for point in points:
    if not isinstance(point, Mapping) or not all(isinstance(key, str) for key in point):
      raise UserError(
        f'a point of the sweep is {in_one_line(repr(point), 80)}; it must be a '
        "dictionary of fields and values, such as {'seed': 1}"
      )
  return [{field: plain(value) for field, value in point.items()} for point in points]


def _listed(points: Any) -> list[Point]:
  """Returns the points as a list; raises UserError for a dictionary or a text."""
  if not isinstance(points, Iterable) or isinstance(points, str | Mapping):
    raise UserError(
      f'the points of the sweep are a {type(points).__name__}; they must be a list, '
      'such as zoo.training.grid makes of a dictionary of lists'
    )
  return [*points]


def config_of_all(config: Run, points: Sequence[Point], task: Task) -> Run:
  """Returns the config that a sweep has in its own folder.

  It has the full path of the data of the task. If each point names a file, it names
  none.

  Args:
    config: The config that all points share.
    points: The points.
    task: The task of one of the points.
  """
  if all(_PATH in point for point in points):
    return with_fields(config, {_PATH: None, _SHA256: None})
  return with_full_path(config, task)


def build_points(config: Run, points: Sequence[Point]) -> list[Experiment]:
  """Returns the experiment of each point.

  Points that differ only in the seed and the learning rate have the same task, model,
  objective and mesh, which are built once.

  Raises:
    UserError: If a config is invalid, if there is no point, or if one is given twice.
  """
  if not points:
    raise UserError('there is no point to train; at least one is needed')
  names = [name_of(point) for point in points]
  if len(set(names)) < len(names):
    twice = next(i for i, name in enumerate(names) if name in names[:i])
    raise UserError(f'the point {points[twice]} is given twice')
  built: dict[str, Experiment] = {}
  experiments = []
  for point in points:
    own = config_at(config, point)
    alike = to_json(_with_numbers(own, 0, 1.0))
    if alike not in built:
      built[alike] = build(own)
    experiment = built[alike]
    of_point = _with_numbers(experiment.config, own.seed, own.optimizer.learning_rate)
    experiments.append(dataclasses.replace(experiment, config=of_point))
  return experiments


def _with_numbers(config: Run, seed: int, learning_rate: float) -> Run:
  """Returns the config with another seed and another learning rate, both valid."""
  replace = msgspec.structs.replace
  optimizer = replace(config.optimizer, learning_rate=learning_rate)
  return replace(config, seed=seed, optimizer=optimizer)


def name_of(point: Point) -> str:
  """Returns the name of a point's folder: its fields and values, or their digest.

  Points with equal numbers have one name, whether these are written 0 or 0.0, and
  whatever the order of the fields. The name is a digest if it would be longer than 100
  letters or would not suit a folder.
  """
  fields = [f'{field}={json.dumps(_plain(point[field]))}' for field in sorted(point)]
  name = ','.join(fields).replace('"', '')
  if re.fullmatch(r'[\w.,=+-]{1,100}', name):
    return name
  return hashlib.sha256(name.encode()).hexdigest()[:16]


def _plain(value: object) -> object:
  """Returns a value in which each float that ends with .0 when written is an int."""
  if isinstance(value, list | tuple):
    return [_plain(element) for element in value]
  if isinstance(value, float) and str(value).endswith('.0'):
    return int(value)
  return value
