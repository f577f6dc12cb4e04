import functools
from typing import Any

import jax
import numpy as np
import pytest
from scipy.special import log_softmax, softmax

import zoo
from tests.compare import refuses
from tests.tasks import host
from zoo.core.protocols import PredictsAll
from zoo.estimators.baselines import Averaging, NearestNeighbours
from zoo.estimators.linear import Ridge
from zoo.tasks import GaussianClusters
from zoo.tasks import gaussian_clusters as clusters


def _task(**changes) -> GaussianClusters:
  fields = {'num_features': 3, 'context_length': 9, 'num_classes': 3} | changes
  task = zoo.create_task('gaussian_clusters', **fields)
  assert isinstance(task, GaussianClusters)
  return task


def _sample(task, seed=0, batch_size=64) -> zoo.Prompt:
  return host.sample(task, seed, batch_size)


@pytest.mark.slow
def test_points_are_normal_around_means_that_are_uniform():
  batch, k, c = 4000, 2, 50
  prompt = _sample(_task(num_classes=k, num_features=1, context_length=c), 0, batch)
  x, y = prompt.x[..., 0], prompt.y
  np.testing.assert_array_equal(y.sum(-1), 1)
  # Each class has half the examples, up to 5 standard errors.
  assert abs(y[..., 0].mean() - 0.5) <= 5 * 0.5 / np.sqrt(batch * c)
  counts = y.sum(1)
  means = np.einsum('bc,bck->bk', x, y) / counts
  # The mean of n points is μ + N(0, 1/n): variance 1/3 + 1/n, and E m⁴ for the fourth
  # moment of a uniform μ, 1/5, with the two Gaussian terms 6 (1/3)/n and 3/n².
  m = means.ravel()
  inverse = (1 / counts).ravel()
  for power, expected in (
    (1, 0),
    (2, 1 / 3 + inverse.mean()),
    (4, 1 / 5 + 2 * inverse.mean() + 3 * np.mean(inverse**2)),
  ):
    error = np.std(m**power) / np.sqrt(len(m))
    assert abs(np.mean(m**power) - expected) <= 5 * error
  # The two means of a prompt are independent.
  assert abs(np.mean(means[:, 0] * means[:, 1])) <= 5 / 3 / np.sqrt(batch)
  residual = x - np.einsum('bk,bck->bc', means, y)
  # Σ residual² over a class has n − 1 degrees of freedom.
  freedom = batch * c - 2 * batch
  assert abs(np.sum(residual**2) / freedom - 1) <= 5 * np.sqrt(2 / freedom)


@functools.cache
def _drawn(seed: int) -> zoo.Prompt:
  return _sample(_task(context_length=20), seed, 2000)


def _few(seed: int) -> zoo.Prompt:
  return jax.tree.map(lambda array: array[:4], _drawn(seed))


@pytest.mark.slow
def test_labels_have_the_probabilities_of_their_targets():
  prompt = _drawn(1)
  y, target = prompt.y, host.targets(prompt)[:, :-1]
  gap, variance = (y - target).sum((0, 1)), (target * (1 - target)).sum((0, 1))
  assert np.all(np.abs(gap) <= 5 * np.sqrt(variance))
  # And among those whose target says much.
  sure = target > 0.8
  gap, variance = (y - target)[sure].sum(), (target * (1 - target))[sure].sum()
  assert abs(gap) <= 5 * np.sqrt(variance)


_rule = functools.cache(lambda: np.polynomial.legendre.leggauss(400))


def _quadrature(x, y, x_query):
  """The log density of each class, times (2π)^(d/2), from integrals over the means."""
  grid, weights = _rule()
  log_densities = []
  for k in range(y.shape[1]):
    mine = x[y[:, k] == 1]
    log_density = 0.0
    for j in range(x.shape[1]):
      before = -np.sum((mine[:, j, None] - grid) ** 2, axis=0) / 2
      after = before - (x_query[j] - grid) ** 2 / 2
      for sign, exponent in ((-1, before), (1, after)):
        mass = np.sum(weights * np.exp(exponent - exponent.max()))
        log_density += sign * (np.log(mass) + exponent.max())
    log_densities.append(log_density)
  return np.asarray(log_densities)


_BAYES = jax.jit(clusters.ClusterBayes().predictions)


@pytest.mark.parametrize(('scale', 'seed'), [(1.0, 0), (4.0, 1), (10.0, 2)])
def test_bayes_agrees_with_quadrature_also_far_outside_the_cube(scale, seed):
  # At the scale of 10 points are 30 away from all means that are possible.
  prompt = _few(seed)
  prompt = zoo.Prompt(
    scale * prompt.x, prompt.y, scale * prompt.x_query, prompt.y_query
  )
  actual = log_softmax(np.asarray(_BAYES(prompt), np.float64), axis=-1)
  for k in (0, 1, 2, 7, 20):
    part = prompt.prefix(k)
    for b in range(4):
      arrays = (np.asarray(a[b], np.float64) for a in (part.x, part.y, part.x_query))
      expected = log_softmax(_quadrature(*arrays))
      # Float32 rounds terms of up to n (m − 1)²/2, about 1000 at the scale of 10.
      np.testing.assert_allclose(
        actual[b, k], expected, rtol=2e-5, atol=2e-5 * scale**2
      )


def test_bayes_far_away_is_finite():
  prompt = _few(0)
  x: Any = np.full_like(prompt.x, 300)
  x_query: Any = np.full_like(prompt.x_query, -300)
  far = zoo.Prompt(x, prompt.y, x_query, prompt.y_query)
  assert np.isfinite(_BAYES(far)).all()


@pytest.mark.slow
@pytest.mark.full
def test_the_other_baselines_agree_with_loops():
  task = _task()
  prompt = _sample(task, 2, 3)
  baselines = task.baselines()
  every = {}
  for name, f in baselines.items():
    assert isinstance(f, PredictsAll)
    every[name], alone = jax.device_get(
      jax.jit(lambda p, f=f: (f.predictions(p), f(p)))(prompt)
    )
    np.testing.assert_allclose(alone, every[name][:, -1], rtol=1e-4, atol=1e-4)
  for k in (0, 1, 2, 9):
    part = prompt.prefix(k)
    actual = {name: values[:, k] for name, values in every.items()}
    np.testing.assert_array_equal(actual['zero'], 0)
    for b in range(3):
      x, y, q = (np.asarray(a[b], np.float64) for a in (part.x, part.y, part.x_query))
      means = [x[y[:, j] == 1].mean(0) if y[:, j].any() else 0 * q for j in range(3)]
      expected = [-np.sum((q - m) ** 2) / 2 for m in means]
      np.testing.assert_allclose(actual['nearest_mean'][b], expected, rtol=1e-5)
      nearest = np.argsort(np.sum((x - q) ** 2, axis=1))[:3]
      of_all = (y.sum(0) + 1 / 3) / (k + 1)
      shares = (y[nearest].sum(0) + of_all) / (len(nearest) + 1)
      probabilities = softmax(actual['nearest_neighbours'][b])
      np.testing.assert_allclose(probabilities, shares, atol=3e-6)
      weights, intercepts = np.zeros((3, 3)), np.zeros(3)
      for _ in range(1000 if k else 0):
        gap = y - softmax(x @ weights + intercepts, axis=1)
        weights += 0.01 / k * x.T @ gap
        intercepts += 0.01 / k * gap.sum(0)
      # 1000 steps, each with a rounding of numbers below 1.
      np.testing.assert_allclose(
        actual['logistic'][b], q @ weights + intercepts, atol=1e-4
      )


@pytest.mark.parametrize(
  ('baseline', 'instead'),
  [
    (NearestNeighbours(), 'NearestShares'),
    (Averaging(), 'NearestMean'),
    (Ridge(), 'SoftmaxRegression'),
  ],
)
def test_a_baseline_of_numbers_names_that_of_classes(baseline, instead):
  prompt = _few(0)
  with refuses(
    f'{type(baseline).__name__} predicts numbers', f'zoo.estimators.classes.{instead}'
  ):
    jax.eval_shape(baseline, prompt)
