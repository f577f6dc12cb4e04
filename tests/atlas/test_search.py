"""The search finds a rate and a budget, and tells what is not final."""

import math

import pytest

from zoo.studies.atlas import (
  results,
)
from zoo.studies.atlas.search import RATES, double, find_rate, why_grey

pytestmark = pytest.mark.usefixtures('promotion_that_optax_needs')


def _search(best, diverging=math.inf, rates=RATES):
  """A search where the loss is least at a rate, and what was tried."""
  tried = []

  def losses(some, num_steps):
    tried.append((num_steps, len(some)))
    return [
      math.inf if rate >= diverging else 1 + abs(math.log2(rate / best))
      for rate in some
    ]

  return find_rate(losses, rates, 10), tried


def test_all_rates_are_tried_briefly_and_the_best_longer():
  search, tried = _search(RATES[6])
  assert tried == [(10, 11), (30, 4), (90, 3)]
  assert search.rate == RATES[6]
  assert search.losses == {RATES[5]: 2.0, RATES[6]: 1.0, RATES[7]: 2.0}
  assert not search.at_edge


def test_the_search_goes_on_beyond_an_edge():
  for best in (RATES[0] / 4, RATES[-1] * 4):
    search, tried = _search(best)
    assert search.rate == pytest.approx(best)
    assert not search.at_edge
    assert tried[-1] == (90, 1)
  search, _ = _search(1e-30)
  assert search.at_edge
  assert len(search.losses) == 8
  # A rate that diverges is never the best, and of equal ones the lowest is.
  search, _ = _search(1.0, diverging=RATES[7])
  assert (search.rate, search.losses[RATES[7]]) == (RATES[6], math.inf)


SCALE = results.LossScale(2.0, 12.0)  # 10 can be learned


def _doubled(losses, limit=10**9):
  return double(losses, 100, SCALE, lambda num_steps: num_steps <= limit)


def test_a_budget_doubles_until_the_loss_is_final():
  # From 1600 to 3200 steps 1.0625 becomes 1.03125, 2.9 % less; before that by 5.6 %.
  by_budget = _doubled(lambda n: [0.99 + 100 / n, 1.01 + 100 / n])
  assert [*by_budget] == [100, 200, 400, 800, 1600, 3200]
  assert by_budget[100] == [1.99, 2.01]
  assert why_grey(by_budget[3200], by_budget[1600], SCALE) == ''
  for never in (
    lambda n: [100 / n, 100 / n],
    lambda n: [1.0],  # one seed
    lambda n: [1.0, 9.0],  # seeds that differ
    lambda n: [12.0, 12.0],  # on a plateau at chance
  ):
    assert [*_doubled(never, limit=400)] == [100, 200, 400]
  assert [*_doubled(lambda n: [math.nan])] == [100]


def test_a_loss_that_is_not_final_says_why():
  for losses, before, why in (
    ([4.0, 4.0], None, 'one budget only'),
    ([3.4, 3.4], [4.0, 4.0], '−15 % in the last doubling'),
    ([3.92, 3.92], [4.0, 4.0], ''),  # by 2 %, though the seeds agree
    ([2e-3, 2e-3], [1e-2, 1e-2], ''),  # by less than a thousandth of 10
    ([4.0], [4.0], 'one seed only'),
    # Half the interval of two seeds is 12.7 times half their difference.
    ([3.93, 4.07], [4.0, 4.0], ''),
    ([3.9, 4.1], [4.0, 4.0], 'seeds ± 13 % of what can be learned'),
    ([11.9, 11.92], [12.0, 12.0], 'no better than chance'),
    ([11.8, 11.82], [12.0, 12.0], ''),
    ([math.nan, 4.0], [4.0, 4.0], 'a seed diverged'),
  ):
    assert why_grey(losses, before, SCALE) == why
