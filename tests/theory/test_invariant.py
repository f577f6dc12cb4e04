"""Two layers of linear attention that commute with rotations of the features."""

import numpy as np
import pytest

from docs.programs import invariant
from tests.compare import refuses
from tests.marks import mostly_full
from tests.settings import general, isotropic
from tests.theory.expectations import second_moments
from zoo.theory import deep

_PAPER = isotropic(10, 10)


def _weights(rng, scale=0.3):
  first, second = scale * rng.normal(size=(2, 2)), scale * rng.normal(size=2)
  return first, second, float(rng.normal())


def _learned(moment, first, second, readout):
  """What multiplies the whitened features of the query, layer by layer."""
  d = moment.shape[-1] - 1
  (u, v), (w, z) = first
  heads = [([u] * d + [w], [1] * d + [0]), ([v] * d + [z], [0] * d + [1])]
  change = np.eye(d + 1) + sum(np.diag(p) @ moment @ np.diag(a) for p, a in heads)
  after = change @ moment @ np.swapaxes(change, -1, -2)
  query = change[..., :d]  # the query's token was [x; 0]
  label = query[:, d] + np.einsum(
    'pi,pij->pj', after[:, d] * np.append([second[0]] * d, second[1]), query
  )
  return readout * label


@pytest.mark.parametrize(
  ('d', 'c', 'noise_std'),
  mostly_full(
    [(2, 1, 0.5)], [(1, 1, 0.6), (1, 2, 0.4), (2, 2, 0.0)], slow=[(1, 3, 0.0)]
  ),
)
def test_the_risk_is_that_over_all_prompts(d, c, noise_std):
  """Two random networks; by Gauss–Hermite, which is exact.

  The square has the degree 16 in each number that is drawn.
  """
  variances = np.array([0.5, 2.0])[:d]
  task = isotropic(
    d,
    c,
    prior_mean=1.5,
    noise_std=noise_std,
    feature_covariance=np.diag(variances),
    prior_covariance=0.8 * np.diag(1 / variances),
  )
  # Labels minus w*·x, and whitened features: those of the task have no other law.
  truth, moment, mass = second_moments(9, d, c, 0.8, noise_std)
  rng = np.random.default_rng(d + 10 * c)
  for _ in range(2):
    network = _weights(rng)
    errors = _learned(moment, *network) - truth
    expected = np.sum(mass @ errors**2)
    # Sums of up to 531,441 terms of one sign.
    assert invariant.invariant_risk(task, *network) == pytest.approx(expected, 1e-11)


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize('noise_std', mostly_full([0.6], [0.0]))
def test_the_search_ends_between_its_bounds(noise_std):
  features = np.diag([0.5, 1.0, 4.0])
  task = isotropic(
    3,
    4,
    prior_mean=2.0,
    noise_std=noise_std,
    feature_covariance=features,
    prior_covariance=2.0 * np.linalg.inv(features),
  )
  lower, upper, weights = invariant.invariant_optimum(task)
  assert float(deep.lower_bound(task, 4)) < lower < upper
  assert upper == invariant.invariant_risk(task, *weights)
  whitened = isotropic(3, 4, noise_std=noise_std, prior_covariance=2.0 * np.eye(3))
  assert upper < deep.gd_plus_plus_optimum(whitened, 2).lower


def test_bad_input_is_named(unchecked):
  with refuses('first has shape (2,)', '(2, 2)'):
    invariant.invariant_risk(_PAPER, np.ones(2), np.ones(2))
  with refuses('second has shape (2, 2)'):
    invariant.invariant_risk(_PAPER, np.eye(2), np.eye(2))
  with refuses('product of feature_covariance and prior_covariance'):
    invariant.invariant_optimum(general())
