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


def test_signs_are_all_that_it_sees():
  prompt = DecisionTree(context_length=20).sample(jax.random.key(0), 4)
  far = zoo.Prompt(
    x=prompt.x * 7, y=prompt.y, x_query=prompt.x_query * 0.1, y_query=prompt.y_query
  )
  for baseline in GreedyTree(), Boosting():
    np.testing.assert_array_equal(baseline(prompt), baseline(far))


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
