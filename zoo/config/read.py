"""Makes records of configs, and JSON of records.

`read` is the one place where a config is read, whether it comes from a file, from
flags, from Python or from a saved run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from types import NoneType, UnionType
from typing import (
  Any,
  Literal,
  NamedTuple,
  TypeAlias,
  Union,
  get_args,
  get_origin,
  get_type_hints,
)

import msgspec
from ml_collections import ConfigDict

from zoo.config.run import Named, Run, Section
from zoo.core.errors import UserError, check_name, in_one_line, unknown_name

# What a user may give: a `ConfigDict` or another mapping with the sections of a run.
Readable: TypeAlias = ConfigDict | Mapping[str, Any] | Run


class Field(NamedTuple):
  """A field of a config.

  Attributes:
    default: The default. A field whose default is None may be set to None.
    kind: The type of its values other than None.
    words: What it may hold, in words.
    description: What it means.
    may_change: Whether a run that goes on in its folder may have another value: never,
      always, or only if it goes on for more steps than it had.
  """

  default: Any
  kind: type
  words: str
  description: str
  may_change: Literal['never', 'always', 'with more steps']


def _fields_of(record: type[Section], prefix: str = '') -> Iterator[tuple[str, Field]]:
  """Yields the fields of a record by name, and those of the records in it."""
  hints = get_type_hints(record, include_extras=True)
  for entry in msgspec.structs.fields(record):
    hint, name = hints[entry.name], f'{prefix}{entry.name}'
    if isinstance(hint, type):  # It is the record of a section.
      yield from _fields_of(hint, f'{name}.')
      continue
    about = hint.__metadata__[-1]
    kind, words = _kind_and_words(hint)
    if kind is Named:
      name, kind, words = f'{name}.name', str, f'the name of a {name}'
    default = None if entry.required else entry.default
    if entry.default_factory is not msgspec.NODEFAULT:
      default = entry.default_factory()
    may_change = (about.extra or {}).get('may_change', 'never')
    yield name, Field(default, kind, words, about.description, may_change)


def _kind_and_words(hint: Any) -> tuple[type, str]:
  """Returns the type of a field's values other than None, and its range in words.

  Args:
    hint: The type of the field, `Annotated` with a description. The type in it may be
      `Annotated` with a title, which has the words.
  """
  kind, about = hint.__origin__, hint.__metadata__
  if NoneType in get_args(kind):
    (kind,) = (option for option in get_args(kind) if option is not NoneType)
    kind, about = getattr(kind, '__origin__', kind), getattr(kind, '__metadata__', ())
  if get_origin(kind) is Literal:
    return str, ', '.join(f'`{name}`' for name in get_args(kind))
  words = next((meta.title for meta in about if meta.title), '`True` or `False`')
  if get_origin(kind) in (Union, UnionType):
    return object, words
  return get_origin(kind) or kind, words


# Each field of a run by its name, such as 'train.num_steps'. The arguments of the model
# and the task are not among them.
FIELDS: dict[str, Field] = dict(_fields_of(Run))


def may_change(more_steps: bool) -> set[str]:
  """Returns the fields in which a run that goes on may differ from its saved config.

  Args:
    more_steps: Whether it goes on for more steps than it had.
  """
  reasons = {'always', 'with more steps'} if more_steps else {'always'}
  return {name for name, field in FIELDS.items() if field.may_change in reasons}


def read(config: Readable) -> Run:
  """Returns the record of a config.

  Sections and fields that are missing have their defaults, except for the model and the
  task. Tuples and arrays among the arguments of these become lists, as JSON has them: a
  run that goes on in its folder reads the same arguments as a new one.

  Args:
    config: A `ConfigDict`, such as `zoo.default_config` returns, or another mapping
      with the sections of a run. A record is returned as it is.

  Raises:
    UserError: If a field is unknown, has another type or is out of its range, if JSON
      cannot hold a value, or if there is no model or task. The message names the field,
      its value, and what is allowed.

  Example:
    >>> from zoo.config.read import read
    >>> read(zoo.default_config('yq_lsa')).train.batch_size
    2048
  """  # noqa: DOC501 (`_mistake` returns a UserError)
  if isinstance(config, Run):
    return config
  content = to_content(config)
  sections = {name: _named(name, content.get(name)) for name in ('model', 'task')}
  try:
    return msgspec.convert({**content, **sections}, Run)
  except msgspec.ValidationError as error:
    if isinstance(error.__cause__, UserError):  # A rule of a section raised it.
      raise error.__cause__ from None
    raise _mistake(str(error), content) from None


def _named(section: str, content: Any) -> dict[str, Any]:
  """Returns the section `model` or `task` as the record `Named` has it."""
  if not isinstance(content, dict) or 'name' not in content:
    raise UserError(f"the config has no field '{section}.name'; it is needed")
  arguments = {key: value for key, value in content.items() if key != 'name'}
  if not isinstance(content['name'], str):
    raise UserError(
      f'config.{section}.name is {content["name"]!r}; it must be the name of a '
      f'{section}'
    )
  return {'name': content['name'], 'arguments': arguments}


def _mistake(said: str, content: Mapping[str, Any]) -> UserError:
  """Returns the error for what msgspec says of the content of a config."""
  place = re.search(r' - at `\$\.([\w.]+).*`$', said)
  name = place[1] if place else ''
  if unknown := re.match('Object contains unknown field `(.*)`', said):
    return unknown_name(
      'field of the config', f'{name}.{unknown[1]}'.lstrip('.'), FIELDS
    )
  if not name:  # This is for messages that a later msgspec may word otherwise.
    return UserError(f'the config cannot be read: {said}')
  section, _, field = name.rpartition('.')
  value = content[section][field] if section else content[name]
  wanted = FIELDS[name].words if name in FIELDS else 'a section with fields'
  return UserError(
    f'config.{name} is {in_one_line(repr(value), 80)}; it must be {wanted}'
  )


def with_fields(config: Run, fields: Mapping[str, Any]) -> Run:
  """Returns a config in which some fields have other values.

  Args:
    config: The config.
    fields: The values by field, such as {'optimizer.learning_rate': 1e-3}. An argument
      of the model or the task may be new: its class checks it.

  Raises:
    UserError: If a field is unknown, or as from `read`.
  """
  if not fields:
    return config
  content = to_content(config)
  for name, value in fields.items():
    section, _, field = name.rpartition('.')
    if name.startswith('config.'):
      raise UserError(f'the field {name!r} must be given without config.')
    if not name.startswith(('model.', 'task.')):
      check_name('field of the config', name, FIELDS)
    holder = content
    for part in section.split('.') if section else ():
      holder = holder.setdefault(part, {})
    holder[field] = value
  return read(content)


def to_content(config: Readable) -> dict[str, Any]:
  """Returns the config as JSON holds it, with the fields of each section.

  The content of a record has all fields. That of another config has those that it has.

  Raises:
    UserError: If the config is no mapping, or if JSON cannot hold a field.
  """
  if isinstance(config, Run):
    sections = {'model': config.model.content(), 'task': config.task.content()}
    return {**msgspec.json.decode(msgspec.json.encode(config)), **sections}
  if not isinstance(config, ConfigDict | Mapping):
    raise UserError(
      f'the config is a {type(config).__name__}; it must be a ConfigDict, such as '
      "zoo.default_config('yq_lsa')"
    )
  fields = config.to_dict() if isinstance(config, ConfigDict) else dict(config)
  for name, value in _leaves(fields):
    if not fits_json(value):
      raise UserError(
        f'config.{name} is {in_one_line(repr(value), 80)}, which config.json cannot '
        'hold; it must be text, a finite number, True, False or None, or consist of '
        'these. None stands for a default that JSON cannot hold'
      )
  return in_json(fields)


def _leaves(content: Mapping[str, Any], prefix: str = '') -> Iterator[tuple[str, Any]]:
  """Yields the values in nested dictionaries, each with its name.

  Raises:
    UserError: If a key has a dot.
  """
  for key, value in content.items():
    if '.' in str(key):
      raise UserError(
        f'config.{prefix.rstrip(".")} has the key {key!r}; no config can hold a key '
        'with a dot; paths of weights are written with slashes, such as layers/0/mixer'
      )
    if isinstance(value, Mapping):
      yield from _leaves(value, f'{prefix}{key}.')
    else:
      yield f'{prefix}{key}', value


def to_json(config: Readable) -> str:
  """Returns the config as JSON text; raises UserError as `to_content` does."""
  return json.dumps(to_content(config), indent=2, sort_keys=True)


def fits_json(value: Any) -> bool:
  """Returns whether JSON can hold a value; it holds no function and no NaN."""
  try:
    in_json(value)
  except (TypeError, ValueError):
    return False
  return True


def in_json(value: Any) -> Any:
  """Returns a value as JSON holds it; raises TypeError or ValueError if it cannot."""
  return json.loads(json.dumps(value, default=_listed, allow_nan=False))


def _listed(value: Any) -> Any:
  """Returns an array or number of NumPy or JAX as lists and plain numbers."""
  if not hasattr(value, 'tolist'):
    raise TypeError(type(value).__name__)
  return value.tolist()
