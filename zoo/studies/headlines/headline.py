"""Headlines: their settings, expected numbers, and how the numbers are measured."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from zoo.reports.plots import Panel
from zoo.studies.headlines.trainer import Trainer

HOLDS, FAILS, NOT_RUN = 'holds', 'fails', 'not run here'


Number = int | float


class Expected(NamedTuple):
  """The range that a number must be in, ends included, and the source of the range."""

  low: float
  high: float
  source: str

  def __str__(self) -> str:
    if self.high == math.inf:
      return f'≥ {self.low:.5g}'
    if self.low == -math.inf:
      return f'≤ {self.high:.5g}'
    if self.low == self.high:
      return f'{self.low:.5g}'
    return f'{self.low:.5g} … {self.high:.5g}'

  def holds(self, number: float) -> bool:
    """Whether a number is in the range; NaN is in no range."""
    return self.low <= number <= self.high


def near(value: Number, tolerance: Number, source: str) -> Expected:
  """The range `value ± tolerance`."""
  return Expected(float(value - tolerance), float(value + tolerance), source)


def at_least(bound: Number, source: str) -> Expected:
  """The range of all numbers ≥ `bound`."""
  return Expected(float(bound), math.inf, source)


def at_most(bound: Number, source: str) -> Expected:
  """The range of all numbers ≤ `bound`."""
  return Expected(-math.inf, float(bound), source)


class Found(NamedTuple):
  """The measured numbers of a headline, and a picture of them."""

  numbers: Mapping[str, float]
  panels: tuple[Panel, ...]


@dataclasses.dataclass(frozen=True)
class Headline:
  """Numbers from the literature that a credible implementation reproduces.

  A headline holds if every number that `measure` finds is in its expected range.
  Expected ranges are written down before anything is measured; if a range is missed,
  `note` says why, and the range does not change.
  """

  name: str  # letters, digits and underscores
  statement: str
  setting: str
  source: str
  expected: Mapping[str, Expected]
  minutes: Number  # about, on 2 CPU cores, or on an accelerator if needed
  # Trains what it needs with the trainer. It returns a picture even if nothing is
  # trained.
  measure: Callable[[Trainer], Found]
  caption: str  # of the picture
  note: str = ''
  needs_accelerator: bool = False


def verdict(headline: Headline, numbers: Mapping[str, float] | None) -> str:
  """The verdict that follows from the numbers, which are None if it was not run."""
  if numbers is None:
    return NOT_RUN
  held = [range_.holds(numbers[name]) for name, range_ in headline.expected.items()]
  return HOLDS if all(held) else FAILS


def rule(headline: Headline) -> str:
  """The rule of a headline as source code in terms of its numbers' names."""
  parts = []
  for name, (low, high, _) in headline.expected.items():
    below = '' if low == -math.inf else f'{low:.6g} <= '
    above = '' if high == math.inf else f' <= {high:.6g}'
    parts.append(f'{name} == {low:.6g}' if low == high else f'{below}{name}{above}')
  return ' and '.join(parts)
