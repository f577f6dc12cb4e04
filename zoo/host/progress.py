"""The progress bar of what takes long: training, and checks of many parts."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import jax
from tqdm.auto import tqdm


def progress_bar(
  label: str, total: int, unit: str, initial: int = 0, delay: float = 0.0
) -> Any:
  """Returns a progress bar of tqdm on stderr, which only process 0 shows.

  Args:
    label: The label in front of the bar.
    total: The number of units of the whole.
    unit: The name of a unit.
    initial: The number of units that were done before.
    delay: The seconds before the bar is shown. What ends before shows none.
  """
  # A log file, unlike a terminal or a notebook, would record every refresh.
  is_watched = sys.stderr.isatty() or hasattr(sys, 'ps1')
  return tqdm(
    desc=label,
    initial=initial,
    total=total,
    unit=unit,
    mininterval=0.2 if is_watched else 10.0,
    delay=delay,
    dynamic_ncols=True,
    disable=jax.process_index() != 0,
  )


@contextlib.contextmanager
def hidden(bar: Any) -> Iterator[None]:
  """Takes a bar off a terminal inside the block, where another may print."""
  if sys.stderr.isatty():
    bar.clear()
  yield
  if sys.stderr.isatty():
    bar.refresh()
