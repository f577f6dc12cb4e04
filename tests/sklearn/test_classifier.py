"""A model in context is an estimator of scikit-learn for classes."""

import warnings
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import zoo
from tests.compare import assert_close, refuses
from tests.compiled import counted
from tests.marks import mostly_full
from tests.weights import drawn
from zoo.estimators.baselines import Zero
from zoo.estimators.classes import NearestMean, NearestShares

pytest.importorskip('sklearn', reason="needs the extra 'baselines'")

from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from tests.sklearn.predictors import OfTables, Sized, prompt_of
from zoo.sklearn.estimator import takes_both

TASK = zoo.create_task(
  'gaussian_clusters', num_features=4, num_classes=5, context_length=8
)
SIGNS = zoo.create_task('logistic_regression', num_features=4, context_length=8)
NAMES = np.array(['high', 'low', 'middle'])


def table(rows=24, seed=0, names=NAMES):
  """A table of three clusters, whose columns have sizes and means of their own."""
  generator = np.random.default_rng(seed)
  places = np.arange(rows) % len(names)
  z = generator.normal(size=(rows, 4)) + 3 * np.eye(4)[places]
  return z * [1.0, 10.0, 0.1, 5.0] + 50, names[places]


def fitted(*arguments: Any, data: Any = None, **settings: Any) -> Any:
  """An estimator that is fitted to a table; warnings of its moments do not matter."""
  with warnings.catch_warnings(action='ignore'):
    return zoo.Classifier(*arguments, **settings).fit(*(data or table()))


def transformer(**sizes: Any) -> Any:
  """A small model for 4 features and 5 classes, or other sizes."""
  sizes = {'width': 8, 'num_layers': 1, 'num_heads': 1, 'num_outputs': 5} | sizes
  return drawn(
    lambda: zoo.models.Transformer(4, 8, **sizes, rngs=nnx.Rngs(0)), dtype='float32'
  )


def standardised(x, y):
  """A table with the mean 0 and the size 1, with which NearestMean works."""
  return (x - x.mean(0)) / x.std(0), y


@pytest.mark.parametrize(
  'names',
  [NAMES, np.array([7, 3, 5]), np.array([2.0, 0.0]), np.array([True, False])],
)
def test_labels_of_any_type_are_predicted(names):
  x, y = standardised(*table(names=names))
  found = fitted(NearestMean(), data=(x, y))
  np.testing.assert_array_equal(found.classes_, np.sort(names))
  assert found.classes_.dtype == y.dtype
  predictions = found.predict(x)
  assert predictions.dtype == y.dtype
  assert found.score(x, y) == np.mean(predictions == y) > 0.8


def test_probabilities_are_those_of_the_model():
  x, y = standardised(*table())
  means = np.array([x[y == name].mean(0) for name in NAMES])
  logits = -0.5 * np.square(x[:, None] - means).sum(2)
  expected = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
  found = fitted(NearestMean(), data=(x, y)).predict_proba(x)
  assert_close(found, expected, 1e-5)
  np.testing.assert_allclose(found.sum(1), 1, rtol=1e-12)


def test_the_rest_of_the_probabilities_is_normalised_if_a_table_has_fewer_classes():
  model, (x, y) = transformer(), table(8)
  found = fitted(model, TASK, data=(x, y))
  columns, places = found._members[0].columns, np.unique(y, return_inverse=True)[1]
  prompt = prompt_of(columns(x), np.eye(5)[places], columns(x[:1]))
  (logits,) = zoo.predict(model, prompt)
  of_all = np.exp(logits) / np.exp(logits).sum()
  assert_close(found.predict_proba(x[:1])[0], of_all[:3] / of_all[:3].sum(), 1e-5)


def test_more_classes_than_the_model_knows_are_refused():
  x, _ = table()
  with refuses('y has 6 classes; Transformer takes at most 5'):
    fitted(transformer(), TASK, data=(x, np.arange(24) % 6))
  with refuses('y has 3 classes; Transformer has two, the labels ±1. Only binary'):
    fitted(transformer(num_outputs=1), SIGNS)
  with refuses('y has 4 classes; OfTables takes at most 3'):
    fitted(OfTables(), data=(x, np.arange(24) % 4))


@pytest.mark.slow
def test_a_model_of_signs_has_two_classes():
  names = np.array(['no', 'yes'])
  x, y = table(8, names=names)
  model = transformer(num_outputs=1)
  found = fitted(model, SIGNS, data=(x, y))
  columns, labels = found._members[0].columns, np.where(y == 'yes', 1.0, -1.0)
  prompt = prompt_of(columns(x), labels, columns(x[:1]))
  (logit,) = zoo.predict(model, prompt)
  expected = 1 / (1 + np.exp(-float(logit)))
  assert_close(found.predict_proba(x[:1])[0], [1 - expected, expected], 1e-5)
  assert not found.__sklearn_tags__().classifier_tags.multi_class


@pytest.mark.parametrize(
  ('model', 'task'),
  [(Zero(), SIGNS), (OfTables(), None)],
)
def test_one_class_is_certain(model, task):
  x, _ = table(8)
  found = fitted(model, task, data=(x, ['only'] * 8))
  np.testing.assert_array_equal(found.predict_proba(x[:2]), [[1.0], [1.0]])
  assert found.predict(x[:2]).tolist() == ['only', 'only']


def test_a_model_of_tables_is_given_as_many_classes_as_there_are_and_numbers():
  model: Any = OfTables()
  x, y = table(24, names=NAMES[:2])
  both = zoo.create_task('tabular', num_features=4, num_classes=3)
  for task in (None, both):
    assert_close(
      fitted(model, task, data=(x, y)).predict_proba(x[:1]), [[0.5, 0.5]], 1e-6
    )
    assert model.labels[-1] == (2,)
    number = zoo.Regressor(model, task).fit(x, np.arange(24.0)).predict(x[:1])
    assert_close(number, [11.5], 1e-6)
    assert model.labels[-1] == ()


def test_a_model_of_numbers_is_refused():
  with refuses('the labels of the task LinearRegression are numbers; zoo.Classifier'):
    fitted('checkpoints/yq_lsa')
  with refuses(
    'is a model without its task', 'zoo.Classifier(saved.model, saved.task)'
  ):
    fitted(transformer())
  with refuses('predicts arrays of shape () for a query', 'needs (3,)'):
    fitted(Sized(lambda prompt: prompt.y_query[:, 0], 4))


def test_numbers_that_cannot_be_read_are_refused():
  x, y = table()
  with pytest.raises(ValueError, match='X contains NaN'):
    fitted(NearestMean(), data=(np.where(x > 60, np.nan, x), y))
  with pytest.raises(ValueError, match='Unknown label type: continuous'):
    fitted(NearestMean(), data=(x, np.linspace(0.1, 0.9, 24)))
  with refuses('X has text, which is no number'):
    fitted(NearestMean(), data=([['red'], ['blue']], [0, 1]))
  assert np.isfinite(fitted(OfTables()).predict_proba(np.full((1, 4), np.nan))).all()


def test_probabilities_of_parts_are_averaged():
  x, y = standardised(*table(30))
  found = fitted(Sized(NearestShares(), 4, 15), data=(x, y))
  queries = standardised(*table(4, seed=1))[0]
  parts = np.array_split(np.random.RandomState(0).permutation(30), 2)
  each = [
    fitted(NearestShares(), data=(x[part], y[part])).predict_proba(queries)
    for part in parts
  ]
  assert all(len(np.unique(y[part])) == 3 for part in parts)
  assert_close(found.predict_proba(queries), np.mean(each, axis=0), 1e-6)


def test_members_see_columns_and_classes_in_other_orders():
  model, (x, y) = transformer(), table(8)
  found = fitted(model, TASK, num_members=4, data=(x, y))
  orders = np.array([member.classes for member in found._members])
  np.testing.assert_array_equal(orders[0], [0, 1, 2])
  assert orders.shape == (4, 3)
  assert len(np.unique(orders, axis=0)) > 2
  assert orders.max() <= 4
  places = [member.columns.places.tolist() for member in found._members]
  assert all(sorted(order) == [0, 1, 2, 3] for order in places)
  assert places[1] != places[0]
  one = fitted(model, TASK, data=(x, y))
  assert not np.allclose(found.predict_proba(x), one.predict_proba(x), rtol=1e-3)
  # The order of classes and of columns does not matter to a mean of each class.
  x, y = standardised(x, y)
  many = fitted(NearestMean(), num_members=3, data=(x, y)).predict_proba(x)
  assert_close(many, fitted(NearestMean(), data=(x, y)).predict_proba(x), 1e-5)


@pytest.mark.slow
def test_a_second_call_compiles_nothing():
  model = transformer()
  fitted(model, TASK, data=table(7)).predict(table(5)[0])
  with counted() as programs:
    # Another table of the same sizes, and one with two rows more.
    fitted(model, TASK, data=table(7, seed=1)).predict(table(5, seed=2)[0])
    fitted(model, TASK, data=table(8)).predict(table(6)[0])
  assert not programs


def test_features_unlike_the_prior_of_the_task_are_warned_of():
  model, (x, y) = Sized(Zero(), 4), table(40, names=NAMES[:2])
  x[:, 1:] = x[:, :1]
  with pytest.warns(UserWarning, match='the share of the features along one direction'):
    zoo.Classifier(model, SIGNS).fit(x, y)


@pytest.mark.slow
def test_a_classifier_stands_in_a_pipeline_and_is_cross_validated():
  x, y = table(30)
  model = make_pipeline(StandardScaler(), zoo.Classifier(NearestMean()))
  assert cross_val_score(model, x, y, cv=3).min() > 0.7
  assert cross_val_score(model, x, y, cv=3, scoring='neg_log_loss').min() > -1
  again: Any = clone(zoo.Classifier(NearestMean(), num_members=2))
  assert again.get_params()['num_members'] == 2
  grid = GridSearchCV(again, {'num_members': [1, 2]}, cv=3).fit(*standardised(x, y))
  assert grid.best_score_ > 0.7


# What the checks of scikit-learn must find in a model that was never trained.
_UNTRAINED = {
  'check_classifiers_train': 'asks for an accuracy above 0.83, and nothing was trained',
}


@pytest.mark.slow
@pytest.mark.filterwarnings('ignore:the .* in prompts of:UserWarning')
@pytest.mark.parametrize(
  'name', mostly_full([], ['nearest mean', 'tabular', 'transformer', 'signs'])
)
def test_the_checks_of_scikit_learn_pass(name, unchecked):
  from sklearn.utils.estimator_checks import check_estimator

  sizes: Any = {'num_features': 10, 'context_length': 8}
  if name == 'nearest mean':
    model, fails = zoo.Classifier(NearestMean()), {}
  elif name == 'tabular':
    model, fails = zoo.Classifier('checkpoints/tabular'), {}
  else:
    kind = 'gaussian_clusters' if name == 'transformer' else 'logistic_regression'
    classes = {'num_classes': 5} if name == 'transformer' else {}
    task = zoo.create_task(kind, **sizes, **classes)
    untrained = drawn(
      lambda: zoo.models.Transformer(
        **sizes,
        num_outputs=task.num_outputs,
        width=8,
        num_layers=1,
        num_heads=1,
        rngs=nnx.Rngs(0),
      ),
      dtype='float32',
    )
    model, fails = zoo.Classifier(untrained, task), _UNTRAINED
  # Some are skipped without pandas or an environment variable; one that fails raises.
  results = check_estimator(model, on_skip=None, expected_failed_checks=fails)
  assert sum(result['status'] == 'passed' for result in results) > 40


class _First:
  """Predicts the logits of three classes from the first feature alone."""

  num_outputs = 3

  def __call__(self, prompt):
    return -3 * jnp.abs(prompt.x_query[:, :1] - jnp.array([[-1.5, 0.0, 1.5]]))


@pytest.mark.slow
def test_a_model_of_a_table_knows_its_columns_and_classes_by_their_places(tmp_path):
  generator = np.random.default_rng(0)
  names = np.array(['a', 'b', 'c'])[np.arange(90) % 3]
  x = np.column_stack([np.arange(90) % 3, generator.normal(size=(90, 3))])
  np.savez(tmp_path / 'a.npz', x=x, y=names)
  task = zoo.create_task(
    'arrays', path=str(tmp_path / 'a.npz'), label_kind='classes', context_length=8
  )
  some = np.concatenate([np.flatnonzero(names != 'a')[:20], [0]])
  for rows in np.arange(60), some:
    found = fitted(_First(), task, num_members=3, data=(x[rows], names[rows]))
    assert found.classes_.tolist() == ['a', 'b', 'c']
    for member in found._members:
      np.testing.assert_array_equal(member.columns.places, np.arange(4))
      np.testing.assert_array_equal(member.classes, np.arange(3))
    # The first feature is the number of the class, in the units of the file.
    assert (found.predict(x) == names).mean() == 1
  few = some[:-1]
  found = fitted(_First(), task, data=(x[few], names[few]))
  np.testing.assert_array_equal(found.y_, np.arange(90)[few] % 3)
  with refuses("y has the class 'd'", "trained on the classes 'a', 'b', 'c'"):
    fitted(_First(), task, data=(x[:6], list('abcdab')))


def test_a_task_of_classes_is_never_taken_for_numbers_and_classes():
  sizes: Any = {'num_outputs': 3, 'num_classes': 2, 'width': 8}
  model = nnx.eval_shape(lambda: zoo.models.Tabular(4, **sizes, rngs=nnx.Rngs(0)))
  task = zoo.create_task('gaussian_clusters', num_features=4, num_classes=3)
  assert not takes_both(model, task)
  both = zoo.create_task('tabular', kind='both', num_features=4, num_classes=2)
  assert takes_both(model, both)
