"""The search of a cell: its learning rate, and a budget at which its loss is final.

It knows nothing of models: it is given functions that train, and returns what to say.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from zoo.measure.intervals import interval
from zoo.studies.atlas.results import LossScale

# The held-out losses of some learning rates after a number of steps; inf: diverged.
TryRates = Callable[[Sequence[float], int], Sequence[float]]
# The losses of the seeds after a number of steps, at the chosen rate.
Train = Callable[[int], Sequence[float]]

RATES = tuple(1e-4 * 2**k for k in range(11))  # up to 0.1
FLAT = 0.03  # of the loss: a larger change in the last doubling is not flat
NEGLIGIBLE = 1e-3  # of what can be learned: a smaller change is flat
WIDE = 0.1  # of what can be learned: seeds with a wider half interval differ too much
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
  search = Search(_best(tried), tried)
  while search.at_edge and len(tried) < _MOST_RATES:
    lower = search.rate == min(tried)
    tried |= _tried(try_rates, [search.rate * (0.5 if lower else 2)], num_steps)
    search = search._replace(rate=_best(tried))
  return search


def _tried(
  try_rates: TryRates, rates: Sequence[float], num_steps: int
) -> dict[float, float]:
  return dict(zip(rates, try_rates(rates, num_steps), strict=True))


def _best(tried: Mapping[float, float]) -> float:
  """The rate with the least loss, of equal ones the lowest."""
  return min(tried, key=lambda rate: (tried[rate], rate))


def double(
  train: Train, num_steps: int, scale: LossScale, may_train: Callable[[int], bool]
) -> dict[int, Sequence[float]]:
  """The losses of the seeds by budget, which doubles until the loss is final.

  The first budget is `num_steps`. Another one is trained only if it may be, and if no
  seed has diverged.
  """
  before, losses = None, train(num_steps)
  by_budget = {num_steps: losses}
  while _is_finite(losses) and why_grey(losses, before, scale):
    num_steps *= 2
    if not may_train(num_steps):
      break
    before, losses = losses, train(num_steps)
    by_budget[num_steps] = losses
  return by_budget


def why_grey(
  losses: Sequence[float], before: Sequence[float] | None, scale: LossScale
) -> str:
  """Why the loss of a budget is not final; empty if it is.

  It is final if the last doubling, which `before` has the losses of, has changed it by
  less than 3 %, or by less than a thousandth of what can be learned; if half its
  interval over the seeds is less than a tenth of what can be learned; and if the whole
  interval is below the loss without examples.
  """
  if not _is_finite(losses):
    return 'a seed diverged'
  if before is None:
    return 'one budget only'
  whole, loss = float(np.mean(before)), interval(losses)
  change, learnable = loss.mean - whole, scale.without - scale.floor
  if abs(change) > NEGLIGIBLE * learnable and abs(change) >= FLAT * whole:
    percent = 100 * change / (whole or math.inf)
    return f'{percent:+.0f} % in the last doubling'.replace('-', '−')
  if len(losses) == 1:
    return 'one seed only'
  if loss.half >= WIDE * learnable:
    percent = 100 * loss.half / learnable
    return f'seeds ± {percent:.0f} % of what can be learned'
  return '' if loss.high < scale.without else 'no better than chance'


def _is_finite(losses: Sequence[float]) -> bool:
  return all(map(math.isfinite, losses))
