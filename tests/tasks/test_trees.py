import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import zoo
from tests.compare import refuses
from zoo.measure.curves import sample_batches, sample_losses
from zoo.tasks import DecisionTree
from zoo.tasks.decision_tree import Boosting, GreedyTree


def _prompt(x, y, x_query) -> zoo.Prompt:
  x, y, x_query = (jnp.asarray(one, jnp.float32)[None] for one in (x, y, x_query))
  return zoo.Prompt(x=x, y=y, x_query=x_query, y_query=y.sum(axis=1))


@pytest.mark.parametrize(
  'baseline', [GreedyTree(), Boosting(), GreedyTree(signs=False)]
)
def test_no_example_gives_zero_and_one_gives_its_label(baseline):
  prompt = DecisionTree(context_length=1).sample(jax.random.key(0), 4)
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


def test_a_greedy_tree_is_the_one_that_numpy_grows():
  prompt = DecisionTree(num_features=6, context_length=30).sample(jax.random.key(0), 20)
  expected = [
    _grown(np.asarray(x, float), np.asarray(y, float), np.asarray(query, float))
    for x, y, query in zip(prompt.x, prompt.y, prompt.x_query, strict=True)
  ]
  found = GreedyTree(signs=False)(prompt)
  # Where two splits are equally good, as of two examples by any feature, scikit-learn
  # draws one, and the tree may be another.
  for prediction, (value, tied) in zip(found, expected, strict=True):
    assert tied or prediction == np.float32(value)
  assert sum(not tied for _, tied in expected) >= 3


def _grown(x, y, query):
  """The leaf of the query in the tree of best splits, and whether any was a draw."""
  tied = False
  while len(np.unique(y)) > 1:
    splits = []
    for feature in range(x.shape[1]):
      values = np.unique(x[:, feature])
      for threshold in (values[1:] + values[:-1]) / 2:
        right = x[:, feature] > threshold
        error = sum(np.sum((y[side] - y[side].mean()) ** 2) for side in (right, ~right))
        splits.append((error, feature, threshold))
    splits.sort()
    tied |= len(splits) > 1 and splits[1][0] - splits[0][0] < 1e-9
    _, feature, threshold = splits[0]
    side = (x[:, feature] > threshold) == (query[feature] > threshold)
    x, y = x[side], y[side]
  return y[0], tied


def test_signs_are_all_that_it_sees():
  prompt = DecisionTree(context_length=20).sample(jax.random.key(0), 4)
  far = zoo.Prompt(
    x=prompt.x * 7, y=prompt.y, x_query=prompt.x_query * 0.1, y_query=prompt.y_query
  )
  for baseline in GreedyTree(), Boosting():
    np.testing.assert_array_equal(baseline(prompt), baseline(far))


def test_a_tree_of_one_split_is_found():
  # After 60 examples a feature that agrees with the right one has a probability 1e-17.
  task = DecisionTree(num_features=3, context_length=60, depth=1)
  prompt = task.sample(jax.random.key(0), 8)
  np.testing.assert_allclose(GreedyTree()(prompt), prompt.y_query, rtol=1e-6)


def test_its_losses_are_measured_without_compiling_it():
  task = DecisionTree(num_features=3, context_length=4)
  found = sample_losses({'': GreedyTree()}, task, 4, lengths=[0, 4])
  prompt = next(sample_batches(task, 0, 4, 4))
  expected = np.square(np.asarray(GreedyTree()(prompt)) - np.asarray(prompt.y_query))
  np.testing.assert_allclose(found[''][:, 1], expected, rtol=1e-6)


def test_without_scikit_learn_one_line_says_how_to_get_it(monkeypatch):
  for module in 'sklearn', 'sklearn.tree', 'sklearn.ensemble':
    monkeypatch.setitem(sys.modules, module, None)
  task = DecisionTree(context_length=2)
  assert list(task.baselines())[:2] == ['boosting', 'greedy_tree']
  prompt = task.sample(jax.random.key(0), 1)
  for name in 'boosting', 'greedy_tree':
    with refuses('scikit-learn is not installed', "pip install 'icl-zoo[baselines]'"):
      task.baselines()[name](prompt)
