"""The search finds the best rate of a budget, and goes on beyond its edges."""

import math

import pytest

from studies.atlas.search import RATES, refine, screen, screen_seeds

pytestmark = pytest.mark.usefixtures('promotion_that_optax_needs')


def _losses(best, diverging=math.inf):
  """Losses that are least at a rate, and a list of what was tried."""
  tried = []

  def losses(rates, num_steps):
    tried.append((num_steps, len(rates)))
    return [
      math.inf if rate >= diverging else 1 + abs(math.log2(rate / best))
      for rate in rates
    ]

  return losses, tried


def _find_rate(losses):
  return refine(losses, screen(losses, RATES, 90), 90)


def test_all_rates_are_tried_briefly_and_the_best_longer():
  losses, tried = _losses(RATES[6])
  search = _find_rate(losses)
  assert tried == [(10, 9), (30, 3), (90, 3)]
  assert search.rate == RATES[6]
  assert search.losses == {RATES[5]: 2.0, RATES[6]: 1.0, RATES[7]: 2.0}
  assert not search.at_edge


def test_short_runs_do_not_choose_the_rate_if_several_seeds_do():
  """The best rate of a run of `n` steps is 90 / n times the best one of 90 steps."""
  tried = []

  def losses(rates, num_steps):
    tried.append((num_steps, len(rates)))
    best = RATES[3] * 90 / num_steps
    return [abs(math.log2(rate / best)) for rate in rates]

  assert screen(losses, RATES, 90) == RATES[5]
  tried.clear()
  assert screen_seeds(losses, losses, RATES, 90) == RATES[3]
  assert tried == [(90, 9), (90, 3)]


def test_the_luck_of_one_seed_does_not_choose_the_rate():
  lucky = RATES[7]

  def one_seed(rates, num_steps):
    losses, _ = _losses(RATES[3])
    found = zip(rates, losses(rates, num_steps), strict=True)
    return [0.5 if rate == lucky else loss for rate, loss in found]

  all_seeds, _ = _losses(RATES[3])
  assert screen_seeds(one_seed, one_seed, RATES, 90) == lucky
  assert screen_seeds(one_seed, all_seeds, RATES, 90) == RATES[3]


def test_the_search_goes_on_beyond_an_edge():
  for best in (RATES[0] / 4, RATES[-1] * 4):
    losses, tried = _losses(best)
    search = _find_rate(losses)
    assert search.rate == pytest.approx(best)
    assert not search.at_edge
    assert tried[-1] == (90, 3)
  search = _find_rate(_losses(1e-30)[0])
  assert search.at_edge
  assert len(search.losses) == 9
  # A rate that diverges is never the best, and of equal ones the lowest is.
  search = _find_rate(_losses(1.0, diverging=RATES[7])[0])
  assert (search.rate, search.losses[RATES[7]]) == (RATES[6], math.inf)


def test_a_larger_budget_may_have_another_rate():
  losses, tried = _losses(RATES[3])
  search = refine(losses, RATES[6], 1000)
  assert search.rate == RATES[3]
  assert tried == [(1000, 3), (1000, 3)]
  # Where every rate diverges none is chosen for its loss.
  search = refine(_losses(1.0, diverging=0.0)[0], RATES[6], 1000)
  assert math.isinf(search.losses[search.rate])
