"""The search for the learning rate of a cell of the atlas.

A cell is a model, a task, an initial guess and a number of examples. The search itself
does not depend on them: it receives a function that trains the model of the cell at
given rates, and returns the held-out losses.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

# Returns the held-out loss of each learning rate after a number of steps. A loss is
# infinite if training diverged.
TryRates = Callable[[Sequence[float], int], Sequence[float]]

# The weights, prompts and held-out prompts of this seed, and of those that follow it,
# are used in the search alone.
SEED = 10**6
HELD_OUT = 4096  # held-out prompts for the loss of a learning rate
RATES = tuple(2e-4 * 2**k for k in range(9))  # 2e-4 to 0.0512
# Models that train side by side, in about the time of one. They have different rates,
# seeds or both. `refine` tries this many further rates at a time.
AT_ONCE = 3
MOST_RATES = 9  # rates that the last round may try


class Search(NamedTuple):
  """The result of a search.

  Attributes:
    rate: The learning rate with the lowest held-out loss in the last round.
    losses: The held-out losses of the last round, by learning rate.
  """

  rate: float
  losses: dict[float, float]

  @property
  def at_edge(self) -> bool:
    """Whether the chosen rate is the lowest or the highest rate of the last round."""
    return self.rate in (min(self.losses), max(self.losses))


def screen(try_rates: TryRates, rates: Sequence[float], num_steps: int) -> float:
  """Finds the learning rate with which `refine` begins.

  It makes the first two rounds of a successive halving search, of which `refine` is the
  third. All rates are trained for a ninth of the steps, and the best third of the rates
  for a third of the steps.

  Args:
    try_rates: Returns the held-out losses of learning rates after a number of steps.
    rates: The learning rates of the first round.
    num_steps: The steps of the third round.

  Returns:
    The rate with the lowest loss in the second round.
  """
  tried = _tried(try_rates, rates, max(num_steps // 9, 1))
  return _best(_tried(try_rates, _best_third(tried), max(num_steps // 3, 1)))


def screen_seeds(
  one_seed: TryRates, all_seeds: TryRates, rates: Sequence[float], num_steps: int
) -> float:
  """Finds the learning rate with which `refine` begins, by one seed and then several.

  It is for models whose seeds disagree about the best rate, or whose short runs may
  prefer rates that are too high for long ones. All rates are tried with one seed, and
  the best third of the rates with all seeds. There are no short runs.

  Args:
    one_seed: Returns the held-out losses of learning rates with one seed.
    all_seeds: Returns their mean losses over all seeds of the search.
    rates: The learning rates of the first round.
    num_steps: The steps of all rounds.

  Returns:
    The rate with the lowest mean loss in the second round.
  """
  tried = _tried(one_seed, rates, num_steps)
  return _best(_tried(all_seeds, _best_third(tried), num_steps))


def refine(try_rates: TryRates, rate: float, num_steps: int) -> Search:
  """Tries a learning rate, half of it and twice it, with all steps.

  While the best rate is the lowest or the highest of those tried, three further rates
  beyond it are tried, each differing by a factor of 2. The search ends after
  `MOST_RATES` rates.

  Args:
    try_rates: Returns the held-out losses of learning rates after a number of steps.
    rate: The learning rate in the middle.
    num_steps: The number of steps.

  Returns:
    The best rate, and the losses of all rates that were tried.
  """
  tried = _tried(try_rates, [rate / 2, rate, 2 * rate], num_steps)
  search = Search(_best(tried), tried)
  while search.at_edge and len(tried) < MOST_RATES:
    factor = 0.5 if search.rate == min(tried) else 2.0
    beyond = [search.rate * factor**power for power in range(1, AT_ONCE + 1)]
    # `search.losses` is this dictionary, so it gets the new losses, too.
    tried |= _tried(try_rates, beyond, num_steps)
    search = search._replace(rate=_best(tried))
  return search


def _tried(
  try_rates: TryRates, rates: Sequence[float], num_steps: int
) -> dict[float, float]:
  return dict(zip(rates, try_rates(rates, num_steps), strict=True))


def _best_third(tried: Mapping[float, float]) -> list[float]:
  """Returns the third of the rates with the lowest losses, in increasing order."""
  by_loss = sorted(tried, key=lambda rate: (tried[rate], rate))
  return sorted(by_loss[: -(-len(tried) // 3)])


def _best(tried: Mapping[float, float]) -> float:
  """Returns the rate with the lowest loss; the lowest of several such rates."""
  return min(tried, key=lambda rate: (tried[rate], rate))
