"""The steps at which curves turn are those of curves made by hand."""

import math

import numpy as np
import pytest

from studies.headlines.appearance import crossing, half_way, rank_correlation

STEPS = 1, 4, 16, 64


def test_half_of_a_change_is_made_between_two_steps():
  # The middle of 10 and 0 is 5. It is reached half of the way from 8 at step 4 to 2 at
  # step 16, which is step 8 on a logarithmic axis.
  falling = [10.0, 8.0, 2.0, 0.0]
  assert half_way(STEPS, falling) == pytest.approx(8)
  assert half_way(STEPS, [-value for value in falling]) == pytest.approx(8)


def test_the_first_half_counts_if_a_curve_comes_back():
  assert half_way(STEPS, [0.0, 4.0, -2.0, 4.0]) == pytest.approx(2)


def test_a_curve_that_does_not_change_has_the_last_step():
  assert half_way(STEPS, [3.0] * 4) == 64
  assert crossing(STEPS, [-1.0] * 4) == 64


def test_a_curve_that_begins_above_0_has_the_first_step():
  assert crossing(STEPS, [0.1, -1.0, -1.0, 1.0]) == 1


def test_the_step_is_where_a_straight_line_in_its_logarithm_is_0():
  # From −1 at step 4 to 3 at step 16: a quarter of log 4 above log 4.
  assert crossing(STEPS, [-2.0, -1.0, 3.0, 4.0]) == pytest.approx(4 * 4**0.25)
  # A curve that touches 0 is above it from there on.
  assert crossing(STEPS, [-2.0, 0.0, 3.0, 4.0]) == 4


def test_an_unknown_value_is_not_above_0():
  assert crossing(STEPS, [math.nan, math.nan, 1.0, 1.0]) == 16
  assert crossing(STEPS, [math.nan] * 4) == 64


def test_ranks_are_compared_where_both_are_known():
  loss = [4.0, 3.0, 2.0, 1.0]
  assert rank_correlation(loss, [np.nan, 1.0, 5.0, 9.0]) == pytest.approx(-1)
  assert rank_correlation(loss, [np.nan, np.nan, 5.0, 9.0]) == 0
  assert rank_correlation(loss, [2.0] * 4) == 0
