"""The one-angle formula against golden values and the search over subspaces."""

import numpy as np
import pytest

from tests.compare import refuses
from tests.marks import mostly_full
from tests.settings import isotropic
from zoo import theory
from zoo.theory import head_limit

# arXiv 2512.04268's setting, d = C = 10 and |w*|² = 40, one head to eleven; from a
# search over subspaces in other code, to the last digit given.
_GOLDEN = (
  *(14.430617, 9.773786, 8.189708, 7.417059, 6.958767, 6.654441),
  *(6.436445, 6.270866, 6.137874, 6.022409, 6.022409),
)


def test_golden_values():
  found = [
    theory.isotropic_head_limit(10, 10, heads, np.sqrt(40)) for heads in range(1, 12)
  ]
  np.testing.assert_allclose(found, _GOLDEN, rtol=0, atol=5.1e-7)


@pytest.mark.parametrize(
  ('d', 'c', 'distance', 'bias', 'noise'),
  mostly_full(
    [(1, 1, 1.0, 0.0, 0.0), (3, 4, 1.5, 0.3, 0.7)],
    [(3, 2, 0.0, 0.0, 0.0), (3, 40, 5.0, 0.0, 0.0), (4, 3, 2.0, 0.5, 2.0)],
  ),
)
def test_it_is_what_the_search_over_all_subspaces_finds(d, c, distance, bias, noise):
  task = isotropic(
    d, c, distance / np.sqrt(d), noise**0.5, prior_covariance=4 * np.eye(d)
  )
  given = head_limit.whiten(theory.task_moments(task), task.prior_mean, bias)
  for heads in range(1, d + 1):
    found = theory.head_limited_risk(task, heads, 0.0, bias)
    assert found.lower == found.upper
    searched = given.unit * head_limit.searched_risk(given, heads, 4)
    # A search that ends where its slope is 1e-9 is off by the square of that.
    assert found.upper == pytest.approx(searched, rel=1e-8)


def test_with_long_contexts_no_digits_are_lost():
  # C times the limit tends to (d + 1)(d + |w*|²), and is below by a term in 1/C.
  gaps = []
  for c in (10**6, 10**8):
    gaps.append(1 - theory.isotropic_head_limit(4, c, 1, 2.0) * c / (5 * 8))
  assert gaps[0] == pytest.approx(1e-5, rel=0.05)
  assert gaps[1] == pytest.approx(gaps[0] / 100, rel=0.05)


def test_bad_input_is_named(unchecked):
  for arguments, said in (
    ((0, 1, 1, 1.0), 'num_features is 0'),
    ((1, 0, 1, 1.0), 'context_length is 0'),
    ((1, 1, 0, 1.0), 'num_heads is 0'),
    ((1, 1, 1, -1.0), 'distance is -1'),
  ):
    with refuses(said):
      theory.isotropic_head_limit(*arguments)
