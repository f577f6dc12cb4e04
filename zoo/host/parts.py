"""Parts of some work, for several processes that share only a folder."""

import dataclasses
import re
from collections.abc import Sequence
from typing import TypeVar

from zoo.core.errors import UserError

_Item = TypeVar('_Item')


@dataclasses.dataclass(frozen=True)
class Part:
  """The `index`-th of `number` parts of some work, counted from 1.

  Each of several processes or machines does one part. They need no connection, and
  share only the folder that they write into.

  Attributes:
    index: The number of this part, from 1 to `number`.
    number: The number of all parts.

  Raises:
    UserError: If `index` is not from 1 to `number`.

  Example:
    >>> zoo.training.Part(2, 3).of(['a', 'b', 'c', 'd', 'e'])
    ['b', 'e']
  """

  index: int
  number: int

  def __post_init__(self) -> None:
    if not 1 <= self.index <= self.number:
      raise _refused(f'{self.index}/{self.number}')

  def of(self, items: Sequence[_Item]) -> list[_Item]:
    """Returns every `number`-th item, from the `index`-th on."""
    return [*items[self.index - 1 :: self.number]]


def parse_part(text: str) -> Part:
  """Returns the part that a text such as 2/4 names; raises UserError for others."""
  match = re.fullmatch('([0-9]{1,9})/([0-9]{1,9})', text)
  if match is None:
    raise _refused(text)
  return Part(int(match[1]), int(match[2]))


def _refused(text: str) -> UserError:
  """Returns the error for a text that names no part."""
  return UserError(f'the part is {text!r}; it must be I/N with 1 ≤ I ≤ N, such as 1/4')
