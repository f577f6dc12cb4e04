"""Parses --sweep: the fields of a config that vary, and the values of each."""

import json
import math
import re
from collections.abc import Sequence
from typing import Any

from zoo.core.errors import UserError

# The name of a field, or the names of several fields whose values go together.
Fields = str | tuple[str, ...]

_MAX_POINTS = 100_000  # Each point has its own folder.


def parse_all(texts: Sequence[str]) -> tuple[dict[Fields, Sequence[Any]], list[str]]:
  """Parses all --sweep flags of a command.

  Args:
    texts: The values of the flags.

  Returns:
    The values of each flag by its fields, and the names of all fields.

  Raises:
    UserError: If there is no flag, if one cannot be parsed, if two have the same field,
      or if the grid has more than 100,000 points.
  """
  if not texts:
    raise UserError('--sweep is missing; try --sweep=task.prior_mean=0,0.5,1')
  axes: dict[Fields, Sequence[Any]] = {}
  names: list[str] = []
  for text in texts:
    fields, values = parse(text)
    axes[fields] = values
    names += [fields] if isinstance(fields, str) else fields
  for name in names:
    if names.count(name) > 1:
      raise UserError(f'--sweep gives {name} twice')
  _check_number(math.prod(map(len, axes.values())))
  return axes, names


def parse(text: str) -> tuple[Fields, Sequence[Any]]:
  """Parses one --sweep flag.

  Values are JSON (numbers, lists, true, null), True, False or None, or else words.

  Args:
    text: The flag's value: `field=value,value`, `field=first..last` for integers, or
      `field,field=value:value,value:value` for fields whose values go together.

  Returns:
    The field and its values. If there are several fields, each value is a tuple.

  Raises:
    UserError: If the text cannot be parsed.
  """
  field, equals, values = text.partition('=')
  if not (field and equals and values):
    raise UserError(f'--sweep is {text!r}; it must be field=value,value,...')
  if ',' in field:
    return _parse_together(text, field.split(','), values)
  if between := re.fullmatch(r'(-?[0-9]{1,18})\.\.(-?[0-9]{1,18})', values):
    first, last = map(int, between.groups())
    if last < first:
      raise UserError(f'--sweep={text} is empty: {last} is less than {first}')
    _check_number(last - first + 1)
    return field, list(range(first, last + 1))
  try:
    return field, json.loads(f'[{values}]')
  except ValueError:
    return field, [_number_or_word(value) for value in _split(values, ',')]
  except RecursionError:
    raise UserError(f'the values of --sweep={field} are nested too deeply') from None


def _parse_together(
  text: str, fields: list[str], values: str
) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
  """Parses fields whose values go together, into a tuple of values for each point."""
  points = [_split(point, ':') for point in _split(values, ',')]
  for point in points:
    if len(point) != len(fields) or '' in (*point, *fields):
      raise UserError(
        f'--sweep is {text!r}; {":".join(point)!r} must have {len(fields)} values with '
        f'colons between them, one for each of {", ".join(fields)}'
      )
  return tuple(fields), [tuple(map(_number_or_word, point)) for point in points]


def _split(text: str, separator: str) -> list[str]:
  """Splits a text at the separators that stand outside of lists and quotes."""
  parts, depth, is_quoted = [''], 0, False
  for letter in text:
    is_quoted ^= letter == '"'
    depth += (letter == '[') - (letter == ']')
    if letter == separator and not depth and not is_quoted:
      parts.append('')
    else:
      parts[-1] += letter
  return parts


# JSON has these values, but spells them differently.
_PYTHON = {'None': None, 'True': True, 'False': False}


def _number_or_word(text: str) -> object:
  try:
    return _PYTHON[text] if text in _PYTHON else json.loads(text)
  except ValueError:
    return text
  except RecursionError:
    raise UserError('a value of --sweep is nested too deeply') from None


def _check_number(number: int) -> None:
  if number > _MAX_POINTS:
    raise UserError(f'--sweep gives {number} points; the limit is {_MAX_POINTS}')
