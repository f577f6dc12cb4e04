"""Tests: p values of means that may be 0, and corrections for several tests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import ArrayLike

from zoo.measure.intervals import Estimate

LEVEL = 0.05  # Tests have this level.


def t_test(values: ArrayLike | Sequence[float]) -> float:
  """Returns the two-sided p value of Student's test that samples `[n]` have the mean 0.

  For differences this is the paired test. It is NaN for a single sample, and for equal
  samples other than 0: their variance is unknown, so that no t value is defined. It is
  1 for two or more samples that are all 0.

  Example:
    >>> t_test([0.1, 0.1]), t_test([0.0, 0.0])
    (nan, 1.0)
  """
  from scipy import stats  # It is slow to import.

  values = np.ravel(np.asarray(values, np.float64))
  # The mean of equal samples may be rounded, which gives them a tiny variance.
  if np.all(values == values[0]):
    return math.nan if len(values) == 1 or values[0] else 1.0
  test: Any = stats.ttest_1samp(values, 0.0)
  return float(test.pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
  """Returns Holm's adjusted p values (Scand. J. Statist. 6, 1979).

  The j-th smallest of m values is multiplied by m − j + 1, and is no less than the one
  before it. NaN stands for no test: it stays, and does not count.

  Example:
    >>> [round(p_value, 2) for p_value in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
  """
  adjusted, largest = list(map(float, p_values)), 0.0
  tested = [i for i, p_value in enumerate(adjusted) if not math.isnan(p_value)]
  tested.sort(key=lambda i: adjusted[i])
  for rank, place in enumerate(tested):
    largest = max(largest, min(1.0, (len(tested) - rank) * adjusted[place]))
    adjusted[place] = largest
  return adjusted


def apart_from_extreme(
  gaps: Sequence[Estimate], rounding: float = 0.0, level: float = LEVEL
) -> list[bool]:
  """Returns which of several means are apart from the least, or largest, of them.

  Which mean is the extreme one is decided by the samples that also test the gaps. So
  any pair of means may come to be compared, and Bonferroni's correction is over all
  pairs. If means are equal, one of them is called apart with at most the probability
  `level`.

  Args:
    gaps: The distance of each of the k − 1 other means from the extreme one, ≥ 0.
    rounding: The size up to which a gap may be rounding.
    level: The level of the test.
  """
  num_pairs = (len(gaps) + 1) * len(gaps) / 2
  p_values = _p_values_above_zero(gaps, rounding)
  return [num_pairs * p_value < level / 2 for p_value in p_values]


def above_zero(
  values: Sequence[Estimate], rounding: float = 0.0, level: float = LEVEL
) -> list[bool]:
  """Returns which of several estimates are above 0, by Holm's method over all of them.

  The tests are Student's, one-sided at half of the level, so that one test alone agrees
  with the 95 % interval. An estimate whose error is 0 is above 0 if it exceeds the
  rounding. An estimate without an error is not tested.

  Args:
    values: The estimates.
    rounding: The size up to which a mean may be rounding.
    level: The level of the two-sided test.
  """
  p_values = holm(_p_values_above_zero(values, rounding))
  return [p_value < level / 2 for p_value in p_values]


def p_value_above_zero(value: Estimate, rounding: float = 0.0) -> float:
  """Returns the one-sided p value that a mean is at most 0, or at most the rounding.

  The test is Student's. The p value is NaN if the mean or its error is NaN.
  """
  from scipy import special  # It is slow to import.

  if math.isnan(value.mean) or math.isnan(value.stderr):
    return math.nan
  if value.stderr == 0:
    return 0.0 if value.mean > rounding else 1.0
  return float(special.stdtr(value.num - 1, -(value.mean - rounding) / value.stderr))


def _p_values_above_zero(values: Sequence[Estimate], rounding: float) -> list[float]:
  return [p_value_above_zero(value, rounding) for value in values]
