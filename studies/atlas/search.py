"""The search of a cell for its learning rate.

It knows nothing of models: it is given a function that trains.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

# The held-out losses of some learning rates after a number of steps; inf: diverged.
TryRates = Callable[[Sequence[float], int], Sequence[float]]

# The weights, prompts and held-out prompts of this seed are used in the search alone.
SEED = 10**6
HELD_OUT = 4096  # prompts for the loss of a learning rate
RATES = tuple(2e-4 * 2**k for k in range(9))  # up to 0.0512
AT_ONCE = 3  # rates that are tried together, in the time of one
MOST_RATES = 9  # that the last round tries before it gives up at an edge


class Search(NamedTuple):
  """The chosen learning rate, and the held-out losses of the last round."""

  rate: float
  losses: dict[float, float]  # by rate

  @property
  def at_edge(self) -> bool:
    """Whether a lower or a higher rate than all that were tried may be better."""
    return self.rate in (min(self.losses), max(self.losses))


def find_rate(try_rates: TryRates, rates: Sequence[float], num_steps: int) -> Search:
  """Halving search of the rate that is best after `num_steps`.

  All rates get a ninth of the steps, the best third of them a third; around the best of
  these the last round is that of `refine`.
  """
  tried = _tried(try_rates, rates, max(num_steps // 9, 1))
  third = sorted(tried, key=lambda rate: (tried[rate], rate))[: -(-len(rates) // 3)]
  tried = _tried(try_rates, sorted(third), max(num_steps // 3, 1))
  return refine(try_rates, _best(tried), num_steps)


def refine(try_rates: TryRates, rate: float, num_steps: int) -> Search:
  """Tries a rate, half and twice this rate, and goes on beyond while the best is last.

  It gives up after nine rates.
  """
  tried = _tried(try_rates, [rate / 2, rate, 2 * rate], num_steps)
  search = Search(_best(tried), tried)
  while search.at_edge and len(tried) < MOST_RATES:
    factor = 0.5 if search.rate == min(tried) else 2.0
    beyond = [search.rate * factor**power for power in range(1, AT_ONCE + 1)]
    tried |= _tried(try_rates, beyond, num_steps)
    search = search._replace(rate=_best(tried))
  return search


def _tried(
  try_rates: TryRates, rates: Sequence[float], num_steps: int
) -> dict[float, float]:
  return dict(zip(rates, try_rates(rates, num_steps), strict=True))


def _best(tried: Mapping[float, float]) -> float:
  """The rate with the least loss, of equal ones the lowest."""
  return min(tried, key=lambda rate: (tried[rate], rate))
