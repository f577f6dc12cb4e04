"""A model in context is an estimator of scikit-learn."""

from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

import zoo
from tests.compare import assert_close, refuses
from tests.weights import drawn
from zoo.estimators.linear import Ridge

pytest.importorskip('sklearn', reason="needs the extra 'baselines'")


@pytest.fixture(scope='module')
def saved():
  """The shipped yq_lsa."""
  return zoo.load('checkpoints/yq_lsa')


@pytest.mark.slow
def test_least_squares_in_context_are_those_of_scikit_learn():
  from sklearn.linear_model import LinearRegression
  from sklearn.model_selection import cross_val_score

  normal = np.random.default_rng(0).normal
  x = normal(size=(30, 3))
  y = x @ [1.0, -2.0, 0.5] + 0.5 * normal(size=30)
  model = zoo.Regressor(Ridge())
  ours = LinearRegression(fit_intercept=False)
  scores, expected = (
    cross_val_score(regressor, x, y, cv=3) for regressor in (model, ours)
  )
  np.testing.assert_allclose(scores, expected, atol=1e-4)  # one is in float32


@pytest.mark.slow
def test_a_trained_model_is_one_too(saved):
  """The model is a step of gradient descent from w = 2, of size 1/2.1."""
  from sklearn.base import clone

  normal = np.random.default_rng(0).normal
  x, y, queries = normal(size=(10, 10)), 6 * normal(size=10), normal(size=(4, 10))
  model: Any = clone(zoo.Regressor(saved.model, saved.task))
  model.fit(x, y)
  start = np.full(10, 2.0)
  weights = start + x.T @ (y - x @ start) / 10 / 2.1
  np.testing.assert_allclose(model.predict(queries), queries @ weights, atol=0.01)
  with refuses('is for 10 features; the prompt has 3'):
    zoo.Regressor(saved.model, saved.task).fit(x[:, :3], y)


def test_more_examples_than_a_model_has_places_for_are_refused_at_once():
  sizes: Any = {'width': 8, 'num_layers': 1}
  model = drawn(
    lambda: zoo.models.Transformer(5, 10, **sizes, rngs=nnx.Rngs(0)), dtype='float32'
  )
  task = zoo.create_task('linear_regression', num_features=5, context_length=10)
  with refuses('the prompt has 23 tokens; the model has places for 21'):
    zoo.Regressor(model, task).fit(np.ones((11, 5)), np.ones(11))


def _table(path, rows=200):
  """A file whose numbers are not near 0 and 1, and its arrays."""
  normal = np.random.default_rng(0).normal
  x = 20 + 5 * normal(size=(rows, 3))
  y = 1000 + 50 * (x - 20) @ [1.0, -2.0, 3.0] + normal(size=rows)
  np.savez(path, x=x, y=y)
  return x, y


@pytest.mark.slow
@pytest.mark.parametrize('standardise', ['features_and_labels', 'features', 'nothing'])
def test_examples_are_scaled_as_the_task_of_the_model_scales_its_rows(
  standardise, tmp_path
):
  path = tmp_path / 'table.npz'
  x, y = _table(path)
  task: Any = zoo.create_task('arrays', path=str(path), standardise=standardise)
  rows = np.random.RandomState(0).permutation(len(x))[len(x) // 5 :]
  assert_close(task.x * task.table.x_std + task.table.x_mean, x[rows], 1e-12)
  assert_close(task.y * task.table.y_std + task.table.y_mean, y[rows], 1e-12)
  model = zoo.Regressor(Ridge(), task).fit(x[:30], y[:30])
  by_hand = zoo.Regressor(Ridge())
  scaled = (
    (x - task.table.x_mean) / task.table.x_std,
    (y - task.table.y_mean) / task.table.y_std,
  )
  by_hand.fit(*(part[:30] for part in scaled))
  predictions, expected = model.predict(x[30:]), by_hand.predict(scaled[0][30:])
  assert_close(predictions, expected * task.table.y_std + task.table.y_mean, 1e-6)
  if standardise == 'features_and_labels':
    assert model.score(x[30:], y[30:]) > 0.999
  # Each query is predicted alone, from examples in any order; sums are in float32.
  alone = [model.predict(x[i : i + 1])[0] for i in range(30, 35)]
  assert_close(alone, predictions[:5], 1e-5)
  other = zoo.Regressor(Ridge(), task).fit(x[:30][::-1], y[:30][::-1])
  assert_close(other.predict(x[30:]), predictions, 1e-5)
  with refuses('X has 2 features; the task has 3'):
    zoo.Regressor(Ridge(), task).fit(x[:, :2], y)


def test_a_trained_model_without_its_task_is_refused(saved):
  with refuses('YqLSA is a model without its task', 'saved.task'):
    zoo.Regressor(saved.model).fit(np.ones((10, 10)), np.ones(10))


@pytest.mark.parametrize(
  ('scale_x', 'scale_y', 'said'),
  [(0.05, 6.0, 'of the features is 0.0'), (1.0, 150.0, 'of the labels is 1')],
)
def test_a_context_of_another_size_than_those_of_the_task_is_warned_of(
  saved, scale_x, scale_y, said
):
  normal = np.random.default_rng(0).normal
  x, y = scale_x * normal(size=(10, 10)), scale_y * normal(size=10)
  with pytest.warns(UserWarning, match=f'{said}.*LinearRegression') as said_once:
    zoo.Regressor(saved.model, saved.task).fit(x, y)
  assert len(said_once) == 1


def test_data_unlike_the_prior_of_the_task_are_warned_of_once(saved):
  from sklearn.datasets import load_diabetes
  from sklearn.preprocessing import StandardScaler

  table: Any = load_diabetes()
  x, y = StandardScaler().fit_transform(table.data), table.target
  y = 4 * (y - y.mean()) / y.std()
  fitted: Any = zoo.Regressor(saved.model, saved.task)
  # In size they are like the prompts, and yet R² is far below 0: they are correlated.
  largest = np.linalg.eigvalsh(np.corrcoef(x.T))[-1] / 10
  said = f'the share of the features along one direction is {largest:.3g}, and from 0.1'
  with pytest.warns(UserWarning, match=said) as said_once:
    fitted.fit(x, y)
  assert len(said_once) == 1
  assert fitted.score(x, y) < -1
  normal = np.random.default_rng(0).normal(size=(100, 10))
  w = np.full(10, 2.0)  # the mean of the prior
  for x, y, said in (
    (
      normal,
      normal @ -w,
      'mean of the mean products of features and labels is -0.',
    ),
    (normal, 20 + normal @ w, 'the mean of the labels, as a share of their size'),
    (np.abs(normal), normal @ w, 'mean square of mean features, as a share'),
  ):
    with pytest.warns(UserWarning, match=said) as said_once:
      fitted.fit(x, y)
    assert len(said_once) == 1
  # The prior has the variance 1.
  w = w + np.random.default_rng(1).normal(size=10)
  fitted.fit(normal, normal @ w)  # warnings are errors in tests


@pytest.mark.slow
def test_the_checks_of_scikit_learn_pass(unchecked):
  from sklearn.utils.estimator_checks import check_estimator

  # Some are skipped without an environment variable; one that fails raises.
  results = check_estimator(zoo.Regressor(Ridge()), on_skip=None)
  assert sum(result['status'] == 'passed' for result in results) > 40


@pytest.mark.slow
@pytest.mark.parametrize(
  ('name', 'fields'),
  [
    ('linear_regression', {'num_features': 1, 'context_length': 3}),
    ('linear_regression', {'num_features': 10, 'prior_mean': 2.0}),
    ('sparse_regression', {'num_nonzero': 1}),
    ('task_pool', {'num_tasks': 1}),
    ('decision_tree', {'depth': 2}),
  ],
)
def test_no_context_of_the_task_is_warned_of(name, fields):
  """Warnings are errors in tests; labels of one feature may all be near 0."""
  task: Any = zoo.create_task(name, **fields)
  prompt = jax.device_get(task.sample(jax.random.key(1), 50))
  for x, y in zip(prompt.x, prompt.y, strict=True):
    zoo.Regressor(Ridge(), task).fit(x, y)
