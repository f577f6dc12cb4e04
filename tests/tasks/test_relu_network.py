"""Two-layer ReLU networks, and the Gaussian process that predicts them."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate

import zoo
from tests.marks import mostly_full
from tests.tasks import host
from zoo.tasks import ReluNetwork
from zoo.tasks.relu_network import ArcCosineKernel


@functools.cache
def _drawn(noise: float = 0.0, mean: float = 0.0) -> Any:
  """A task, and 800 prompts in float64: one program for all noise and all means."""
  task = ReluNetwork(4, 8, 10, noise_std=noise, output_mean=mean)
  with jax.enable_x64(True):
    return task, host.sample_with_latents(task, 0, 800)


def test_labels_are_those_of_the_equation():
  _, prompt = _drawn()
  hidden, output = (leaf[0] for leaf in prompt.latents)
  # `output` holds √(2/r) a.
  for label, features in zip(
    host.targets(prompt)[0], host.features(prompt)[0], strict=True
  ):
    total = 0.0
    for weights, scale in zip(hidden, output, strict=True):
      total += scale * max(0.0, sum(weights * features))
    # A few roundings of float64.
    np.testing.assert_allclose(label, total, rtol=0, atol=1e-14)


@pytest.mark.slow
def test_weights_are_independent_and_gaussian():
  task = ReluNetwork(2, 1, 3)
  hidden, output = host.sample_with_latents(task, 0, 20_000).latents
  hidden = hidden.reshape(-1, 6)
  drawn = np.concatenate([hidden, output / np.sqrt(2 / 3)], axis=1)
  # Var(v_i v_j) is 1, and 2 for i = j; 5 standard errors for 45 entries.
  error = np.sqrt((1 + np.eye(9)) / len(drawn))
  assert np.all(np.abs(drawn.T @ drawn / len(drawn) - np.eye(9)) <= 5 * error)
  assert np.all(np.abs(drawn.mean(0)) <= 5 / np.sqrt(len(drawn)))


@pytest.mark.slow
def test_the_mean_of_the_output_weights_is_that_of_the_labels():
  """The mean and covariance of the labels, which the kernel has, too."""
  task = ReluNetwork(3, 3, 5, output_mean=0.75)
  x = np.random.default_rng(0).normal(size=(4, 3)).astype('f')

  @jax.jit
  def draw(key, x):
    keys = jax.random.split(key, 40_000)
    return jax.vmap(lambda key: task.evaluate(task.sample_function(key), x))(keys)

  labels = np.asarray(draw(jax.random.key(1), x))
  norms = np.linalg.norm(x, axis=1)
  mean = 0.75 * np.sqrt(5 / np.pi) * norms
  error = labels.std(axis=0) / np.sqrt(len(labels))
  assert np.all(np.abs(labels.mean(axis=0) - mean) <= 4 * error)
  products = (labels - mean)[:, :, None] * (labels - mean)[:, None]
  expected = (1 + 0.75**2) * kernel(x)
  expected -= 0.75**2 / np.pi * np.outer(norms, norms)
  error = products.std(axis=0) / np.sqrt(len(labels))
  # 10 different entries.
  assert np.all(np.abs(products.mean(axis=0) - expected) <= 4 * error)


def test_noise_is_in_the_labels_and_not_in_the_targets():
  (_, clean), (_, noisy) = _drawn(), _drawn(0.5)
  np.testing.assert_array_equal(host.targets(noisy), host.targets(clean))
  noise = noisy.y - clean.y
  # 6400 values: the standard error of the variance is σ² √(2/n).
  assert abs(noise.var() - 0.25) <= 4 * 0.25 * np.sqrt(2 / noise.size)
  # It has a key of its own. 256 correlations, of which 5 standard errors are rare.
  features = np.asarray(noisy.x).reshape(800, -1)
  correlations = np.corrcoef(noise, features, rowvar=False)[:8, 8:]
  assert np.abs(correlations).max() < 5 / np.sqrt(800)


def _kernel(task: ReluNetwork) -> ArcCosineKernel:
  first, *_ = task.baselines().values()
  assert isinstance(first, ArcCosineKernel)
  return first


def kernel(x: np.ndarray) -> np.ndarray:
  """2 E[relu(w·x) relu(w·x')], by the integral over the angle of w in their plane."""
  out = np.zeros((len(x), len(x)))
  for i, first in enumerate(x.astype(float)):
    for j, second in enumerate(x.astype(float)):
      norms = np.linalg.norm(first) * np.linalg.norm(second)
      t = np.arccos(np.clip(first @ second / norms, -1, 1))
      # The length of w in the plane has E |w|² = 2, its angle the density 1/2π; both
      # factors are positive from t − π/2 to π/2.
      integral, _ = scipy.integrate.quad(
        lambda angle, t=t: np.cos(angle) * np.cos(angle - t), t - np.pi / 2, np.pi / 2
      )
      out[i, j] = 2 * 2 * norms * integral / (2 * np.pi)
  return out


@pytest.mark.slow
@pytest.mark.parametrize(
  ('noise', 'mean'), mostly_full([(0.5, 0.75)], [(0.0, 0.0), (0.5, 0.0), (0.0, 0.75)])
)
def test_the_kernel_predicts_the_mean_of_the_gaussian_process(noise, mean):
  """One of the labels' mean and covariance, which a test of the task compares."""
  task, drawn = _drawn(noise, mean)
  baseline, prompt = _kernel(task), jax.tree.map(lambda array: array[:4], drawn)
  with jax.enable_x64(True):

    @jax.jit
    def predict(prompt):
      return baseline.predictions(prompt), baseline(prompt.prefix(5))

    predictions, middle = jax.device_get(predict(prompt))
  # The same examples in matrices of other sizes, with other extra variances.
  np.testing.assert_allclose(middle, predictions[:, 5], rtol=0, atol=1e-10)
  for n in range(4):
    x = np.concatenate([prompt.x[n], prompt.x_query[n, None]])
    norms = np.linalg.norm(x, axis=1)
    gram = (1 + mean**2) * kernel(x) - mean**2 / np.pi * np.outer(norms, norms)
    guess = mean * np.sqrt(10 / np.pi) * norms
    for k in range(9):
      left = np.asarray(prompt.y[n, :k]) - guess[:k]
      weights = np.linalg.solve(gram[:k, :k] + noise**2 * np.eye(k), left)
      expected = guess[k] + gram[k, :k] @ weights
      # The extra variance of 1e-14 over a least eigenvalue of 1e-3 or more.
      assert abs(predictions[n, k] - expected) <= 1e-10


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize('d', mostly_full([2], [20]))
def test_the_decomposition_does_not_fail(d):
  task = ReluNetwork(d, 400, 3)
  prompt = jax.device_get(task.sample(jax.random.key(0), 4))
  # The same example four times, and a query that is an example.
  x, y = np.asarray(prompt.x)[:, :100], np.asarray(prompt.y)[:, :100]
  again = jnp.asarray(np.tile(x, (1, 4, 1))), jnp.asarray(np.tile(y, (1, 4)))
  repeated = zoo.Prompt(
    x=again[0], y=again[1], x_query=prompt.x[:, 7], y_query=prompt.y[:, 7]
  )
  baseline = _kernel(task)
  assert np.isfinite(jax.jit(baseline.predictions)(prompt)).all()
  # The label that was seen, up to the extra variance: 2e-4 over 4 times the
  # least eigenvalue.
  gap = np.asarray(jax.jit(baseline)(repeated)) - repeated.y_query
  assert np.abs(gap).max() <= 0.02 * np.sqrt(d)


@pytest.mark.slow
def test_features_that_are_zero_tell_nothing():
  baseline = _kernel(ReluNetwork(2, 3))
  x: Any = np.array([[[1.0, 2.0], [0.0, 0.0], [-1.0, 1.0]]], 'f')
  y: Any = np.array([[1.0, 0.0, 3.0]], 'f')
  query: Any = np.array([[0.5, 1.0]], 'f')
  with_zero = zoo.Prompt(x=x, y=y, x_query=query, y_query=y[:, 0])
  without = zoo.Prompt(x=x[:, ::2], y=y[:, ::2], x_query=query, y_query=y[:, 0])
  predict = jax.jit(lambda *prompts: [baseline(prompt) for prompt in prompts])
  np.testing.assert_allclose(*predict(with_zero, without), rtol=1e-5)
