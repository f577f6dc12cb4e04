"""Moments of sample covariances of general features, and the risks made of them."""

import itertools

import jax
import numpy as np
import pytest

from tests.marks import mostly_full, mostly_slow
from tests.settings import isotropic
from tests.theory.deep_rules import form_of, predict
from tests.theory.expectations import hermite_grid
from zoo.theory.deep.deep_rule import (
  deep_rule_risk,
  deep_spectrum,
)
from zoo.theory.deep.feature_moments import feature_moments

_risk = jax.jit(deep_rule_risk)


@pytest.mark.parametrize('c', mostly_slow([2], [1]))
def test_moments_are_those_of_all_contexts(c):
  """By Gauss–Hermite, exact for the degree 12 that Sⁱ Σ Sʲ has in each number."""
  variances = np.array([0.5, 2.0])
  grid, mass = hermite_grid([7] * 2 * c)
  x = grid.reshape(-1, c, 2) * np.sqrt(variances)
  s = np.einsum('pci,pcj->pij', x, x) / c
  powers = [np.broadcast_to(np.eye(2), s.shape)]
  for _ in range(3):
    powers.append(powers[-1] @ s)
  moments, traces = feature_moments(variances, c, 4)
  for i, j in itertools.product(range(4), repeat=2):
    mean = np.einsum('p,pij->ij', mass, powers[i] @ np.diag(variances) @ powers[j])
    # Nothing but the diagonal: sums of 2401 terms, of which those beside it cancel.
    expected = np.diag(moments[:, i, j])
    np.testing.assert_allclose(mean, expected, rtol=1e-11, atol=1e-11 * mean.max())
    assert traces[i + j] == pytest.approx(expected.sum(), rel=1e-13)


@pytest.mark.parametrize(
  ('seed', 'equal'),
  mostly_full([(2, False)], range(20), [False, True], slow=[(2, True)]),
)
def test_the_risk_of_a_form_is_that_of_sampled_prompts(seed, equal):
  """Σ, Λ and σ general, or Σ a multiple of I, and every term of the form."""
  rng = np.random.default_rng(seed)
  d, c, layers, count = 2 + seed % 3, 2 + seed % 5, 1 + seed % 2, 40_000
  a, b = rng.normal(size=(2, d, d)) / np.sqrt(d)
  if equal:  # where three layers are covered, too
    b, layers = rng.uniform(0.4, 0.9) * np.eye(d), 1 + seed % 3
  noise = float(rng.uniform(0, 1))
  task = isotropic(
    d,
    c,
    prior_mean=rng.normal(size=d),
    noise_std=noise,
    prior_covariance=a @ a.T,
    feature_covariance=b @ b.T,
  )
  form = form_of(seed, layers, d)
  x = rng.normal(size=(count, c, d)) @ b.T
  w = task.prior_mean + rng.normal(size=(count, d)) @ a.T
  y = np.einsum('pcd,pd->pc', x, w) + noise * rng.normal(size=(count, c))
  query = rng.normal(size=(count, d)) @ b.T
  losses = (predict(form, x, y, query) - np.sum(query * w, axis=1)) ** 2
  error = losses.std() / np.sqrt(count)
  assert error < 0.05 * losses.mean()
  with jax.enable_x64(True):
    risk = float(_risk(form, deep_spectrum(form, task)))
  # One of 40 is beyond 4 standard errors once in 400.
  assert abs(losses.mean() - risk) < 4 * error


@pytest.mark.slow
@pytest.mark.full
def test_features_that_do_not_vary_are_no_trouble(float64):
  features = np.diag([1.0, 2.0, 0.0])
  task = isotropic(3, 4, prior_mean=1.0, feature_covariance=features)
  smaller = isotropic(2, 4, prior_mean=1.0, feature_covariance=features[:2, :2])
  form = form_of(1, 2, 3)
  cut = jax.tree.map(lambda leaf: leaf[:2] if np.shape(leaf) == (3,) else leaf, form)
  risk, wanted = (
    float(_risk(rule, deep_spectrum(rule, other)))
    for rule, other in ((form, task), (cut, smaller))
  )
  assert risk == pytest.approx(wanted, rel=1e-12)
