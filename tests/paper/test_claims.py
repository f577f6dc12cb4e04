"""Verdicts follow from numbers."""

import pytest

from zoo.paper import recompute
from zoo.paper.claims import CLAIMS, FAILS, HOLDS, NOT_SHARP, judge, verdict
from zoo.plots import BLUE, Panel, Plot, series

# What docs/theory.md proves, for the claims that no training decides.
PROVED = {
  'theorem-1': NOT_SHARP,
  'value-space': HOLDS,
  'theorem-2': FAILS,
  'theorem-2-finite': HOLDS,
  'theorem-4': NOT_SHARP,
  'conjecture': HOLDS,
  'equation-7': FAILS,
  'lemma-3': NOT_SHARP,
  'lemma-3-proof': FAILS,
  'ltb-optimum': FAILS,
  'equations-18-20': FAILS,
  'strict-bound-covariance': FAILS,
}


@pytest.mark.slow
@pytest.mark.parametrize('claim', CLAIMS, ids=lambda claim: claim.key)
def test_a_verdict_is_what_theory_proves_or_waits_for_what_is_measured(claim):
  judged = judge(claim, {})
  assert judged['verdict'] == PROVED.get(claim.key)
  assert set(judged['calls']) == {*judged['exact'], *judged['measured']}
  assert all(value is None for value in judged['measured'].values())


def test_a_call_can_be_computed_without_any_figure():
  # 110/21 + 40/51, as docs/paper.md has it.
  assert abs(recompute('best_risk(task())') - 6.022409) < 5e-7


def test_keys_are_unique():
  assert len({claim.key for claim in CLAIMS}) == len(CLAIMS)


def test_the_three_verdicts():
  assert verdict('a < b', 'b < 5', {'a': 1.0, 'b': 2.0}) == HOLDS
  assert verdict('a < b', 'b < 2', {'a': 1.0, 'b': 2.0}) == NOT_SHARP
  assert verdict('a < b', 'b < 2', {'a': 3.0, 'b': 2.0}) == FAILS
  assert verdict('a < b', 'b < 2', {'a': 3.0, 'b': None}) is None


@pytest.mark.parametrize(
  ('slope', 'expected'), [(1 / 51, HOLDS), (1.02 / 51, HOLDS), (1.04 / 51, FAILS)]
)
def test_a_measured_slope_off_by_more_than_three_per_cent_fails(slope, expected):
  (claim,) = (claim for claim in CLAIMS if claim.key == 'figure-4-bias')
  x = [0, 40, 160]
  dots = series('trained', 'dots', BLUE, x, [5.238 + slope * value for value in x])
  plots = {'4': Plot('4', (Panel('d', 'x', 'y', (dots,)),))}
  judged = judge(claim, plots)
  assert judged['verdict'] == expected
  assert abs(judged['measured']['trained_slope'] - slope) < 1e-12
