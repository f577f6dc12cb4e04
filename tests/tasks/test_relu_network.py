import jax
import jax.numpy as jnp
import numpy as np

from tests.tasks.test_kernel import kernel
from zoo.tasks import ReluNetwork


def test_labels_are_those_of_the_equation():
  task = ReluNetwork(4, 6, 3)
  with jax.enable_x64(True):
    x = jax.jit(task.sample_features)(jax.random.key(0))
    draw = jax.jit(task.sample_function)
    hidden, output = function = draw(jax.random.key(1))
    labels = jax.jit(task.evaluate)(function, x)
  # `output` holds √(2/r) a.
  for label, features in zip(labels, np.asarray(x), strict=True):
    total = 0.0
    for weights, scale in zip(np.asarray(hidden), np.asarray(output), strict=True):
      total += scale * max(0.0, sum(weights * features))
    # A few roundings of float64.
    np.testing.assert_allclose(label, total, rtol=0, atol=1e-14)


def test_weights_are_independent_and_gaussian():
  task = ReluNetwork(2, 1, 3)
  keys = jax.random.split(jax.random.key(0), 20_000)
  hidden, output = jax.jit(jax.vmap(task.sample_function))(keys)
  hidden, output = np.reshape(hidden, (-1, 6)), np.asarray(output)
  drawn = np.concatenate([hidden, output / np.sqrt(2 / 3)], axis=1)
  # Var(v_i v_j) is 1, and 2 for i = j; 5 standard errors for 45 entries.
  error = np.sqrt((1 + np.eye(9)) / len(drawn))
  assert np.all(np.abs(drawn.T @ drawn / len(drawn) - np.eye(9)) <= 5 * error)
  assert np.all(np.abs(drawn.mean(0)) <= 5 / np.sqrt(len(drawn)))


def test_the_mean_of_the_output_weights_is_that_of_the_labels():
  """The mean and covariance of the labels, which the kernel has, too."""
  task = ReluNetwork(3, 3, 5, output_mean=0.75)
  x = jax.jit(task.sample_features)(jax.random.key(0))
  keys = jax.random.split(jax.random.key(1), 40_000)
  functions = jax.jit(jax.vmap(task.sample_function))(keys)
  evaluate = jax.jit(jax.vmap(task.evaluate, (0, None)))
  labels = np.asarray(evaluate(functions, jnp.asarray(x)))
  norms = np.linalg.norm(x, axis=1)
  mean = 0.75 * np.sqrt(5 / np.pi) * norms
  error = labels.std(axis=0) / np.sqrt(len(labels))
  assert np.all(np.abs(labels.mean(axis=0) - mean) <= 4 * error)
  products = (labels - mean)[:, :, None] * (labels - mean)[:, None]
  expected = (1 + 0.75**2) * kernel(np.asarray(x))
  expected -= 0.75**2 / np.pi * np.outer(norms, norms)
  error = products.std(axis=0) / np.sqrt(len(labels))
  # 10 different entries.
  assert np.all(np.abs(products.mean(axis=0) - expected) <= 4 * error)


def test_noise_is_in_the_labels_and_not_in_the_targets():
  clean = ReluNetwork(3, 20, 5).sample(jax.random.key(0), 500)
  task = ReluNetwork(3, 20, 5, noise_std=0.5)
  noisy = task.sample(jax.random.key(0), 500)
  np.testing.assert_array_equal(noisy.targets, clean.targets)
  noise = np.asarray(noisy.y) - np.asarray(clean.y)
  # 10,000 values: the standard error of the variance is σ² √(2/n).
  assert abs(noise.var() - 0.25) <= 4 * 0.25 * np.sqrt(2 / noise.size)
  # It has a key of its own. 1200 correlations, of which 5 standard errors are rare.
  features = np.asarray(noisy.x).reshape(500, -1)
  correlations = np.corrcoef(noise, features, rowvar=False)[:20, 20:]
  assert np.abs(correlations).max() < 5 / np.sqrt(500)
