"""A model in context is an estimator of scikit-learn for numbers."""

import warnings
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx, struct
from scipy import stats

import zoo
from tests.compare import assert_close, refuses
from tests.compiled import built, counted
from tests.marks import FULL, mostly_full, mostly_slow
from tests.weights import drawn
from zoo import estimators
from zoo.core.distributions import Distribution
from zoo.estimators import classes
from zoo.estimators.baselines import NearestNeighbours, Zero
from zoo.estimators.linear import Ridge

pytest.importorskip('sklearn', reason="needs the extra 'baselines'")

from sklearn.base import clone
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from tests.sklearn.predictors import (
  MeanOfLabels,
  OfTables,
  Sized,
  least_squares,
  prompt_of,
)
from zoo.sklearn.units import units_of

TASK = zoo.create_task('linear_regression', num_features=5, context_length=10)


@pytest.fixture(scope='module')
def saved():
  """The shipped yq_lsa, which expects weights near 2."""
  return zoo.load('checkpoints/yq_lsa')


def table(rows=20, columns=3, seed=0):
  """A table whose columns and numbers have sizes and means of their own."""
  generator = np.random.default_rng(seed)
  z = generator.normal(size=(rows, columns))
  y = z @ np.arange(1, columns + 1) + 0.5 * generator.normal(size=rows)
  return 7 * z * np.arange(1, columns + 1) - 20, 30 * y + 1000


def fitted(*arguments: Any, data: Any = None, **settings: Any) -> Any:
  """An estimator that is fitted to a table; warnings of its moments do not matter."""
  with warnings.catch_warnings(action='ignore'):
    return zoo.Regressor(*arguments, **settings).fit(*(data or table()))


# The weights of the linear family.


def _rule(d: int) -> zoo.LearningRule:
  return zoo.LearningRule.gd_beta(np.arange(d), 0.3 * np.eye(d) + 0.1)


OF_LINEAR_FAMILY: dict[str, Any] = {
  'lsa': lambda: drawn(lambda: zoo.models.LSA(5, rngs=nnx.Rngs(0)), dtype='float32'),
  'multi_head_lsa': lambda: drawn(
    lambda: zoo.models.MultiHeadLSA(5, 3, 0.7, 0.4, rngs=nnx.Rngs(0)), dtype='float32'
  ),
  'yq_lsa': lambda: drawn(
    lambda: zoo.models.YqLSA(5, rngs=nnx.Rngs(0)), dtype='float32'
  ),
  'ltb': lambda: drawn(lambda: zoo.models.LTB(5, rngs=nnx.Rngs(0)), dtype='float32'),
  'rule': lambda: _rule(5),
}
LINEAR_ESTIMATORS: dict[str, Any] = {
  'ridge': lambda: estimators.ridge(np.arange(5), 2.0),
  'ols': lambda: estimators.ols(np.zeros(5)),
  'gd': lambda: estimators.gradient_descent(np.arange(5), 0.1),
  'three steps': lambda: estimators.gradient_descent(np.arange(5), 0.1, 3),
  'gd_beta': lambda: estimators.gd_beta(np.arange(5), 0.1 * np.eye(5)),
  'best gd': lambda: estimators.gradient_descent(TASK),
}


@pytest.mark.parametrize(
  'name',
  mostly_slow(['rule'], [*OF_LINEAR_FAMILY, *LINEAR_ESTIMATORS]),
)
def test_weights_and_offset_are_those_of_the_learning_rule(name):
  model: Any = (OF_LINEAR_FAMILY | LINEAR_ESTIMATORS)[name]()
  task = TASK if issubclass(type(model), nnx.Module) else None
  x, y = table(9, 5)
  found, queries = fitted(model, task, data=(x, y)), table(7, 5, seed=1)[0]
  predictions = found.predict(queries)
  assert_close(queries @ found.coef_ + found.intercept_, predictions, 1e-9)
  # By the rule itself, from the same context in the units of the model.
  units = units_of(x, y, task, 5, None)
  columns = units.columns(np.arange(5))
  prompt = prompt_of(columns(x), units.labels(y), columns(queries))
  rule = model.learning_rule() if name in OF_LINEAR_FAMILY else model
  weights = np.asarray(rule.weights(prompt), float)[0]
  # Its sums are in float32, of numbers of sizes up to 1000.
  assert_close(found.coef_, columns.weights(weights)[0] * units.labels.unit, 1e-4)
  assert_close(predictions, units.labels.back(zoo.predict(model, prompt)), 1e-4)


def test_ridge_has_the_weights_of_scikit_learn():
  from sklearn.linear_model import Ridge as OfScikitLearn

  x, y = table()
  x, y = (x - x.mean(0)) / x.std(0), y - y.mean()
  found, expected = fitted(Ridge(2.0), data=(x, y)), OfScikitLearn(2.0).fit(x, y)
  assert_close(found.coef_, expected.coef_, 1e-5)
  assert_close(found.predict(x), expected.predict(x), 1e-5)


@pytest.mark.parametrize('model', [NearestNeighbours(), Ridge(squares=True)])
def test_only_the_linear_family_has_weights(model):
  found = fitted(model)
  assert not hasattr(found, 'coef_')
  with pytest.raises(AttributeError, match='has no intercept_: it follows no linear'):
    print(found.intercept_)
  with pytest.raises(AttributeError, match='not fitted'):
    print(zoo.Regressor(Ridge()).coef_)


# Units.


def test_columns_get_the_moments_that_features_have_in_prompts():
  variances = np.array([4.0, 1.0, 0.25])
  task: Any = zoo.create_task(
    'linear_regression',
    num_features=3,
    context_length=20,
    feature_covariance=np.diag(variances),
    prior_mean=1.0,
    noise_std=0.5,
  )
  x, y = table(20, 3)
  units = units_of(x, y, task, 3, None)
  z, labels = units.columns(np.array([2, 0, 1]))(x), units.labels(y)
  # Moments of a sample of at least 2¹⁴ examples: the standard error of a standard
  # deviation is below 1%.
  assert_close(z.std(0), np.sqrt(variances), 0.03)
  np.testing.assert_allclose(z.mean(0), 0, atol=1e-12)
  # y = Σ w_i x_i + noise, with w_i of mean 1 and variance 1.
  # The mean square of labels differs from prompt to prompt by its own size, so that the
  # root of the mean over 512 prompts has a standard error of 2.3%.
  assert labels.std() == pytest.approx(np.sqrt(2 * variances.sum() + 0.25), rel=0.07)
  assert_close(
    z[:, 2], (x[:, 0] - x[:, 0].mean()) / x[:, 0].std() * z[:, 2].std(), 1e-9
  )
  assert_close(units.labels.back(labels), y, 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize('name', ['yq_lsa', 'transformer'])
def test_the_units_of_a_table_do_not_matter(name):
  x, y = table()
  queries = table(seed=1)[0]
  path = f'checkpoints/{name}'
  first = fitted(path, data=(x, y)).predict(queries)
  scales, shifts = np.array([1e-3, 5.0, 1e4]), np.array([0.0, -3.0, 1e5])
  other = fitted(path, data=(x * scales + shifts, y / 100 - 7))
  # The centred columns lose digits only where the shift is large.
  assert_close((other.predict(queries * scales + shifts) + 7) * 100, first, 1e-4)


def test_missing_features_are_zeros_and_more_than_the_model_has_are_refused():
  model = Sized(Ridge(1.0), 5)
  x, y = table(20, 3)
  found = fitted(model, data=(x, y))
  assert_close(found.predict(x), fitted(Ridge(1.0), data=(x, y)).predict(x), 1e-4)
  assert {shape[-1] for shape in model.shapes} == {
    5,
    6,
  }  # 6 to see whether it takes any
  with refuses('X has 6 features; Sized takes at most 5. Choose some'):
    fitted(model, data=table(20, 6))


def test_a_model_of_any_number_of_features_gets_those_of_the_table():
  model: Any = OfTables()
  for columns in (1, 8):
    fitted(model, TASK, data=table(20, columns)).predict(table(3, columns)[0])
    assert model.rows[-1][-1] == columns


def test_a_number_of_the_table_that_does_not_vary_predicts_itself():
  x, y = table()
  constant = fitted('checkpoints/yq_lsa', data=(x, np.full(20, 4.5))).predict(x)
  np.testing.assert_array_equal(constant, 4.5)
  one = fitted('checkpoints/yq_lsa', data=(x[:1], y[:1])).predict(x)
  np.testing.assert_array_equal(one, y[0])


def test_a_column_that_varies_by_rounding_alone_is_constant():
  x, y = table(40, 5)
  x[:, 2] = 0.3
  exact = fitted(Ridge(1.0), TASK, data=(x, y))
  x[::2, 2] = 0.1 + 0.2
  rounded = fitted(Ridge(1.0), TASK, data=(x, y))
  queries = table(7, 5, seed=1)[0]
  assert_close(rounded.predict(queries), exact.predict(queries), 1e-9)
  # A time in seconds since 1970 still counts, and so do very large numbers.
  for column, query in (
    (1.7e9 + np.arange(40), 1.7e9 + np.arange(7)),
    (1e160 * np.arange(40), 1e160 * np.arange(7)),
  ):
    moved = fitted(Ridge(1.0), TASK, data=(np.c_[x[:, :4], column], y))
    small = fitted(Ridge(1.0), TASK, data=(np.c_[x[:, :4], np.arange(40.0)], y))
    for_large = moved.predict(np.c_[queries[:, :4], query])
    for_small = small.predict(np.c_[queries[:, :4], np.arange(7.0)])
    assert_close(for_large, for_small, 1e-5)


@pytest.mark.parametrize('kind', [object, str])
def test_text_in_y_is_said_of_y(kind):
  x, _ = table(4, 5)
  with refuses('y has text, which is no number'):
    fitted(Ridge(1.0), TASK, data=(x, np.array(['a', 'b', 'a', 'b'], kind)))
  numbers = np.array([1.0, 2.0, 3.0, 5.0])
  found = fitted(Ridge(1.0), TASK, data=(x, numbers.astype(object)))
  assert_close(found.y_, numbers, 0)


@pytest.mark.parametrize('name', ['NearestShares', 'NearestMean', 'SoftmaxRegression'])
def test_a_baseline_of_classes_predicts_no_numbers(name):
  x, y = table(6, 5)
  with refuses(f'{name} predicts classes, and the labels are numbers'):
    fitted(getattr(classes, name)(), data=(x, y)).predict(x)


def test_a_column_that_does_not_vary_in_the_context_is_ignored():
  x, y = table()
  x[:, 1] = 0.1  # whose mean is rounded
  found, other = fitted('checkpoints/yq_lsa', data=(x, y)), x.copy()
  other[:, 1] = 1e6
  assert np.isfinite(found.predict(x)).all()
  np.testing.assert_array_equal(found.predict(other), found.predict(x))


def _table_of_a_file(path, rows=200):
  """A file whose numbers are not near 0 and 1, and its arrays."""
  normal = np.random.default_rng(0).normal
  x = 20 + 5 * normal(size=(rows, 3))
  y = 1000 + 50 * (x - 20) @ [1.0, -2.0, 3.0] + normal(size=rows)
  np.savez(path, x=x, y=y)
  return x, y


@pytest.mark.slow
@pytest.mark.parametrize('standardise', ['features_and_labels', 'features', 'nothing'])
def test_examples_are_scaled_as_the_task_of_arrays_scales_its_rows(
  standardise, tmp_path
):
  path = tmp_path / 'table.npz'
  x, y = _table_of_a_file(path)
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


# Warnings.


def test_data_unlike_the_prior_of_the_task_are_warned_of_once(saved):
  from sklearn.datasets import load_diabetes

  diabetes: Any = load_diabetes()
  x, y = diabetes.data, diabetes.target
  estimator: Any = zoo.Regressor(saved.model, saved.task)
  # In size they are like the prompts, and yet R² is below 0: they are correlated.
  largest = np.linalg.eigvalsh(np.corrcoef(x.T))[-1] / 10
  said = f'the share of the features along one direction is {largest:.3g}, and from 0.1'
  with pytest.warns(UserWarning, match=said) as said_once:
    estimator.fit(x, y)
  assert len(said_once) == 1
  assert estimator.score(x, y) < 0
  normal = np.random.default_rng(0).normal(size=(100, 10))
  w = np.full(10, 2.0)  # the mean of the prior
  said = 'mean of the mean products of features and labels is -0.'
  with pytest.warns(UserWarning, match=said) as said_once:
    estimator.fit(normal, normal @ -w)
  assert len(said_once) == 1
  with pytest.warns(UserWarning, match='square of the features is 0.3.*, and from 0.9'):
    estimator.fit(normal[:, :1], normal[:, 0])  # nine features are missing
  # Units and means are those of the prior after standardising, whose variance is 1.
  w = w + np.random.default_rng(1).normal(size=10)
  estimator.fit(7 * normal - 3, 5 + normal @ w)  # warnings are errors in tests


@pytest.mark.slow
@pytest.mark.parametrize(
  ('name', 'fields'),
  [
    ('linear_regression', {'num_features': 1, 'context_length': 3}),
    pytest.param('task_pool', {'num_tasks': 1}, marks=FULL),
    pytest.param(
      'linear_regression', {'num_features': 10, 'prior_mean': 2.0}, marks=FULL
    ),
    pytest.param('sparse_regression', {'num_nonzero': 1}, marks=FULL),
    pytest.param('decision_tree', {'depth': 2}, marks=FULL),
  ],
)
def test_no_context_of_the_task_is_warned_of(name, fields):
  """Warnings are errors in tests; labels of one feature may all be near 0."""
  task: Any = zoo.create_task(name, **fields)
  model = Sized(Zero(), task.num_features)
  prompt = jax.device_get(task.sample(jax.random.key(1), 50))
  for x, y in zip(prompt.x, prompt.y, strict=True):
    zoo.Regressor(model, task).fit(x, y)


# What can be given.


def test_a_trained_model_without_its_task_is_refused(saved):
  with refuses('YqLSA is a model without its task', 'zoo.Regressor(saved.model, saved'):
    fitted(saved.model)


def test_a_path_brings_its_model_and_its_task(saved, tmp_path):
  zoo.save(saved.model, tmp_path / 'kept', saved.config)
  data, queries = table(), table(seed=1)[0]
  expected = fitted(saved.model, saved.task, data=data).predict(queries)
  for path in ('checkpoints/yq_lsa', tmp_path / 'kept'):
    found = fitted(path, data=data)
    assert found.model_or_path is path  # it is not changed
    np.testing.assert_array_equal(found.predict(queries), expected)
  with refuses('does not exist', 'did you mean checkpoints/yq_lsa?'):
    fitted('checkpoints/yq_las')


def test_a_model_of_another_kind_of_labels_is_refused(unchecked):
  task = zoo.create_task('gaussian_clusters', num_features=3)
  with refuses('GaussianClusters has classes; zoo.Regressor predicts numbers'):
    fitted(Zero(), task)
  with refuses('Permutations do not show the labels of their examples'):
    fitted(Zero(), zoo.create_task('permutations'))
  with refuses('is not a predictor'):
    fitted(3.0)


def test_dropout_that_is_on_is_one_line():
  class Drops(nnx.Module):
    def __init__(self):
      self.dropout = nnx.Dropout(0.5, rngs=nnx.Rngs(0))

    def __call__(self, prompt):
      return self.dropout(prompt.x_query).sum(axis=1)

  with refuses('Drops changes its variables', 'as dropout does; call model.eval()'):
    fitted(Drops(), TASK)


def test_members_are_counted():
  with refuses('num_members is 0; it must be an integer ≥ 1'):
    fitted(Ridge(), num_members=0)


def test_a_wrong_model_or_task_is_one_line(unchecked):
  saved, wide = zoo.load('checkpoints/yq_lsa'), zoo.tasks.LinearRegression(4, 10)
  wrong: Any
  task: Any
  for wrong, task, said in (
    (saved, None, 'zoo.Regressor(saved.model, saved.task), or the path'),
    (saved.model, 'linear_regression', 'str is not a task'),
    (saved.model, wide, 'the task has 4 features, and the model is for '),
  ):
    with refuses(said):
      zoo.Regressor(wrong, task).fit(*table())
  with refuses('SavedModel is not a predictor', 'give its attribute model'):
    zoo.curve(cast(Any, saved), saved.task, 2)
  with refuses('penalty is -5.0; it must be a finite number ≥ 0'):
    Ridge(-5.0)


def test_an_estimator_whose_fit_was_refused_is_not_fitted():
  estimator: Any = fitted('checkpoints/yq_lsa')
  with refuses('X has 11 features'):
    estimator.fit(*table(20, 11))
  with pytest.raises(ValueError, match='not fitted yet'):
    estimator.predict(table()[0])


def test_numbers_that_cannot_be_read_are_refused(unchecked):
  x, y = table()
  found = fitted(Ridge(), data=(x, y))
  missing = np.where(np.arange(3) == 1, np.nan, x)
  for bad, said in ((missing, 'NaN'), (np.full((1, 3), np.inf), 'infinity')):
    with pytest.raises(ValueError, match=f'X contains {said}'):
      found.predict(bad)
  with pytest.raises(ValueError, match='X contains NaN'):
    fitted(Ridge(), data=(missing, y))
  with pytest.raises(ValueError, match='y contains NaN'):
    fitted(Ridge(), data=(x, np.full(20, np.nan)))
  text = np.array([[1.0, 'red'], [2.0, 'blue']], object)
  with refuses("X has text, which is no number (could not convert string to float: '"):
    fitted(Ridge(), data=(text, [1.0, 2.0]))
  with refuses('y has text, which is no number', 'zoo.Classifier'):
    fitted(Ridge(), data=(x, ['a'] * len(x)))
  with pytest.raises(ValueError, match='too large'):
    fitted(NearestNeighbours(), data=(x, y)).predict(np.full((1, 3), 1e300))


class NAType:  # The class of pandas.NA has this name.
  def __bool__(self):
    raise TypeError('boolean value of NA is ambiguous')


def test_missing_values_in_columns_of_objects_are_nan():
  x, y = table()
  missing = np.where(np.arange(3) == 1, np.nan, x)
  expected = fitted(OfTables(), TASK, data=(missing, y)).predict(missing[:4])
  values: list[Any] = [None, NAType()]
  for value in values:
    objects = np.where(np.isnan(missing), value, x.astype(object))
    found = fitted(OfTables(), TASK, data=(objects, y)).predict(objects[:4])
    assert_close(found, expected, 0)
    for of_y in (np.append(y[1:].astype(object), value), [*y[1:], value]):
      with pytest.raises(ValueError, match='y contains NaN'):
        fitted(Ridge(), data=(x, of_y))
    with pytest.raises(ValueError, match='X contains NaN'):
      fitted(Ridge(), data=(objects, y))


def test_tables_of_pandas_have_missing_values_and_no_dates():
  pandas: Any = pytest.importorskip('pandas')
  x, y = table()
  frame = pandas.DataFrame(x, columns=['a', 'b', 'c'])
  for kind in object, 'Float64':
    column = frame['b'].astype(kind).where(frame['b'] > -20, pandas.NA)
    some = frame.assign(b=column)
    assert some['b'].isna().any()
    model = fitted(OfTables(), TASK, data=(some, y))
    assert np.isnan(model.X_[:, 1]).any()
    assert list(model.feature_names_in_) == ['a', 'b', 'c']
  dated = frame.assign(b=pandas.date_range('2020-01-01', periods=20))
  with refuses('X has dates or durations (datetime64'):
    fitted(Ridge(), data=(dated, y))


@pytest.mark.parametrize('kind', ['datetime64[D]', 'timedelta64[s]'])
def test_dates_are_no_numbers(kind):
  x, y = table()
  dates = np.arange(20).astype(kind)
  with refuses(f'y has dates or durations ({kind})', 'give numbers'):
    fitted(Ridge(), data=(x, dates))
  with refuses(f'X has dates or durations ({kind})', 'give numbers'):
    fitted(Ridge(), data=(dates[:, None], y))


def test_a_path_is_opened_once_for_its_tags(monkeypatch):
  opened = []

  def load(path):
    opened.append(path)
    return zoo.load(path)

  monkeypatch.setattr('zoo.sklearn.estimator.load', load)
  pipeline = make_pipeline(StandardScaler(), zoo.Regressor('checkpoints/tabular'))
  for _ in range(3):
    assert pipeline.__sklearn_tags__().estimator_type == 'regressor'
  assert pipeline[-1].__sklearn_tags__().input_tags.allow_nan
  assert opened == ['checkpoints/tabular']
  pipeline.set_params(regressor__model_or_path='checkpoints/yq_lsa')
  assert not pipeline[-1].__sklearn_tags__().input_tags.allow_nan


def test_a_model_that_reads_missing_numbers_is_given_them():
  x, y = table()
  x[:10, 1] = np.nan
  found = fitted(OfTables(), TASK, data=(x, y))
  assert found.__sklearn_tags__().input_tags.allow_nan
  assert not fitted(Ridge()).__sklearn_tags__().input_tags.allow_nan
  # Before `fit` the model of a path says so, too.
  for path, reads in (
    ('checkpoints/tabular', True),
    ('checkpoints/yq_lsa', False),
    ('nowhere', False),
  ):
    assert zoo.Regressor(path).__sklearn_tags__().input_tags.allow_nan == reads
  queries = np.array([[np.nan, 0.0, 0.0], [0.0, 0.0, 0.0]])
  # The stand-in averages over the rows that miss no more than the query.
  assert_close(found.predict(queries), [y.mean(), y[10:].mean()], 1e-5)
  x[:, 2] = np.nan  # a column of which nothing is known
  with pytest.raises(ValueError, match='infinity'):
    found.predict([[np.inf, 0.0, 0.0]])
  assert np.isfinite(fitted(OfTables(), TASK, data=(x, y)).predict(x)).all()


# Standard deviations.


def test_standard_deviations_are_in_the_units_of_the_table():
  x, y = table()
  mean, std = fitted(MeanOfLabels(), TASK, data=(x, y)).predict(x[:3], return_std=True)
  assert_close(mean, np.full(3, y.mean()), 1e-6)
  assert_close(std, np.full(3, y.std()), 1e-6)


def test_standard_deviations_of_parts_are_those_of_their_mixture():
  x, y = table(30)

  class Short(MeanOfLabels):
    context_length = 10

    def distribution(self, prompt):
      if prompt.x.shape[1] > 10:
        raise zoo.UserError('too many examples')
      return super().distribution(prompt)

  mean, std = fitted(Short(), data=(x, y)).predict(x[:1], return_std=True)
  # A mixture of equal parts that hold each number once has the moments of all numbers.
  assert mean[0] == pytest.approx(y.mean(), rel=1e-5)
  assert std[0] == pytest.approx(y.std(), rel=1e-5)


def test_a_model_without_a_distribution_has_no_standard_deviation():
  model = fitted(Sized(Ridge(), 3))
  with refuses('Sized has no distribution(prompt)', 'leave out return_std'):
    model.predict(table()[0], return_std=True)
  with refuses('Sized has no distribution(prompt)', 'use predict'):
    model.predict_distribution(table()[0])


SMALL = zoo.create_task('tabular', num_features=4, context_length=15)


def tabular(kind: Any = zoo.models.Tabular):
  """A small model of tables with random weights, which has a histogram."""
  sizes: Any = {'num_layers': 1, 'num_heads': 2, 'width': 8, 'num_bars': 8}
  return built(lambda: kind(4, **sizes, rngs=nnx.Rngs(0)))


@pytest.mark.slow
def test_a_distribution_is_in_the_units_of_y():
  x, y = table(20)
  queries = table(5, seed=1)[0]
  model = fitted(tabular(), SMALL, data=(x, y))
  label = model.predict_distribution(queries)
  prompt = prompt_of((x - x.mean(0)) / x.std(0), y, (queries - x.mean(0)) / x.std(0))

  @jax.jit
  def by_the_model(prompt, numbers, p):
    own = model.model_.distribution(prompt)
    return jax.vmap(own.quantile)(p), own.log_prob(numbers)

  shares = np.array([0.05, 0.5, 0.95], np.float32)
  quantiles, densities = by_the_model(prompt, y[:5].astype(np.float32), shares)
  for p, expected in zip((0.05, 0.5, 0.95), quantiles, strict=True):
    assert_close(label.quantile(p), expected, 1e-4)
  assert_close(label.log_prob(y[:5]), densities, 1e-4)
  mean, std = model.predict(queries, return_std=True)
  assert_close(label.mean, mean, 1e-5)
  assert_close(label.std, std, 1e-4)
  assert_close(model.predict(queries), mean, 1e-6)


@pytest.mark.slow
@pytest.mark.full
def test_the_distribution_of_an_ensemble_is_the_mixture_of_its_members():
  x, y = table(20)
  model = fitted(tabular(), SMALL, num_members=3, data=(x, y))
  label = model.predict_distribution(x[:4])
  assert len(label.of_labels.parts) == 3
  mean, std = model.predict(x[:4], return_std=True)
  assert_close(label.mean, mean, 1e-5)
  assert_close(label.std, std, 1e-4)
  median = label.quantile(0.5)
  assert_close(label.cdf(median), np.full(4, 0.5), 1e-3)


@pytest.mark.slow
def test_queries_share_a_context_where_a_model_has_distributions_of_rows():
  x, y = table(20)
  expected = fitted(tabular(), SMALL, data=(x, y)).predict(x, return_std=True)

  class OfRows(zoo.models.Tabular):
    def distribution(self, prompt):
      raise AssertionError('a copy of the context was made for each query')

  found = fitted(tabular(OfRows), SMALL, data=(x, y)).predict(x, return_std=True)
  assert_close(found, expected, 1e-6)


@pytest.mark.slow
def test_a_constant_is_known():
  x, _ = table(20)
  model = fitted(tabular(), SMALL, data=(x, np.full(20, 7.0)))
  label = model.predict_distribution(x[:2])
  assert label.mean.tolist() == [7.0, 7.0]
  assert label.std.tolist() == [0.0, 0.0]
  assert_close(label.mean, model.predict(x[:2]), 1e-6)


@struct.dataclass(eq=False, repr=False)
class Own(Distribution):
  """A Laplace distribution, which has no closed form among ours."""

  mean: Any
  std: Any

  def log_prob(self, y):
    scale = self.std / np.sqrt(2)
    return -jnp.abs(y - self.mean) / scale - jnp.log(2 * scale)

  def cdf(self, y):
    raise NotImplementedError

  def lower_quantile(self, share):
    return self.mean + self.std / np.sqrt(2) * jnp.log(2 * share)

  def mirrored(self):
    return Own(-self.mean, self.std)


def test_a_distribution_of_ones_own_kind_is_in_the_units_of_y(unchecked):
  class OfOwn(MeanOfLabels):
    def distribution(self, prompt) -> Any:
      label = super().distribution(prompt)
      return Own(label.mean, label.std)

  class OfNothing:
    def __call__(self, prompt):
      return prompt.y.mean(axis=1)

    def distribution(self, prompt):
      return {'mean': prompt.y.mean(axis=1)}

  x, y = table()
  label = fitted(OfOwn(), TASK, data=(x, y)).predict_distribution(x)
  expected: Any = stats.laplace(y.mean(), y.std() / np.sqrt(2))
  assert_close(label.log_prob(y), expected.logpdf(y), 1e-5)
  for p in 1e-9, 0.3, 1 - 1e-12:
    np.testing.assert_allclose(label.quantile(p), expected.ppf(p), 1e-5)
  with refuses('of the type dict', 'a zoo.core.distributions.Distribution'):
    fitted(OfNothing(), TASK).predict_distribution(x)


_UNITS = (
  (0, 6), (0, -20), (-19, -14), (-20, -20), (19, 20), (20, -20), (-200, -200),
  (200, 205), (3, 9),
)  # fmt: skip


@pytest.mark.parametrize(
  ('kind', 'units'),
  mostly_full(
    [('gaussian', ((-200, -200),))],
    [('gaussian', _UNITS), ('bars', _UNITS)],
    slow=[('gaussian', _UNITS)],
  ),
)
def test_densities_do_not_depend_on_the_unit_of_y(kind, units):
  """All numbers are 10ᵏ y + 10ʲ, for which float64 has ten digits or more."""
  x, y = table(20, 3)
  y = (y - y.mean()) / y.std()
  queries, asked = table(6, 3, seed=1)[0], np.linspace(-2, 2, 6)
  model = {
    'gaussian': lambda: (TASK.baselines()['bayes'], TASK),
    'bars': lambda: (tabular(), SMALL),
  }[kind]()
  plain: Any = fitted(*model, data=(x, y))
  label = plain.predict_distribution(queries)
  means, stds = plain.predict(queries, return_std=True)
  for k, j in units:
    unit, offset = 10.0**k, 10.0**j
    found = fitted(*model, data=(x * unit, unit * y + offset))
    other = found.predict_distribution(queries * unit)
    y_asked = unit * asked + offset
    scaled = other.log_prob(y_asked) + k * np.log(10)
    np.testing.assert_allclose(scaled, label.log_prob(asked), atol=1e-5)
    np.testing.assert_allclose(other.cdf(y_asked), label.cdf(asked), atol=1e-5)
    for p in 1e-9, 0.5, 0.95:
      at = (other.quantile(p) - offset) / unit
      np.testing.assert_allclose(at, label.quantile(p), rtol=1e-5, atol=1e-5)
    mean, std = found.predict(queries * unit, return_std=True)
    np.testing.assert_allclose((mean - offset) / unit, means, atol=1e-5)
    np.testing.assert_allclose(std / unit, stds, rtol=1e-5)
    np.testing.assert_allclose(other.std / unit, stds, rtol=1e-5)


# Long tables, and many queries.


def test_a_long_table_is_cut_into_equal_parts_whose_predictions_are_averaged():
  x, y = table(50)
  queries = table(4, seed=1)[0]
  found = fitted(Sized(Ridge(), 3, 20), random_state=5, data=(x, y))
  parts = np.array_split(np.random.RandomState(5).permutation(50), 3)
  expected = [least_squares(x[part], y[part], queries) for part in parts]
  assert_close(found.predict(queries), np.mean(expected, axis=0), 1e-4)
  again = fitted(Sized(Ridge(), 3, 20), random_state=5, data=(x, y))
  np.testing.assert_array_equal(found.predict(queries), again.predict(queries))
  other = fitted(Sized(Ridge(), 3, 20), random_state=6, data=(x, y))
  assert not np.allclose(other.predict(queries), found.predict(queries), rtol=1e-6)


@pytest.mark.slow
def test_a_model_with_learned_positions_is_given_no_more_rows_than_it_has_places_for():
  found = fitted('checkpoints/transformer', data=table(25))
  assert [len(part) for part in found._members[0].parts] == [9, 8, 8]
  assert np.isfinite(found.predict(table()[0])).all()


def test_rows_beyond_32_parts_are_left_out_with_a_warning():
  x, y = table(100)
  with pytest.warns(UserWarning, match='takes 2 examples; each member uses 64 of'):
    zoo.Regressor(Sized(Zero(), 3, 2)).fit(x, y)


@pytest.mark.slow
def test_a_model_without_a_limit_takes_all_rows_at_once():
  sizes: Any = {'width': 8, 'num_layers': 1, 'num_heads': 1, 'positions': 'rotary'}
  model = drawn(
    lambda: zoo.models.Transformer(5, 10, **sizes, rngs=nnx.Rngs(0)), dtype='float32'
  )
  (part,) = fitted(model, TASK, data=table(25, 5))._members[0].parts
  np.testing.assert_array_equal(part, np.arange(25))
  # So much attention is enough for the memory.
  lengths = [
    len(part) for part in fitted(model, TASK, data=table(5000, 5))._members[0].parts
  ]
  assert lengths == [2500, 2500]


@pytest.mark.parametrize(
  'model', [Ridge(1.0), pytest.param(NearestNeighbours(), marks=FULL)]
)
def test_ten_thousand_rows_are_no_context_too_long(model):
  x, y = table(10_000, 5)
  predictions = fitted(model, TASK, data=(x, y)).predict(x[:500])
  assert np.corrcoef(predictions, y[:500])[0, 1] > 0.9


@pytest.mark.slow
@pytest.mark.full
def test_no_call_holds_more_numbers_than_its_bound():
  model = Sized(Zero(), 5)
  fitted(model, data=table(2000, 5)).predict(np.zeros((5000, 5)))
  assert max(np.prod(shape) for shape in model.shapes) <= 2**22
  rows: Any = OfTables()
  fitted(rows, data=table(10_000, 5)).predict(np.zeros((5000, 5)))
  assert max(shape[1] for shape in rows.rows) * 10_000 <= 2**24


def test_many_queries_of_one_context_are_one_call_of_a_model_that_takes_them():
  model: Any = OfTables()
  found = fitted(model, data=table())
  model.rows.clear()
  found.predict(np.zeros((50, 3)))
  assert model.rows == [(1, 64, 3)]  # padded to a power of two


@pytest.mark.parametrize('name', mostly_slow(['neighbours'], ['transformer']))
def test_contexts_of_other_lengths_use_the_programs_of_the_next_power_of_two(name):
  sizes: Any = {'width': 8, 'num_layers': 1, 'num_heads': 1}
  model: Any = NearestNeighbours()
  if name == 'transformer':
    model = drawn(
      lambda: zoo.models.Transformer(3, 30, **sizes, rngs=nnx.Rngs(0)), dtype='float32'
    )
  task = zoo.create_task('linear_regression', num_features=3, context_length=30)
  queries = table(12, seed=1)[0]
  found = {c: fitted(model, task, data=table(c)) for c in (9, 16, 11)}
  found[9].predict(queries)
  with counted() as programs:
    predictions = found[11].predict(queries[:9])
    found[16].predict(queries)
  assert not programs
  # Without padding.
  columns, labels = found[11]._members[0].columns, found[11]._units.labels
  prompt = prompt_of(columns(found[11].X_), labels(found[11].y_), columns(queries[:9]))
  assert_close(predictions, labels.back(zoo.predict(model, prompt)), 1e-4)


# Ensembles.


@pytest.mark.slow
def test_members_see_columns_in_other_orders():
  x, y = table(20, 3)
  queries = table(4, seed=1)[0]
  model = OF_LINEAR_FAMILY['yq_lsa']()
  alone, found = (
    fitted(model, TASK, num_members=number, data=(x, y)) for number in (1, 3)
  )
  np.testing.assert_array_equal(alone._members[0].columns.places, [0, 1, 2])
  generator = np.random.RandomState(0)
  orders = [np.arange(3), *(generator.permutation(5)[:3] for _ in range(2))]
  expected = []
  for order in orders:
    # The columns of the table in the places of this member, the others constant.
    placed = [np.zeros((len(rows), 5)) for rows in (x, queries)]
    for rows, into in zip((x, queries), placed, strict=True):
      into[:, order] = rows
    expected.append(fitted(model, TASK, data=(placed[0], y)).predict(placed[1]))
  assert_close(found.predict(queries), np.mean(expected, axis=0), 1e-9)
  assert_close(queries @ found.coef_ + found.intercept_, found.predict(queries), 1e-9)


# As users of scikit-learn write it.


def test_parameters_stay_as_they_are_given(saved):
  estimator: Any = zoo.Regressor(saved.model, saved.task, num_members=2)
  again: Any = clone(estimator)
  assert again.get_params().keys() == {
    *('model_or_path', 'task', 'num_members', 'random_state'),
  }
  assert again.num_members == 2
  assert estimator.get_params()['model_or_path'] is saved.model
  assert again.set_params(model_or_path='checkpoints/lsa').model_or_path.endswith('lsa')
  x, y = table()
  copied: Any = clone(zoo.Regressor(Ridge()))
  first, second = copied.fit(x, y).predict(x), fitted(Ridge(), data=(x, y)).predict(x)
  np.testing.assert_array_equal(first, second)


def test_an_estimator_stands_in_a_pipeline_and_is_cross_validated():
  x, y = table(30)
  model = make_pipeline(StandardScaler(), zoo.Regressor(Ridge(), TASK))
  assert cross_val_score(model, x, y, cv=3).min() > 0.9


@pytest.mark.slow
def test_least_squares_in_context_are_those_of_scikit_learn():
  from sklearn.linear_model import LinearRegression

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
@pytest.mark.filterwarnings('ignore:the .* in prompts of:UserWarning')
@pytest.mark.parametrize(
  'model', mostly_full([Ridge()], ['checkpoints/yq_lsa', 'checkpoints/tabular'])
)
def test_the_checks_of_scikit_learn_pass(model, unchecked):
  from sklearn.utils.estimator_checks import check_estimator

  # Some are skipped without pandas or an environment variable; one that fails raises.
  results = check_estimator(zoo.Regressor(model), on_skip=None)
  assert sum(result['status'] == 'passed' for result in results) > 40
