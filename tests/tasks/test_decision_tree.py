"""Decision trees, and the trees that are fitted to their prompts."""

import functools
import sys
from typing import Any

import jax
import numpy as np
import pytest

import zoo
from tests.compare import refuses
from tests.tasks import host
from zoo.estimators.trees import Boosting, GreedyTree
from zoo.tasks import DecisionTree


@functools.cache
def _drawn() -> Any:
  """10,000 prompts, and the trees that they are drawn from."""
  task = DecisionTree(num_features=5, context_length=20, depth=3)
  return host.sample_with_latents(task, 0, 10_000)


def test_labels_are_the_leaves_that_the_features_lead_to():
  prompt = _drawn()
  x, labels = host.features(prompt)[:10], host.targets(prompt)[:10]

  def label(tree, features, node=0):
    coordinates, values = tree
    assert (len(coordinates), len(values)) == (7, 8)
    if node >= 7:
      return values[node - 7]
    right = features[coordinates[node]] > 0
    return label(tree, features, 2 * node + (2 if right else 1))

  for i in range(10):
    tree = [leaf[i] for leaf in prompt.latents]
    expected = [label(tree, features) for features in x[i]]
    np.testing.assert_array_equal(labels[i], expected)
  assert len(np.unique(labels)) > 40  # of 80 leaves


def test_a_feature_that_is_not_positive_goes_left():
  task = DecisionTree(num_features=1, context_length=3, depth=1)
  x = np.array([[-1.0], [0.0], [1e-30]], 'f')
  function = np.array([0], 'int32'), np.array([3.0, 5.0], 'f')
  labels = jax.jit(task.evaluate)(function, x)
  np.testing.assert_array_equal(labels, [3.0, 3.0, 5.0])


def test_each_coordinate_is_as_likely_at_each_node():
  coordinates, values = _drawn().latents
  share = np.mean(coordinates[..., None] == np.arange(5), axis=0)
  # 35 shares of 10,000 draws.
  assert np.all(np.abs(share - 1 / 5) <= 4 * np.sqrt(4 / 25 / 10_000))
  # The same coordinate at two nodes as often as by chance: with replacement.
  same = np.mean(coordinates[:, 1] == coordinates[:, 2])
  assert abs(same - 1 / 5) <= 4 * np.sqrt(4 / 25 / 10_000)
  # Leaves are N(0, 1): E v⁴ = 3, Var v⁴ = 96.
  assert abs(np.mean(np.asarray(values) ** 4) - 3) <= 4 * np.sqrt(96 / values.size)


def _prompt(x, y, x_query) -> zoo.Prompt:
  x, y, x_query = (np.asarray([array], 'f') for array in (x, y, x_query))
  return zoo.Prompt(x=x, y=y, x_query=x_query, y_query=y.sum(axis=1))


def _few() -> Any:
  return jax.tree.map(lambda array: array[:4], _drawn())


@pytest.mark.parametrize(
  'baseline', [GreedyTree(), Boosting(), GreedyTree(signs=False)]
)
def test_no_example_gives_zero_and_one_gives_its_label(baseline):
  prompt = _few().prefix(1)
  np.testing.assert_array_equal(baseline(prompt.prefix(0)), np.zeros(4))
  # Boosting starts from the mean of the labels.
  np.testing.assert_allclose(baseline(prompt), prompt.y[:, 0], rtol=1e-6)


def test_two_examples_in_closed_form():
  x, y = [[1.0, -2.0], [-3.0, -0.5]], [1.0, 4.0]
  # Only the first feature has different signs, and the raw second one other splits.
  prompt = _prompt(x, y, [0.1, 5.0])
  assert GreedyTree()(prompt) == 1.0
  # Each tree takes a tenth of what is left of the distance to the mean.
  expected = 2.5 - 1.5 * (1 - 0.9**50)
  np.testing.assert_allclose(Boosting()(prompt), expected, rtol=1e-6)
  # Without signs the second feature could split them as well; both agree here.
  assert GreedyTree(signs=False)(_prompt(x, y, [0.1, -1.5])) == 1.0
  assert GreedyTree(signs=False)(_prompt(x, y, [-2.0, 0.0])) == 4.0


def test_signs_are_all_that_it_sees():
  prompt = _few()
  far = zoo.Prompt(
    x=prompt.x * 7, y=prompt.y, x_query=prompt.x_query * 0.1, y_query=prompt.y_query
  )
  for baseline in GreedyTree(), Boosting():
    np.testing.assert_array_equal(baseline(prompt), baseline(far))


def test_without_scikit_learn_one_line_says_how_to_get_it(monkeypatch):
  for module in 'sklearn', 'sklearn.tree', 'sklearn.ensemble':
    monkeypatch.setitem(sys.modules, module, None)
  task = DecisionTree(context_length=2)
  assert list(task.baselines())[:2] == ['boosting', 'greedy_tree']
  prompt = _few().prefix(2)
  for name in 'boosting', 'greedy_tree':
    with refuses('scikit-learn is not installed', "-e '.[baselines]'"):
      task.baselines()[name](prompt)
