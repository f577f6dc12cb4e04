"""Comparison of arrays, and of what an error says."""

import contextlib
from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import ArrayLike

import zoo


def assert_close(actual: ArrayLike, expected: ArrayLike, relative: float) -> None:
  """Every entry differs by at most `relative` times the largest one expected."""
  actual, expected = np.asarray(actual), np.asarray(expected)
  assert actual.shape == expected.shape
  assert np.isfinite(actual).all()
  assert np.abs(actual - expected).max() <= relative * np.abs(expected).max()


@contextlib.contextmanager
def refuses(*said: str) -> Iterator[pytest.ExceptionInfo]:
  """The block must raise a UserError of one line that contains all that is `said`."""
  with pytest.raises(zoo.UserError) as info:
    yield info
  message = str(info.value)
  assert '\n' not in message
  for part in said:
    assert part in message
