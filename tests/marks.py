"""Values of parametrized tests of which only some are run without --slow or --full."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

SLOW = pytest.mark.slow
FULL = pytest.mark.slow, pytest.mark.full


def mostly_slow(quick: Sequence[Any], values: Iterable[Any]) -> list[Any]:
  """The values `quick`; all others of `values` are for --slow.

  A tuple is several arguments.
  """
  others = [value for value in values if value not in quick]
  return [*quick, *(pytest.param(*_several(value), marks=SLOW) for value in others)]


def mostly_full(
  quick: Sequence[Any], *axes: Iterable[Any], slow: Sequence[Any] = ()
) -> list[Any]:
  """The values `quick` and `slow`; all other combinations of the axes are for --full.

  A tuple on an axis is several arguments.
  """
  values = mostly_slow(quick, slow)
  for parts in itertools.product(*axes):
    arguments = [argument for part in parts for argument in _several(part)]
    combination = tuple(arguments) if len(arguments) > 1 else arguments[0]
    if combination not in quick and combination not in slow:
      values.append(pytest.param(*arguments, marks=FULL))
  return values


def _several(part: Any) -> tuple:
  return part if isinstance(part, tuple) else (part,)
