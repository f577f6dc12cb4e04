"""Regression on squares: its prompts, and its baselines against other code."""

import functools
from typing import Any

import jax
import numpy as np
import pytest

from tests.marks import mostly_full
from tests.tasks import host
from zoo.estimators.linear import Ridge
from zoo.tasks import QuadraticRegression

_COUNT = 5000


@functools.cache
def _drawn(noise_std: float = 0.0, prior_mean: Any = 0.0) -> Any:
  """A task, and prompts in float64: one program for all noise and all means."""
  task = QuadraticRegression(3, 5, noise_std, prior_mean)
  with jax.enable_x64(True):
    return task, host.sample(task, 0, _COUNT)


@pytest.mark.slow
def test_labels_are_sums_of_weighted_squares():
  (_, prompt), (_, noisy) = _drawn(), _drawn(0.5)
  np.testing.assert_array_equal(prompt.y, host.targets(prompt)[:, :-1])
  x, y = np.asarray(prompt.x), np.asarray(prompt.y)
  weights = np.einsum('bij,bj->bi', np.linalg.pinv(x**2), y)
  for i in range(16):
    values = [sum(weights[i, j] * x[i, t, j] ** 2 for j in range(3)) for t in range(5)]
    np.testing.assert_allclose(y[i], values, atol=1e-8)
  # The variance of a sample variance is 2 σ⁴ / n, here of 1/3.
  assert np.abs(np.cov(weights.T) * 3 - np.eye(3)).max() < 4 * np.sqrt(2 / _COUNT)
  noise = np.asarray(noisy.y) - y
  assert abs(noise.var() / 0.25 - 1) < 4 * np.sqrt(2 / noise.size)
  np.testing.assert_array_equal(host.targets(noisy), host.targets(prompt))


@pytest.mark.slow
def test_a_prior_mean_moves_the_weights():
  mean = (2.0, -1.0, 0.5)
  (task, moved), (centred, plain) = _drawn(0.0, mean), _drawn()
  assert task != centred
  assert centred == QuadraticRegression(3, 5, prior_mean=[0.0, 0.0, 0.0])
  x, change = moved.x[:8], (moved.y - plain.y)[:8]
  for i, t in np.ndindex(change.shape):
    expected = sum(mean[j] * x[i, t, j] ** 2 for j in range(3)) / np.sqrt(3)
    # Roundings of numbers of about 10.
    assert change[i, t] == pytest.approx(expected, abs=1e-13)


@pytest.mark.parametrize(
  ('noise_std', 'prior_mean'),
  mostly_full(
    [(0.0, 0.0), (0.5, (2.0, -1.0, 0.5))],
    [(0.0, 0.0), (0.5, 0.0), (0.0, (2.0, -1.0, 0.5))],
  ),
)
def test_bayes_is_the_posterior_mean(noise_std, prior_mean):
  """By the joint normal distribution of the weights and the labels."""
  task, drawn = _drawn(noise_std, prior_mean)
  prompt = jax.tree.map(lambda array: array[:8], drawn)
  bayes = task.baselines()['bayes']
  assert isinstance(bayes, Ridge)
  assert bayes.penalty == 3 * noise_std**2
  mean = np.broadcast_to(prior_mean, 3) / np.sqrt(3)
  with jax.enable_x64(True):
    predictions = np.asarray(jax.jit(bayes.predictions)(prompt))
  for i in range(8):
    squares = np.asarray(prompt.x[i]) ** 2
    for k in range(6):
      z, y = squares[:k], np.asarray(prompt.y[i, :k])
      covariance = z @ z.T / 3 + noise_std**2 * np.eye(k)
      w = mean + z.T / 3 @ np.linalg.pinv(covariance, rcond=1e-12) @ (y - z @ mean)
      query = squares[k] if k < 5 else np.asarray(prompt.x_query[i]) ** 2
      np.testing.assert_allclose(predictions[i, k], w @ query, rtol=1e-6, atol=1e-6)
