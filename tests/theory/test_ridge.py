"""Bounds of the risks of ridge regression and of the posterior mean."""

import numpy as np
import pytest

from tests.compare import refuses
from tests.marks import mostly_slow
from tests.settings import general, isotropic, root
from zoo import estimators, theory

_ROTATION = np.linalg.qr(np.random.default_rng(2).normal(size=(3, 3)))[0]


def _scaled(c, **other):
  """ΣΛ = 0.9 I, though neither is a multiple of the identity."""
  features = _ROTATION @ np.diag([0.3, 1.0, 2.0]) @ _ROTATION.T
  prior = 0.9 * np.linalg.inv(features)
  return isotropic(3, c, feature_covariance=features, prior_covariance=prior, **other)


def _sampled(estimator, task, count=20_000):
  """The mean risk over contexts, of which ŵ and noise are averaged exactly.

  With `W = (XᵀX + penalty K⁻¹)⁻¹` the error is `penalty W K⁻¹ (start − ŵ) + W Xᵀn`.
  """
  d, c = task.num_features, task.context_length
  features, prior = (
    root(covariance, d) @ root(covariance, d).T
    for covariance in (task.feature_covariance, task.prior_covariance)
  )
  # Of w − start, where w ~ N(prior_mean, Λ).
  shift = np.asarray(task.prior_mean, float) - estimator.start
  deviation = prior + np.outer(shift, shift)
  rng = np.random.default_rng(0)
  x = rng.normal(size=(count, c, d)) @ np.linalg.cholesky(features).T
  of_weights = np.eye(d) if estimator.root is None else estimator.root
  inverse = estimator.penalty * np.linalg.inv(of_weights @ of_weights.T)
  gram = np.einsum('bci,bcj->bij', x, x)
  w = np.linalg.inv(gram + inverse)
  left = w @ inverse
  noise = task.noise_std**2 * w @ gram @ w
  risks = np.einsum('ij,bji->b', features, left @ deviation @ left.swapaxes(1, 2))
  risks += np.einsum('ij,bji->b', features, noise)
  return risks.mean(), risks.std() / np.sqrt(count)


def _cases():
  long = isotropic(4, 9, noise_std=1.0, feature_covariance=2.0 * np.eye(4))
  prior = np.diag([3.0, 1.0, 1.0, 0.1])
  spread = isotropic(4, 6, noise_std=0.8, prior_covariance=prior)
  scaled = _scaled(5, noise_std=0.6)
  start = np.array([0.5, -1.0, 2.0, 0.0])
  return {
    'posterior mean, ΣΛ a number': (estimators.bayes(scaled), scaled),
    'ridge, any prior': (estimators.ridge(spread), spread),
    'too small a penalty, elsewhere': (estimators.ridge(start, 0.2), long),
  }


@pytest.mark.parametrize('name', mostly_slow([*_cases()][:1], _cases()))
def test_the_risk_of_sampled_contexts_is_within_the_bounds(name):
  estimator, task = _cases()[name]
  lower, upper = theory.ridge_risk(estimator, task)
  assert 0 < lower <= upper < 1.01 * lower
  mean, error = _sampled(estimator, task)
  assert error < 0.01 * mean
  assert lower - 4 * error < mean < upper + 4 * error


def test_without_noise_both_bounds_are_the_closed_form():
  assert theory.bayes_risk(isotropic(5, 3)) == (2.0, 2.0)
  assert theory.bayes_risk(isotropic(3, 5)) == (0.0, 0.0)
  certain = isotropic(2, 3, prior_covariance=np.zeros((2, 2)), noise_std=1.0)
  assert theory.bayes_risk(certain) == (0.0, 0.0)


def test_bounds_that_agree_are_an_exact_risk_and_others_are_said():
  task = isotropic(3, 5, noise_std=1.0)
  lower, upper = theory.bayes_risk(task)
  assert lower <= theory.exact_risk(estimators.bayes(task), task) <= upper
  # With a hundredth of the noise the pole is near the spectrum.
  vague = isotropic(3, 5, noise_std=0.1)
  lower, upper = theory.bayes_risk(vague)
  with refuses(f'between {lower:.9g} and {upper:.9g}'):
    theory.exact_risk(estimators.bayes(vague), vague)


def test_what_is_not_covered_is_named(unchecked):
  task = general(noise_std=0.5)
  for estimator in (estimators.bayes(task), estimators.ridge(task, 0.3)):
    with refuses('the features that the estimator sees have variances from'):
      theory.ridge_risk(estimator, task)
  with refuses('the task is of type int'):
    theory.bayes_risk(3)  # pyright: ignore[reportArgumentType]
