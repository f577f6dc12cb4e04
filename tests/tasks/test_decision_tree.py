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
