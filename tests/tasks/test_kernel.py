import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate

import zoo
from tests.marks import mostly_full
from zoo.tasks import ReluNetwork
from zoo.tasks.relu_network import ArcCosineKernel


def _kernel(task: ReluNetwork) -> ArcCosineKernel:
  first, *_ = task.baselines().values()
  assert isinstance(first, ArcCosineKernel)
  return first


def kernel(x: np.ndarray) -> np.ndarray:
  """2 E[relu(w·x) relu(w·x')], by the integral over the angle of w in their plane."""
  out = np.zeros((len(x), len(x)))
  for i, one in enumerate(x.astype(float)):
    for j, two in enumerate(x.astype(float)):
      norms = np.linalg.norm(one) * np.linalg.norm(two)
      t = np.arccos(np.clip(one @ two / norms, -1, 1))
      # The length of w in the plane has E |w|² = 2, its angle the density 1/2π; both
      # factors are positive from t − π/2 to π/2.
      integral, _ = scipy.integrate.quad(
        lambda angle, t=t: np.cos(angle) * np.cos(angle - t), t - np.pi / 2, np.pi / 2
      )
      out[i, j] = 2 * 2 * norms * integral / (2 * np.pi)
  return out


@pytest.mark.parametrize(
  ('noise', 'mean'), mostly_full([(0.5, 0.75)], [(0.0, 0.0), (0.5, 0.0), (0.0, 0.75)])
)
def test_the_kernel_predicts_the_mean_of_the_gaussian_process(noise, mean):
  """One of the labels' mean and covariance, which a test of the task compares."""
  task = ReluNetwork(4, 12, 10, noise_std=noise, output_mean=mean)
  baseline = _kernel(task)
  with jax.enable_x64(True):
    prompt = jax.device_get(task.sample(jax.random.key(0), 4))

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
    for k in range(13):
      left = np.asarray(prompt.y[n, :k]) - guess[:k]
      weights = np.linalg.solve(gram[:k, :k] + noise**2 * np.eye(k), left)
      expected = guess[k] + gram[k, :k] @ weights
      # The extra variance of 1e-14 over a least eigenvalue of 1e-3 or more.
      assert abs(predictions[n, k] - expected) <= 1e-10


@pytest.mark.slow
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


def test_features_that_are_zero_tell_nothing():
  baseline = jax.jit(_kernel(ReluNetwork(2, 3)))
  x = jnp.asarray([[[1.0, 2.0], [0.0, 0.0], [-1.0, 1.0]]])
  y = jnp.asarray([[1.0, 0.0, 3.0]])
  query = jnp.asarray([[0.5, 1.0]])
  with_zero = baseline(zoo.Prompt(x=x, y=y, x_query=query, y_query=y[:, 0]))
  without = baseline(
    zoo.Prompt(x=x[:, ::2], y=y[:, ::2], x_query=query, y_query=y[:, 0])
  )
  np.testing.assert_allclose(with_zero, without, rtol=1e-5)
