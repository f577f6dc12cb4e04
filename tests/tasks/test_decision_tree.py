import jax
import jax.numpy as jnp
import numpy as np

from zoo.tasks import DecisionTree


def test_labels_are_the_leaves_that_the_features_lead_to():
  task = DecisionTree(num_features=5, context_length=200, depth=3)
  function = jax.device_get(jax.jit(task.sample_function)(jax.random.key(0)))
  coordinates, values = function
  assert (len(coordinates), len(values)) == (7, 8)
  x = np.asarray(jax.jit(task.sample_features)(jax.random.key(1)))
  labels = jax.jit(task.evaluate)(jax.tree.map(jnp.asarray, function), x)

  def label(features, node=0):
    if node >= 7:
      return values[node - 7]
    right = features[coordinates[node]] > 0
    return label(features, 2 * node + (2 if right else 1))

  np.testing.assert_array_equal(labels, [label(features) for features in x])
  assert len(np.unique(labels)) > 4


def test_a_feature_that_is_not_positive_goes_left():
  task = DecisionTree(num_features=1, context_length=3, depth=1)
  x = jnp.asarray([[-1.0], [0.0], [1e-30]])
  function = jnp.asarray([0]), jnp.asarray([3.0, 5.0])
  labels = jax.jit(task.evaluate)(function, x)
  np.testing.assert_array_equal(labels, [3.0, 3.0, 5.0])


def test_the_covariance_of_two_labels_is_the_probability_of_the_same_leaf():
  # Each of the nodes draws a coordinate: with m of d of the same sign both go on
  # together with the probability m/d, and after the depth 3 have the same leaf.
  d, depth, count = 4, 3, 20_000
  task = DecisionTree(num_features=d, context_length=1, depth=depth)
  draw = jax.jit(jax.vmap(task.sample_function))
  functions = draw(jax.random.split(jax.random.key(0), count))
  # Row m differs from the first in the last d − m coordinates.
  x = jnp.asarray(np.where(np.arange(d) < np.arange(d + 1)[:, None], 1.0, -1.0))
  evaluate = jax.jit(jax.vmap(task.evaluate, (0, None)))
  labels = np.asarray(evaluate(functions, x.astype('float32')))
  products = labels * labels[:, -1:]
  error = products.std(axis=0) / np.sqrt(count)
  gap = products.mean(axis=0) - (np.arange(d + 1) / d) ** depth
  assert np.all(np.abs(gap) <= 4 * error)
  assert np.all(np.abs(labels.mean(axis=0)) <= 4 / np.sqrt(count))


def test_each_coordinate_is_as_likely_at_each_node():
  task = DecisionTree(num_features=3, context_length=1, depth=2)
  keys = jax.random.split(jax.random.key(0), 10_000)
  draw = jax.jit(jax.vmap(task.sample_function))
  coordinates, values = jax.device_get(draw(keys))
  share = np.mean(coordinates[..., None] == np.arange(3), axis=0)
  # 9 shares of 10,000 draws.
  assert np.all(np.abs(share - 1 / 3) <= 4 * np.sqrt(2 / 9 / 10_000))
  # The same coordinate at two nodes as often as by chance: with replacement.
  same = np.mean(coordinates[:, 1] == coordinates[:, 2])
  assert abs(same - 1 / 3) <= 4 * np.sqrt(2 / 9 / 10_000)
  # Leaves are N(0, 1): E v⁴ = 3, Var v⁴ = 96.
  assert abs(np.mean(np.asarray(values) ** 4) - 3) <= 4 * np.sqrt(96 / values.size)
