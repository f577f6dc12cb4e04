"""Parts of some work, one for each of several processes that share only a folder."""

import dataclasses
import re
from collections.abc import Sequence
from typing import TypeVar

from zoo.core.errors import UserError

_Item = TypeVar('_Item')


@dataclasses.dataclass(frozen=True)
class Part:
  """The `index`-th of `number` parts, counted from 1.

  Raises UserError unless 1 ≤ index ≤ number.
  """

  index: int
  number: int

  def __post_init__(self) -> None:
    if not 1 <= self.index <= self.number:
      raise _refused(f'{self.index}/{self.number}')

  def of(self, items: Sequence[_Item]) -> list[_Item]:
    """Every `number`-th item, from the `index`-th on."""
    return [*items[self.index - 1 :: self.number]]


def parse_part(text: str) -> Part:
  """The part that a text such as 2/4 names; raises UserError."""
  match = re.fullmatch('([0-9]{1,9})/([0-9]{1,9})', text)
  if match is None:
    raise _refused(text)
  return Part(int(match[1]), int(match[2]))


def _refused(text: str) -> UserError:
  """The error for what names no part."""
  return UserError(f'the part is {text!r}; it must be I/N with 1 ≤ I ≤ N, such as 1/4')
