"""Regression with few weights: its prompts, and Bayes and the lasso on them."""

import dataclasses
import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import zoo
from tests.compare import refuses
from tests.marks import SLOW, mostly_full
from tests.tasks import host
from zoo.estimators.baselines import Examples
from zoo.tasks import SparseRegression
from zoo.tasks import sparse_regression as sparse


def _task(**changes):
  fields: Any = {'num_features': 5, 'context_length': 7, 'num_nonzero': 2} | changes
  return SparseRegression(**fields)


_COUNT = 5000


@functools.cache
def _drawn(std=0.0) -> Any:
  """Prompts in float64; those of any noise are of one program."""
  with jax.enable_x64(True):
    return host.sample_with_latents(_task(noise_std=std), 0, _COUNT)


@pytest.mark.slow
def test_a_few_random_weights_are_standard_normal_and_the_others_zero():
  w, count = _drawn().latents, _COUNT
  assert np.all((w != 0).sum(1) == 2)
  # Each pair of coordinates is as likely as the others.
  nonzero = (w != 0).astype(float)
  shares = nonzero.T @ nonzero / count
  expected = np.where(np.eye(5, dtype=bool), 2 / 5, 1 / 10)
  error = np.sqrt(expected * (1 - expected) / count)
  assert np.all(np.abs(shares - expected) < 4 * error)
  assert scipy.stats.kstest(w[w != 0], 'norm').pvalue > 1e-3


def test_labels_are_the_products_with_the_weights():
  clean, noisy = _drawn(), _drawn(0.5)
  x, of_clean = host.features(clean), host.targets(clean)
  for i in range(64):
    w = np.linalg.lstsq(x[i, :-1], clean.y[i])[0]
    assert np.sum(np.abs(w) > 1e-9) == 2
    targets = [sum(w[j] * x[i, t, j] for j in range(5)) for t in range(8)]
    np.testing.assert_allclose(of_clean[i], targets, atol=1e-9)
  np.testing.assert_array_equal(clean.context_targets, clean.y)
  noise = noisy.y - noisy.context_targets
  # The variance of 35,000 normal numbers is off by √(2/35,000) of itself.
  np.testing.assert_allclose(noise.var(), 0.25, rtol=4 * np.sqrt(2 / 35_000))


def _posterior_mean(x, y, x_query, num_nonzero, std):
  """From the definition: each support, its evidence and its posterior mean."""
  d, k = x.shape[1], len(y)
  log_evidence, predictions = [], []
  for support in itertools.combinations(range(d), num_nonzero):
    x_s = x[:, support]
    covariance = x_s @ x_s.T + std**2 * np.eye(k)
    if std == 0 and k > num_nonzero:
      w, *_ = np.linalg.lstsq(x_s, y)
      fits = np.abs(x_s @ w - y).max() < 1e-9 * np.abs(y).max()
      log_evidence.append(0.0 if fits else -np.inf)
    else:
      w = x_s.T @ np.linalg.solve(covariance, y)
      log_evidence.append(
        scipy.stats.multivariate_normal.logpdf(y, np.zeros(k), covariance) if k else 0.0
      )
    predictions.append(w @ x_query[list(support)])
  posterior = np.exp(np.array(log_evidence) - max(log_evidence))
  return posterior @ predictions / posterior.sum()


@pytest.mark.parametrize('std', mostly_full([0.0, 0.5], [0.01]))
def test_bayes_is_the_mean_over_all_supports(std):
  prompt = jax.tree.map(lambda array: array[:6], _drawn(std))
  x, y = host.features(prompt), prompt.y
  with jax.enable_x64(True):
    bayes = jax.jit(sparse.SparseBayes(5, 2, std).predictions)
    predictions = np.asarray(bayes(prompt))
  for i in range(len(y)):
    for k in range(8):
      expected = _posterior_mean(x[i, :k], y[i, :k], x[i, k], 2, std)
      # Rounding in float64, times the condition of a square of random numbers.
      np.testing.assert_allclose(predictions[i, k], expected, atol=1e-8)


@pytest.mark.slow
def test_bayes_is_certain_without_noise_where_examples_determine_the_weights():
  task = _task(num_features=1, context_length=1, num_nonzero=1)
  prompt = host.sample(task, 0, 4096)
  bayes: Any = task.baselines()['bayes']
  # w = y/x, in float32; w is rounded, and |w x_q| is at most some 16.
  np.testing.assert_allclose(jax.jit(bayes)(prompt), prompt.y_query, atol=1e-5)
  np.testing.assert_array_equal(jax.jit(bayes.distribution)(prompt).std, 0)
  # Two weights and one example: the label varies by what is orthogonal to it.
  pair = _task(num_features=2, context_length=1)
  prompt = host.sample(pair, 0, 64)
  bayes = pair.baselines()['bayes']
  label = jax.jit(bayes.distribution)(prompt)
  x, x_query = prompt.x[:, 0], prompt.x_query
  across = x[:, 0] * x_query[:, 1] - x[:, 1] * x_query[:, 0]
  std = np.abs(across) / np.linalg.norm(x, axis=1)
  np.testing.assert_allclose(label.std, std, rtol=1e-3, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize('penalty', mostly_full([0.01], [0.1, 0.001]))
def test_the_lasso_is_that_of_another_library(penalty):
  import sklearn.linear_model  # which takes long

  task = SparseRegression(context_length=12, noise_std=0.1)

  def objective(w, x, y):
    return np.square(y - x @ w).mean() / 2 + penalty * np.abs(w).sum()

  prompt = host.sample(task, 0, 4)
  x, y = (array.astype(np.float64) for array in (host.features(prompt), prompt.y))
  lasso = sparse.Lasso(penalty)
  weights = jax.jit(
    jax.vmap(
      lambda x, y, seen, x_query: lasso.weights(Examples(x, y, seen, x_query)),
      (0, 0, None, 0),
    )
  )
  np.testing.assert_array_equal(jax.jit(lasso.predictions)(prompt)[:, 0], 0)
  for k in (1, 2, 5, 12):
    seen = jnp.arange(12) < k
    fitted = np.asarray(weights(prompt.x, prompt.y, seen, prompt.x_query), np.float64)
    for i in range(4):
      x_k, y_k = x[i, :k], y[i, :k]
      other = sklearn.linear_model.Lasso(
        penalty, fit_intercept=False, tol=1e-12, max_iter=1_000_000
      )
      least = objective(other.fit(x_k, y_k).coef_, x_k, y_k)
      # The promise, and as much again for float32 and for the other's end.
      gap = objective(fitted[i], x_k, y_k) - least
      assert abs(gap) < 2e-5 * np.mean(y_k**2)


@pytest.mark.parametrize(
  ('num_nonzero', 'x', 'y', 'expected'),
  [
    # Only the first support can give the label 1.
    pytest.param(1, [[1.0, 0.0, 0.0]], [1.0], 1.0, marks=SLOW),
    # Labels on two axes: both weights are 1 on the one support that fits.
    (2, [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], [1.0, 1.0], 1.0),
    # The second example repeats the first.
    (2, [[0.3, 0.7, 1.1], [0.9, 2.1, 3.3]], [0.37, 1.11], 0.10757),
  ],
)
def test_examples_that_depend_on_each_other_count_once(num_nonzero, x, y, expected):
  with jax.enable_x64(True):
    arrays = x, y, [True] * len(x), [1.0, 0.0, 0.0]
    examples = Examples(*map(jnp.asarray, arrays))
    found = jax.jit(sparse.SparseBayes(3, num_nonzero, 0.0).predict)(examples)
    # The limit of small noise, by its definition. The error is of the order of σ².
    x_query = np.array([1.0, 0.0, 0.0])
    limit = _posterior_mean(np.array(x), np.array(y), x_query, num_nonzero, 1e-4)
  np.testing.assert_allclose([float(found), limit], expected, atol=1e-4)


@pytest.mark.slow
def test_bayes_has_gradients_with_and_without_noise():
  prompt = jax.tree.map(jnp.asarray, host.sample(_task(), 0, 2))
  for std in (0.0, 0.5):

    def loss(x, std=std):
      bayes = sparse.SparseBayes(5, 2, std)
      return bayes.predictions(dataclasses.replace(prompt, x=x)).sum()

    assert np.isfinite(jax.jit(jax.grad(loss))(prompt.x)).all()


def test_there_is_no_bayes_where_there_are_too_many_supports():
  task = SparseRegression(num_features=40, num_nonzero=5)
  assert next(iter(task.baselines())) == 'lasso'


def test_bad_input_is_refused_in_one_line(unchecked):
  with refuses('num_nonzero is 6; it must be an integer from 1 to 5'):
    zoo.create_task('sparse_regression', num_features=5, num_nonzero=6)
