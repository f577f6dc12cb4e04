import functools
from typing import Any

import jax
import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit, log_expit, log_ndtr, ndtr

import zoo
from tests.marks import mostly_full, mostly_slow
from tests.tasks import host
from zoo.estimators.baselines import Examples
from zoo.tasks import LogisticRegression
from zoo.tasks import logistic_regression as classification
from zoo.tasks.base import unshifted

_COVARIANCE = np.asarray([[2.0, 0.5, 0.0], [0.5, 1.0, -0.3], [0.0, -0.3, 0.5]])
_NULL = np.asarray([1.0, 2.0, -2.0]) / 3
_PRIORS = {
  'standard': {},
  'variance 3': {'prior_covariance': 3 * np.eye(3)},
  'general': {'prior_mean': [1.0, -2.0, 0.5], 'prior_covariance': _COVARIANCE},
  'singular': {
    'prior_mean': [1.0, -2.0, 0.5],
    'prior_covariance': 2 * (np.eye(3) - np.outer(_NULL, _NULL)),
  },
  'wide': {'prior_covariance': 1e4 * np.eye(3)},
  'far': {'prior_mean': 30.0},
}


def _task(**changes) -> LogisticRegression:
  fields = {'num_features': 3, 'context_length': 12} | changes
  task = zoo.create_task('logistic_regression', **fields)
  assert isinstance(task, LogisticRegression)
  return task


@functools.cache
def _drawn(link: str) -> Any:
  """4000 prompts of the general prior, with the weights that they are drawn from."""
  return host.sample_with_latents(_task(link=link, **_PRIORS['general']), 1, 4000)


def _few(task: LogisticRegression, seed: int, count: int) -> Any:
  """Prompts of a task, by the program that draws 4000 of a general prior."""
  prompt = host.sample_with_latents(task, seed, 4000)
  return jax.tree.map(lambda array: array[:count], prompt)


@pytest.mark.slow
def test_weights_have_the_moments_of_the_prior():
  n = 4000
  gap = _drawn('logistic').latents - np.asarray(_PRIORS['general']['prior_mean'])
  variance = np.diag(_COVARIANCE)
  # 5 standard errors of a Gaussian sample.
  assert np.all(np.abs(gap.mean(0)) <= 5 * np.sqrt(variance / n))
  error = np.sqrt((np.outer(variance, variance) + _COVARIANCE**2) / n)
  assert np.all(np.abs(gap.T @ gap / n - _COVARIANCE) <= 5 * error)


_LINKS = {'logistic': expit, 'probit': ndtr, 'sign': lambda u: (u > 0) * 1.0}


@pytest.mark.parametrize('link', mostly_slow(['logistic'], ['sign', 'probit']))
def test_targets_are_the_link_of_the_score_and_labels_have_their_probabilities(link):
  prompt = _drawn(link)
  weights = prompt.latents[:4].astype(np.float64)
  scores = np.einsum('bd,btd->bt', weights, host.features(prompt)[:4])
  # A few roundings of scores of the size of 10.
  targets = host.targets(prompt)
  np.testing.assert_allclose(targets[:4], _LINKS[link](scores), atol=1e-5)
  assert set(np.unique(prompt.y)) == {-1, 1}
  positive, target = (prompt.y + 1) / 2, targets[:, :-1]
  for part in (target < 0.3, (target >= 0.3) & (target < 0.7), target >= 0.7):
    variance = np.sum((target * (1 - target))[part])
    assert abs(np.sum((positive - target)[part])) <= 5 * np.sqrt(variance)
  if link == 'sign':
    np.testing.assert_array_equal(positive, target)
    assert abs(target.mean() - 0.5) < 5 * 0.5 / np.sqrt(4000)


def _root(task):
  covariance = task.prior_covariance
  identity = np.eye(task.num_features)
  values, vectors = np.linalg.eigh(identity if covariance is None else covariance)
  keep = values > 1e-9
  return vectors[:, keep] * np.sqrt(values[keep])


def _optimum(task, x, y):
  """The weights of greatest posterior density, in float64."""
  root, mean = _root(task), task.prior_mean
  log_link = log_ndtr if task.link == 'probit' else log_expit

  def objective(z):
    return z @ z / 2 - np.sum(log_link(y * (x @ (mean + root @ z))))

  def gradient(z):
    u = y * (x @ (mean + root @ z))
    if task.link == 'probit':
      slope = np.exp(-u * u / 2 - log_ndtr(u)) / np.sqrt(2 * np.pi)
    else:
      slope = expit(-u)
    return z - root.T @ (x.T @ (y * slope))

  start = np.zeros(root.shape[1])
  solution = minimize(objective, start, jac=gradient, method='BFGS', tol=1e-10)
  z = np.linalg.lstsq(root, mean + root @ solution.x - mean, rcond=None)[0]
  return mean + root @ z, gradient


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize(
  ('link', 'prior'),
  mostly_full(
    [('logistic', 'general')],
    ['logistic', 'probit', 'sign'],
    _PRIORS,
  ),
)
def test_map_agrees_with_an_optimizer_and_has_no_gradient(link, prior):
  task = _task(link=link, **_PRIORS[prior])
  predictor = classification.MaximumAPosteriori(task)
  prompt = host.sample(task, 3, 4)
  # Labels at random after the third, so that some contradict the prior.
  y = prompt.y * np.where(np.arange(12) < 3, 1, [1, -1] * 6).astype(np.float32)
  prompt = zoo.Prompt(prompt.x, y, prompt.x_query, prompt.y_query)
  seen = [np.arange(12) < k for k in (0, 1, 5, 12)]
  at_every_k = jax.vmap(
    lambda x, y, seen, x_query: predictor.weights(Examples(x, y, seen, x_query)),
    (None, None, 0, None),
  )
  weights = jax.jit(jax.vmap(at_every_k, (0, 0, None, 0)))(
    prompt.x, prompt.y, np.stack(seen), prompt.x_query
  )
  for b in range(4):
    for i, k in enumerate((0, 1, 5, 12)):
      x, labels = prompt.x[b, :k].astype(np.float64), y[b, :k].astype(np.float64)
      expected, gradient = _optimum(task, x, labels)
      fitted = np.asarray(weights[b, i], np.float64)
      # Float32 rounds scores as large as |x| times the spread of the prior, and the
      # gradient is |x| times the spread times more.
      scale = np.abs(expected).max() + np.sqrt(np.linalg.norm(_root(task), 2))
      np.testing.assert_allclose(fitted, expected, rtol=0, atol=2e-4 * scale)
      root = _root(task)
      z = np.linalg.lstsq(root, fitted - task.prior_mean, rcond=None)[0]
      size = 1e-4 * scale * np.linalg.norm(root, 2) * (1 + np.linalg.norm(x))
      assert np.abs(gradient(z)).max() <= size
  if link != 'sign':
    log_link = log_ndtr if link == 'probit' else log_expit
    score = np.einsum('bd,bd->b', prompt.x_query, weights[:, -1]).astype(np.float64)
    expected = log_link(score) - log_link(-score)
    actual = jax.jit(predictor)(prompt)
    np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-3)


def _posterior_mean(task, x, y, x_query):
  """P(+1) by Gauss–Legendre quadrature around the mode, scaled by its Hessian."""
  log_link = log_ndtr if task.link == 'probit' else log_expit
  root, mean = _root(task), task.prior_mean
  x, y, x_query = (np.asarray(array, np.float64) for array in (x, y, x_query))
  rows, offset = y[:, None] * (x @ root), y * (x @ mean)
  mode = np.linalg.lstsq(root, _optimum(task, x, y)[0] - mean, rcond=None)[0]
  step = 1e-4  # the second differences of log_link: errors of 1e-8 of it
  at = offset + rows @ mode
  bend = 2 * log_link(at) - log_link(at + step) - log_link(at - step)
  precision = np.eye(len(mode)) + (rows.T * bend / step**2) @ rows
  axis, weights = np.polynomial.legendre.leggauss(64)
  d = len(mode)
  t = np.stack(np.meshgrid(*[7 * axis] * d, indexing='ij'), axis=-1).reshape(-1, d)
  log_weights = np.log(weights)[np.indices([len(axis)] * d)].sum(axis=0).ravel()
  near = np.linalg.norm(t, axis=1) <= 7
  t, log_weights = t[near], log_weights[near]
  z = mode + t @ np.linalg.inv(np.linalg.cholesky(precision))
  log_p = log_weights - np.sum(z * z, axis=1) / 2
  for shift, row in zip(offset, rows, strict=True):
    log_p += log_link(shift + z @ row)
  p = np.exp(log_p - log_p.max())
  return p @ np.exp(log_link((mean + z @ root.T) @ x_query)) / p.sum()


@pytest.mark.parametrize(
  ('link', 'prior', 'k'),
  mostly_full(
    [('logistic', 'general', 12)],
    ['logistic', 'probit'],
    ['standard', 'general', 'singular', 'variance 3'],
    [0, 1, 12, 60],
  ),
)
def test_bayes_is_exact_for_few_features_and_else_estimated(link, prior, k):
  task = _task(link=link, context_length=max(k, 12), **_PRIORS[prior])
  prompt = _few(task, 6, 2).prefix(k)
  bayes, estimate = (
    task.baselines()['bayes'],
    classification.ImportanceSampling(task, 2**16),
  )
  both = jax.jit(lambda prompt: (bayes(prompt), estimate(prompt)))
  quadrature, sampled = (expit(np.asarray(f, np.float64)) for f in both(prompt))
  expected = [
    _posterior_mean(task, *arrays)
    for arrays in zip(prompt.x, prompt.y, prompt.x_query, strict=True)
  ]
  # The largest measured error of the rule is 4e-5, and sums in float32 of up to 60
  # logarithms add 1e-5.
  np.testing.assert_allclose(quadrature, expected, rtol=0, atol=1e-4)
  # 2^16 numbers from 0 to 1 have a mean with an error of 0.002 at most, and their
  # proposal is near the posterior.
  np.testing.assert_allclose(sampled, expected, rtol=0, atol=0.006)


@pytest.mark.slow
@pytest.mark.parametrize('std', mostly_full([10.0], [30.0, 100.0]))
def test_bayes_of_wide_priors_is_that_of_a_dense_grid(std):
  """Between contradicting examples the posterior has the tails of an exponential."""
  task = _task(num_features=1, context_length=5, prior_covariance=[[std**2]])
  prompt = _few(task, 0, 256)
  bayes = jax.jit(task.baselines()['bayes'])
  actual = expit(np.asarray(bayes(prompt), np.float64))
  z = np.linspace(-8, 8, 40_001)
  log_p = np.tile(-z * z / 2, (256, 1))
  for k in range(5):
    log_p += log_expit((prompt.y * prompt.x[..., 0])[:, k, None] * std * z)
  p = np.exp(log_p - log_p.max(axis=1, keepdims=True))
  expected = np.sum(p * expit(prompt.x_query * std * z), axis=1) / p.sum(axis=1)
  # The largest measured error is 4e-5; it was 3e-4 with a narrower grid.
  np.testing.assert_allclose(actual, expected, rtol=0, atol=6e-5)


@pytest.mark.parametrize(
  ('d', 'variance', 'kind'),
  [
    (1, 4500.0**2, classification.Quadrature),
    (1, 4600.0**2, classification.ImportanceSampling),
    (2, 14.0**2, classification.Quadrature),
    (2, 15.0**2, classification.ImportanceSampling),
    (3, 4.0, classification.Quadrature),
    (3, 5.0, classification.ImportanceSampling),
    (4, 1.0, classification.ImportanceSampling),
  ],
)
def test_bayes_is_estimated_where_a_grid_would_be_large(d, variance, kind):
  task = _task(num_features=d, prior_covariance=variance * np.eye(d))
  named = {k: v for k, v in task.baselines().items() if k.startswith('bayes')}
  is_exact = kind is classification.Quadrature
  assert [*named] == ['bayes' if is_exact else 'bayes_estimate']
  (bayes,) = named.values()
  assert isinstance(bayes, kind)
  # So that nothing calls the loss of an estimate the least possible one.
  assert [*unshifted(named)] == [f'{name}_unshifted' for name in named]


@pytest.mark.slow
@pytest.mark.parametrize('link', mostly_full(['logistic'], ['sign'], slow=['probit']))
def test_averaging_has_the_sign_of_the_mean_of_y_x(link):
  task = _task(link=link, prior_covariance=2 * np.eye(3))
  prompt = _few(task, 1, 32)
  noise = {'logistic': 8 / np.pi, 'probit': 1.0, 'sign': 0.0}[link]
  actual = np.asarray(jax.jit(classification.SignAveraging(task).predictions)(prompt))
  for k in (0, 1, 5, 12):
    part = prompt.prefix(k)
    for b in range(32):
      x, y, q = (np.asarray(a[b], np.float64) for a in (part.x, part.y, part.x_query))
      # A Gaussian w, measured as a = c w + noise of variance 1/k.
      mean, variance = np.zeros(3), 2.0
      if k:
        c = np.sqrt(2 / np.pi / (noise + 6))
        gain = 2 * c / (c * c * 2 + 1 / k)
        mean, variance = gain * (y @ x) / k, 2 * (1 - gain * c)
      u = q @ mean / np.sqrt(noise + variance * q @ q)
      np.testing.assert_allclose(
        actual[b, k], log_ndtr(u) - log_ndtr(-u), rtol=1e-4, atol=1e-5
      )
      if k:
        assert np.sign(actual[b, k]) == np.sign(q @ (y @ x))


def test_there_is_no_bayes_for_the_sign():
  assert 'bayes' not in _task(link='sign').baselines()
