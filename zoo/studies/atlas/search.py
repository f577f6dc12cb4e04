"""The search of a cell: its learning rate, and a budget at which its loss is flat.

It knows nothing of models: it is given functions that train, and returns what to say.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from zoo.measure.intervals import interval

# The held-out losses of some learning rates after a number of steps; inf: diverged.
TryRates = Callable[[Sequence[float], int], Sequence[float]]
# The losses of the seeds after a number of steps, at the chosen rate.
Train = Callable[[int], Sequence[float]]

RATES = tuple(1e-4 * 2**k for k in range(11))  # up to 0.1
FLAT = 0.03  # of the loss: a larger change in the last doubling is not flat
NEGLIGIBLE = 1e-3  # of what can be learned: a smaller change is flat
_MOST_RATES = 8  # that the last round tries before it gives up at an edge


class Search(NamedTuple):
  """The chosen learning rate, and the held-out losses of the last round."""

  rate: float
  losses: dict[float, float]  # by rate

  @property
  def at_edge(self) -> bool:
    """Whether a lower or a higher rate than all that were tried may be better."""
    return self.rate in (min(self.losses), max(self.losses))


def find_rate(try_rates: TryRates, rates: Sequence[float], num_steps: int) -> Search:
  """Halving search of the learning rate: all `rates` briefly, the best third longer.

  Rounds have thrice the steps of the one before. The last one tries the best rate, half
  and twice this rate, and goes on beyond while the best is at an edge.
  """
  tried = _tried(try_rates, rates, num_steps)
  if len(rates) > 3:
    num_steps *= 3
    third = sorted(tried, key=lambda rate: (tried[rate], rate))
    tried = _tried(try_rates, sorted(third[: -(-len(rates) // 3)]), num_steps)
  num_steps *= 3
  best = _best(tried)
  tried = _tried(try_rates, [best / 2, best, 2 * best], num_steps)
  found = Search(_best(tried), tried)
  while found.at_edge and len(tried) < _MOST_RATES:
    lower = found.rate == min(tried)
    tried |= _tried(try_rates, [found.rate * (0.5 if lower else 2)], num_steps)
    found = found._replace(rate=_best(tried))
  return found


def _tried(
  try_rates: TryRates, rates: Sequence[float], num_steps: int
) -> dict[float, float]:
  return dict(zip(rates, try_rates(rates, num_steps), strict=True))


def _best(tried: Mapping[float, float]) -> float:
  """The rate with the least loss, of equal ones the lowest."""
  return min(tried, key=lambda rate: (tried[rate], rate))


def double(
  train: Train, num_steps: int, unit: float, may_train: Callable[[int], bool]
) -> dict[int, Sequence[float]]:
  """The losses of the seeds by budget, which doubles until the loss is flat.

  The first budget is `num_steps`. Another one is trained only if it may be, and if no
  seed has diverged. `unit` is the loss that can be learned.
  """
  before, losses = None, train(num_steps)
  found = {num_steps: losses}
  while _is_finite(losses) and why_grey(losses, before, unit):
    num_steps *= 2
    if not may_train(num_steps):
      break
    before, losses = losses, train(num_steps)
    found[num_steps] = losses
  return found


def why_grey(
  losses: Sequence[float], before: Sequence[float] | None, unit: float
) -> str:
  """Why the loss of a budget is not final; empty if it is flat.

  It is flat if the last doubling, which `before` has the losses of, has changed it by
  less than 3 % and less than half its interval over the seeds, or by less than a
  thousandth of what can be learned, the `unit`.
  """
  if not _is_finite(losses):
    return 'a seed diverged'
  if before is None:
    return 'one budget only'
  whole, loss = interval(before).mean, interval(losses)
  change = interval(np.subtract(losses, before)).mean / (whole or math.inf)
  size = abs(change) * whole
  if size <= NEGLIGIBLE * unit or (abs(change) < FLAT and size < loss.half):
    return ''
  return f'{100 * change:+.0f} % in the last doubling'.replace('-', '−')


def _is_finite(losses: Sequence[float]) -> bool:
  return all(map(math.isfinite, losses))
