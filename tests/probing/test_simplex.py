"""Errors of the weights of mixtures, at the edges of the simplex too."""

import numpy as np
import pytest

from tests.marks import FULL, SLOW
from zoo.probing.nearest.mixtures import _Samples, _stderrs
from zoo.probing.nearest.simplex import nearest


def _weighed(rng, weights, count, is_numbers):
  """Predictions of a model near a mixture of predictors, and of these; no lengths."""
  m = len(weights)
  if is_numbers:
    others = rng.normal(size=(m, count, 1))
    return np.tensordot(weights, others, 1) + 0.5 * rng.normal(size=(count, 1)), others
  others = rng.dirichlet(np.ones(3), size=(m, count))
  # Its mean given the predictors is the mixture, which is then the nearest.
  mixed = np.tensordot(weights, others, 1)
  own = np.stack([rng.dirichlet(20 * row) for row in mixed])
  return np.maximum(own, 1e-12), others


def _with_errors(own, others, is_numbers):
  samples = _Samples(own[:, None], others[:, :, None], np.zeros(0))
  found = nearest(samples.own, samples.others, is_numbers)
  return found, _stderrs(samples, range(len(others)), found, is_numbers)


_EDGES = [
  *((1.0, 0.0), (0.98, 0.02), (0.5, 0.5), (1.0, 0.0, 0.0), (0.7, 0.3, 0.0)),
  *((0.95, 0.03, 0.02), (0.4, 0.4, 0.2), (0.9, 0.1, 0.0, 0.0)),
]


@pytest.mark.parametrize('is_numbers', [True, False])
@pytest.mark.parametrize(
  ('weights', 'num_draws'),
  [
    ((1.0, 0.0), 50),
    *(
      pytest.param(weights, 1000, marks=SLOW if weights == (0.7, 0.3, 0.0) else FULL)
      for weights in _EDGES
    ),
  ],
)
def test_intervals_of_weights_contain_them_at_the_edge_too(
  weights, num_draws, is_numbers
):
  rng = np.random.default_rng(7)
  hits = np.zeros(len(weights))
  for _ in range(num_draws):
    own, others = _weighed(rng, np.array(weights), 200, is_numbers)
    found, stderrs = _with_errors(own, others, is_numbers)
    assert np.all(np.array(stderrs) > 0)
    hits += np.abs(found - weights) <= 1.96 * np.array(stderrs)
  if num_draws == 50:
    # Of 50 draws with 0.95 or more, fewer than 42 are seen once in 1000 times.
    assert hits.min() >= 42
    return
  # 1000 draws have a spread of 0.007. At 0 and 1 one of two tails is cut off, so that
  # 0.975 of the intervals contain the weight, or more where the other weights that are
  # cut off leave it nothing to lose; the rest is seldom enough to be seen.
  coverage, inside = hits / num_draws, (np.array(weights) % 1) > 0
  assert np.all(coverage > 0.9)
  assert np.all(coverage < np.where(inside, 0.99, 1.0))


def test_a_model_that_is_a_mixture_has_weights_with_an_error_of_rounding():
  rng = np.random.default_rng(8)
  others = rng.normal(size=(2, 100, 1))
  for weights in ([1.0, 0.0], [0.25, 0.75]):
    own = np.tensordot(np.array(weights), others, 1)
    found, stderrs = _with_errors(own, others, is_numbers=True)
    np.testing.assert_allclose(found, weights, atol=1e-6)
    assert 0 < min(stderrs) <= max(stderrs) < 1e-4


def test_weights_that_nothing_determines_have_the_largest_error():
  rng = np.random.default_rng(9)
  first, second = rng.normal(size=(2, 100, 1))
  others = np.stack([first, second, (first + second) / 2])
  own = (first + second) / 2 + 0.1 * rng.normal(size=(100, 1))
  _, stderrs = _with_errors(own, others, is_numbers=True)
  assert stderrs == [0.5, 0.5, 0.5]
