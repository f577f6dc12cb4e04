"""Values of parametrized tests of which only some are run without --full."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

SLOW = pytest.mark.slow
FULL = pytest.mark.slow, pytest.mark.full


def mostly_full(quick: Sequence[Any], *axes: Iterable[Any]) -> list[Any]:
  """The values `quick`; all other combinations of the axes are for --slow --full.

  A tuple on an axis is several arguments.
  """
  return _with_others(FULL, quick, axes)


def mostly_slow(quick: Sequence[Any], *axes: Iterable[Any]) -> list[Any]:
  """The same, where the others are for --slow."""
  return _with_others(SLOW, quick, axes)


def _with_others(marks: Any, quick: Sequence[Any], axes: Iterable[Iterable[Any]]):
  values: list[Any] = [*quick]
  for parts in itertools.product(*axes):
    arguments = [argument for part in parts for argument in _several(part)]
    combination = tuple(arguments) if len(arguments) > 1 else arguments[0]
    if combination not in quick:
      values.append(pytest.param(*arguments, marks=marks))
  return values


def _several(part: Any) -> tuple:
  return part if isinstance(part, tuple) else (part,)
