"""Fields of an untrusted file: each is read with a check of its type and range."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping, Sequence
from typing import TypeGuard, TypeVar

from zoo.core.errors import UserError, in_one_line

MAX_INTEGER = 2**31 - 1
MAX_TEXT = 2**20

_Choice = TypeVar('_Choice', str, bool)


class Fields:
  """The fields of one object in a file; a field that is null counts as absent.

  Each method returns the value of a field, or `default` where the field is absent. It
  raises UserError for a value of another type or range, and where a field that has no
  default is absent.
  """

  def __init__(self, values: object, source: str):
    """`source` names the object in messages.

    Raises UserError if `values` is not an object.
    """
    if not isinstance(values, Mapping):
      raise UserError(f'{source} is a {type(values).__name__}; it must be an object')
    self.source = source
    self._values: Mapping[object, object] = values

  def __contains__(self, name: str) -> bool:
    return self._values.get(name) is not None

  def names(self) -> list[str]:
    """The names of all fields that are present."""
    return [name for name in self._values if isinstance(name, str) and name in self]

  def raw(self, name: str) -> object:
    """The value as it is in the file; None if it is absent."""
    return self._values.get(name)

  def integer(
    self, name: str, low: int, high: int = MAX_INTEGER, default: int | None = None
  ) -> int:
    """An integer from `low` to `high`."""
    value = self._value(name, default)
    if not _is_integer(value, low, high):
      raise self._error(name, value, f'an integer from {low} to {high}')
    return value

  def number(
    self, name: str, low: float, high: float, default: float | None = None
  ) -> float:
    """A number from `low` to `high`."""
    value = self._value(name, default)
    if (
      isinstance(value, bool)
      or not isinstance(value, int | float)
      or not low <= value <= high
    ):
      raise self._error(name, value, f'a number from {low:g} to {high:g}')
    return float(value)

  def text(self, name: str, default: str | None = None) -> str:
    """A text of at most `MAX_TEXT` characters that UTF-8 can encode."""
    value = self._value(name, default)
    if not _is_text(value):
      raise self._error(name, value, f'a text of at most {MAX_TEXT} characters')
    return value

  def choice(
    self,
    name: str,
    allowed: Sequence[_Choice],
    default: _Choice | None = None,
  ) -> _Choice:
    """One of a few values."""
    value = self._value(name, default)
    for known in allowed:
      if type(value) is type(known) and value == known:
        return known
    raise self._error(name, value, f'one of {", ".join(map(repr, allowed))}')

  def nested(self, name: str) -> Fields:
    """The object in a field; an empty object if the field is absent."""
    return Fields(self._value(name, {}), f'{name} of {self.source}')

  def objects(self, name: str) -> list[Fields]:
    """A list of objects."""
    value = self._value(name, None)
    if not isinstance(value, list):
      raise self._error(name, value, 'a list of objects')
    return [Fields(each, f'an item of {name} of {self.source}') for each in value]

  def integers(
    self,
    name: str,
    low: int,
    high: int = MAX_INTEGER,
    default: Sequence[int] | None = None,
  ) -> list[int]:
    """A list of integers from `low` to `high`; a single integer is a list of one."""
    value = self._value(name, default)
    values = list(value) if isinstance(value, list | tuple) else [value]
    integers = [each for each in values if _is_integer(each, low, high)]
    if len(integers) < len(values):
      raise self._error(name, value, f'integers from {low} to {high}')
    return integers

  def texts(self, name: str, default: Sequence[str] | None = None) -> list[str]:
    """A list of texts."""
    value = self._value(name, default)
    values = value if isinstance(value, list | tuple) else [None]
    texts = [each for each in values if _is_text(each)]
    if len(texts) < len(values):
      raise self._error(name, value, 'a list of texts')
    return texts

  def _value(self, name: str, default: object) -> object:
    value = self._values.get(name)
    if value is not None:
      return value
    if default is None:
      raise UserError(f'{self.source} lacks {name!r}')
    return default

  def _error(self, name: str, value: object, allowed: str) -> UserError:
    shown = in_one_line(_SHORT.repr(value), None)
    return UserError(f'{name} of {self.source} is {shown}; it must be {allowed}')


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 60


def _is_integer(value: object, low: int, high: int) -> TypeGuard[int]:
  return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _is_text(value: object) -> TypeGuard[str]:
  return (
    isinstance(value, str)
    and len(value) <= MAX_TEXT
    # JSON can spell a lone surrogate, which UTF-8 cannot encode.
    and not re.search('[\ud800-\udfff]', value)
  )
