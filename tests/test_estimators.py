import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import zoo
from tests.compare import refuses
from tests.marks import mostly_full
from tests.settings import general, isotropic
from tests.wrapped import Wrapped
from zoo import estimators, theory
from zoo.core.protocols import PredictsAll
from zoo.estimators.baselines import HostBaseline, NearestNeighbours, Zero, distinct
from zoo.estimators.classes import NearestShares
from zoo.estimators.tables import TableNeighbours


def prompts(c: int = 5) -> Any:
  """Eight prompts of the general task with c ≤ 7 examples, in float64."""
  task = general(c=7, noise_std=0.5)
  with jax.enable_x64(True):
    return jax.device_get(task.sample(jax.random.key(0), 8)).prefix(c)


def test_steps_descend_the_gradient_of_the_squared_error(float64):
  prompt = prompts()
  start, step_sizes = np.array([0.5, -1.0, 2.0]), np.array([0.1, 0.2, 0.05])

  def loss(weights, x, y):
    return jnp.mean(jnp.square(x @ weights - y)) / 2

  def descend(x, y):
    weights = jnp.asarray(start)
    for step_size in step_sizes:
      weights = weights - step_size * jax.grad(loss)(weights, x, y)
    return weights

  expected = jax.jit(jax.vmap(descend))(prompt.x, prompt.y)
  estimator = estimators.gradient_descent(start, step_sizes, 3)
  weights = jax.jit(estimator.weights)(prompt)
  np.testing.assert_allclose(weights, expected, rtol=1e-12)


def test_learning_rules_predict_the_same(float64):
  task, prompt = general(noise_std=0.5), prompts()
  own = (
    estimators.gradient_descent(task),
    estimators.gradient_descent(np.array([0.5, -1.0, 2.0]), 0.3),
    estimators.gd_beta(task),
    estimators.prior_mean(task),
  )
  predict = jax.jit(lambda p: [(one.learning_rule()(p), one(p)) for one in own])
  for by_rule, by_estimator in predict(prompt):
    np.testing.assert_allclose(by_rule, by_estimator, atol=1e-12)
  with refuses('2 steps of gradient descent are no learning'):
    estimators.gradient_descent(np.zeros(3), 0.1, 2).learning_rule()


@pytest.mark.parametrize('c', mostly_full([2], [7]))
def test_ols_is_the_least_squares_nearest_to_the_start(float64, c):
  task, prompt = general(c=c, noise_std=0.5), prompts(c)
  weights = jax.jit(estimators.ols(task).weights)(prompt)
  for w, x, y in zip(*map(np.asarray, (weights, prompt.x, prompt.y)), strict=True):
    step, *_ = np.linalg.lstsq(x, y - x @ task.prior_mean)
    np.testing.assert_allclose(w, task.prior_mean + step, rtol=1e-8, atol=1e-8)


def test_ols_of_singular_features_stays_finite():
  b = np.random.default_rng(0).normal(size=(3, 2))
  task = isotropic(3, 8, feature_covariance=b @ b.T)
  prompt = task.sample(jax.random.key(0), 256)
  prediction = jax.jit(estimators.ols(task))(prompt)
  np.testing.assert_allclose(prediction, prompt.y_query, atol=1e-2)


def test_ridge_solves_the_normal_equations(float64):
  prompt = prompts()
  start = np.array([0.5, -1.0, 2.0])
  weights = jax.jit(estimators.ridge(start, 0.7).weights)(prompt)
  gram = np.einsum('bci,bcj->bij', prompt.x, prompt.x) + 0.7 * np.eye(3)
  right = np.einsum('bci,bc->bi', prompt.x, prompt.y) + 0.7 * start
  expected = np.linalg.solve(gram, right[..., None])[..., 0]
  np.testing.assert_allclose(weights, expected, rtol=1e-10)


@pytest.mark.parametrize('c', mostly_full([2], [7]))
def test_bayes_is_the_posterior_mean(float64, c):
  """By the joint normal distribution of ŵ and y."""
  task, prompt = general(c=c, noise_std=0.5), prompts(c)
  prior = task.prior_covariance
  weights = jax.jit(estimators.bayes(task).weights)(prompt)
  for w, x, y in zip(*map(np.asarray, (weights, prompt.x, prompt.y)), strict=True):
    covariance = np.asarray(x @ prior @ x.T) + 0.25 * np.eye(c)
    step = prior @ x.T @ np.linalg.solve(covariance, y - x @ task.prior_mean)
    np.testing.assert_allclose(w, task.prior_mean + step, rtol=1e-9, atol=1e-9)


def test_the_best_penalty_without_noise():
  """With fewer examples than features it may be far from 0."""
  fields: Any = {
    'prior_covariance': np.diag([0.01, 1.0]),
    'feature_covariance': np.diag([10.0, 1.0]),
  }
  few, enough = isotropic(2, 1, **fields), isotropic(2, 2, **fields)
  assert estimators.best_penalty(enough) == 0
  with refuses('penalty is None', 'it must be given'):
    estimators.best_penalty(few)
  assert 'ridge' in enough.baselines()
  assert 'ridge' not in few.baselines()
  # With x = [a, b] and the penalty λ the weights are xᵀx ŵ/(λ + |x|²).
  x = np.random.default_rng(0).normal(size=(100_000, 2)) * np.sqrt([10.0, 1.0])

  def risk(penalty):
    kept = x[:, :, None] * x[:, None] / (penalty + np.square(x).sum(1))[:, None, None]
    left = np.eye(2) - kept
    return np.einsum('i,bij,j->b', [10.0, 1.0], left**2, [0.01, 1.0]).mean()

  assert risk(30.0) < 0.7 * risk(0.0)
  for scalar in 'prior_covariance', 'feature_covariance':
    assert estimators.best_penalty(isotropic(2, 1, **fields | {scalar: None})) == 0


def test_a_penalty_is_a_finite_number(unchecked):
  for penalty in (np.inf, np.nan, -1.0, np.float32(np.nan)):
    with refuses('penalty is', 'finite number ≥ 0'):
      estimators.Ridge(penalty)
  # A huge penalty leaves the start.
  task = isotropic(2, 3, noise_std=0.5)
  assert theory.exact_risk(estimators.Ridge(1e38), task) == pytest.approx(2)


@pytest.mark.parametrize(
  'fields', [{}, {'prior_mean': 0.5}, {'prior_covariance': np.diag([3.0, 1.0, 0.1])}]
)
def test_best_penalty_is_a_valley(fields):
  task, start = isotropic(3, 5, noise_std=0.8, **fields), np.zeros(3)
  best = estimators.best_penalty(task, start)
  covariance = np.asarray(fields.get('prior_covariance', np.eye(3)))
  power = np.trace(covariance) + task.prior_mean @ task.prior_mean
  assert best == pytest.approx(0.64 * 3 / power, rel=1e-12)
  below, least, above = (
    theory.ridge_risk(estimators.ridge(start, factor * best), task)
    for factor in (0.9, 1.0, 1.1)
  )
  assert least.upper < min(below.lower, above.lower)


# Exact risks of what is no learning rule.


def closed_forms(d):
  """Tasks and estimators with a closed form, and the formula of each risk."""
  noise = isotropic(d, d + 6, prior_mean=1.0, noise_std=0.7)
  few = isotropic(d, max(d // 2, 1), prior_mean=1.0)
  enough = isotropic(d, d + 1)
  start = np.linspace(-1, 1, d)
  squared = float(np.sum(np.square(start - 1)))
  remaining = 1 - few.context_length / d
  return {
    'ols': (estimators.ols(noise), noise, 0.49 * d / 5),
    'minimum norm': (estimators.ols(start), few, remaining * (d + squared)),
    'bayes': (estimators.bayes(few), few, d - few.context_length),
    'bayes, enough examples': (estimators.bayes(enough), enough, 0.0),
  }


@pytest.mark.parametrize('d', mostly_full([3], [2, 10]))
def test_closed_forms(d):
  for name, (estimator, task, risk) in closed_forms(d).items():
    exact = theory.exact_risk(estimator, task)
    assert exact == pytest.approx(risk, rel=1e-12, abs=1e-12), name


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize('d', [2, 3, 5, 10])
def test_closed_forms_agree_with_a_million_prompts(d):
  cases = {name: case[:2] for name, case in closed_forms(d).items() if case[2] > 0}
  if d > 3:
    del cases['bayes']  # the same algorithm as the minimum norm, and not a fast one
  start = np.linspace(-1, 1, d)
  plain, noisy = (isotropic(d, d + 2, noise_std=noise_std) for noise_std in (0.0, 0.7))
  schedule = theory.best_schedule(noisy, 2)
  cases['two steps'] = estimators.gradient_descent(noisy, schedule, 2), noisy
  cases['three steps'] = estimators.gradient_descent(start, 0.2, 3), plain
  num_batches, batch_size = 16, 65536  # 1,048,576 prompts
  for name, (estimator, task) in cases.items():

    @jax.jit
    def square_errors(key, estimator=estimator, task=task):
      prompt = task.sample(key, batch_size)
      return jnp.square(estimator(prompt) - prompt.y_query)

    sums = np.zeros(2)
    for key in jax.random.split(jax.random.key(d), num_batches):
      errors = np.asarray(square_errors(key), np.float64)
      sums += errors.sum(), np.square(errors).sum()
    count = num_batches * batch_size
    mean = sums[0] / count
    stderr = np.sqrt((sums[1] / count - mean**2) / count)
    assert abs(mean - theory.exact_risk(estimator, task)) < 4 * stderr, name


def test_least_squares_near_as_many_examples_as_features_has_infinite_risk():
  for c in (2, 3, 4):
    task = isotropic(3, c, noise_std=0.5)
    assert theory.exact_risk(estimators.ols(task), task) == float('inf')
  singular = isotropic(3, 5, noise_std=0.5, feature_covariance=np.diag([1.0, 1, 0]))
  assert theory.exact_risk(estimators.ols(singular), singular) == pytest.approx(0.25)


def test_the_exact_risk_of_a_baseline_is_that_of_its_step_at_each_length():
  task, longer = (isotropic(3, c, noise_std=0.7) for c in (2, 6))
  baselines = task.baselines()
  prompt = jax.device_get(longer.sample(jax.random.key(0), 4))
  names = 'gd', 'gd_beta'
  others = longer.baselines()
  predict = jax.jit(lambda p: [(baselines[n](p), others[n](p)) for n in names])
  for name, (predicted, expected) in zip(names, predict(prompt), strict=True):
    baseline, other = baselines[name], others[name]
    risk = theory.exact_risk(baseline, longer)
    assert risk == pytest.approx(theory.exact_risk(other, longer), rel=1e-12)
    np.testing.assert_allclose(predicted, expected, rtol=1e-5)


def test_singular_covariances_in_any_frame():
  """Of rank 3, with eigenvalues that rounding makes 1e-16 in place of 0."""
  frame = np.linalg.qr(np.random.default_rng(0).normal(size=(5, 3)))[0]
  task = isotropic(5, 5, noise_std=0.7, feature_covariance=frame @ frame.T)
  same = isotropic(3, 5, noise_std=0.7)
  assert theory.exact_risk(estimators.ols(task), task) == pytest.approx(0.49 * 3)
  np.testing.assert_allclose(theory.bayes_risk(task), theory.bayes_risk(same))
  prior = isotropic(5, 5, noise_std=0.7, prior_covariance=frame @ frame.T)
  np.testing.assert_allclose(theory.bayes_risk(prior), theory.bayes_risk(same))


def _outputs(ridge, prompt):
  """Its predictions at all lengths, those for the query, and its weights, `[b, m]`."""
  parts = ridge.predictions(prompt), ridge(prompt)[:, None], ridge.weights(prompt)
  return jnp.concatenate(parts, axis=1)


def test_least_squares_from_0_is_that_of_a_start_of_zeros(float64):
  """Without a start and a root: the same weights, predictions and exact risks."""
  for penalty in (0.0, 0.7):
    plain = estimators.Ridge(penalty)
    given = estimators.Ridge(penalty, np.zeros(3), np.eye(3))
    run = jax.jit(lambda p, both=(plain, given): [_outputs(one, p) for one in both])
    own, other = run(prompts())
    # Sums of three products, in orders that XLA chooses.
    np.testing.assert_allclose(own, other, rtol=1e-12, atol=1e-12)
  noisy = isotropic(3, 8, noise_std=0.5, prior_mean=1.0)
  risk = theory.exact_risk(estimators.ols(np.zeros(3)), noisy)
  assert theory.exact_risk(estimators.Ridge(), noisy) == risk
  with refuses('squares is True'):
    theory.exact_risk(estimators.Ridge(squares=True), noisy)


def test_ridge_on_squares_fits_the_squared_features(float64):
  prompt = prompts()
  squared = dataclasses.replace(
    prompt, x=np.square(prompt.x), x_query=np.square(prompt.x_query)
  )
  own = jax.jit(_outputs)(estimators.Ridge(0.7, np.ones(3), squares=True), prompt)
  other = jax.jit(_outputs)(estimators.Ridge(0.7, np.ones(3)), squared)
  np.testing.assert_allclose(own, other, rtol=1e-12, atol=1e-12)


class _Host(HostBaseline):
  def fit_and_predict(self, x, y, x_query):
    return 0.0


def test_equal_predictors_are_one_and_those_of_other_libraries_none():
  ols, zero = estimators.Ridge(), Zero()
  named = {'a': ols, 'host': _Host(), 'b': zero, 'c': estimators.Ridge(), 'd': Zero()}
  assert distinct(named) == {'a, c': ols, 'b, d': zero}
  assert list(distinct(named)) == ['a, c', 'b, d']


def test_several_steps_have_no_size_by_default():
  task = isotropic(3, 5)
  with refuses('step_size is None', '2 steps', 'zoo.theory.best_step_size(task, 2)'):
    estimators.gradient_descent(task, num_steps=2)


def test_bayes_in_a_prior_of_low_rank():
  prior = np.diag([1.0, 1.0, 0.0, 0.0])
  task = isotropic(4, 1, prior_mean=1.0, prior_covariance=prior)
  assert theory.exact_risk(estimators.bayes(task), task) == pytest.approx(1.0)
  other = isotropic(4, 1, prior_covariance=prior)
  with refuses('is not the prior mean; least squares that cannot reach'):
    theory.exact_risk(estimators.bayes(task), other)


def test_what_has_no_exact_risk_says_so():
  few = general(c=2)
  with refuses('context_length is 2, less than the rank 3'):
    theory.exact_risk(estimators.ols(few), few)
  with refuses('feature_covariance is not'):
    theory.exact_risk(estimators.gradient_descent(np.zeros(3), 0.1, 2), few)
  other = Wrapped(few)
  for estimator in (estimators.ols(few), estimators.gradient_descent(np.zeros(3), 0.1)):
    with refuses('the task is of type Wrapped'):
      theory.exact_risk(estimator, other)


def test_bad_arguments(unchecked):
  task = isotropic(3, 4)
  for make in (estimators.bayes, estimators.ols, estimators.prior_mean):
    with refuses('the task is of type Wrapped'):
      make(Wrapped(task))
  with refuses('step_matrix is'):
    estimators.gd_beta(np.zeros(2), 1j * np.eye(2))
  with refuses('step_matrix holds a value that is not fin'):
    estimators.gd_beta(np.zeros(2), np.nan * np.eye(2))
  with refuses('step_size is None'):
    estimators.gradient_descent(np.zeros(3))
  with refuses('step_size has shape (2,)'):
    estimators.gradient_descent(task, np.ones(2), 3)
  with refuses('num_steps is 0'):
    estimators.gradient_descent(task, num_steps=0)
  with refuses('step_matrix is None'):
    estimators.gd_beta(np.zeros(3))
  with refuses('step_matrix has shape (2, 2)'):
    estimators.gd_beta(np.zeros(3), np.eye(2))
  with refuses('penalty is None'):
    estimators.ridge(np.zeros(3))
  with refuses('penalty is -1.0'):
    estimators.ridge(task, -1.0)
  with refuses('the start has shape ()'):
    estimators.ols(1.0)
  x: Any = np.ones((2, 4, 3), 'f')
  y: Any = np.ones((2, 4), 'f')
  prompt = zoo.Prompt(x=x, y=y, x_query=x[:, 0], y_query=y[:, 0])
  with refuses('for 2 features; the prompt has 3'):
    estimators.gradient_descent(np.zeros(2), 0.1)(prompt)


# Every length of the context, and the baselines of the task.


@pytest.mark.parametrize('noise_std', mostly_full([0.5], [0.0]))
def test_predictions_are_those_of_each_prefix(float64, noise_std):
  task = isotropic(3, 5, prior_mean=1.0, noise_std=noise_std)
  prompt = jax.device_get(task.sample(jax.random.key(0), 8))
  predictors: dict[str, Any] = {
    'three steps': estimators.gradient_descent(task, theory.best_schedule(task, 3), 3),
    'one step': estimators.gradient_descent(task),
    'gd_beta untuned': estimators.gd_beta(task),
    'prior_mean': estimators.prior_mean(task),
    **task.baselines(),
  }
  del predictors['ridge']  # which differs from `bayes` in a number
  assert all(isinstance(predictor, PredictsAll) for predictor in predictors.values())

  @jax.jit
  def predict(prompt):
    parts = [prompt.prefix(k) for k in (0, 2, 5)]
    return {
      name: (
        predictor.predictions(prompt),
        jnp.stack([predictor(part) for part in parts], axis=1),
      )
      for name, predictor in predictors.items()
    }

  for name, (at_once, by_length) in jax.device_get(predict(prompt)).items():
    np.testing.assert_allclose(
      at_once[:, [0, 2, 5]], by_length, atol=1e-9, err_msg=name
    )
    if name not in ('averaging', 'nearest_neighbours', 'zero'):
      expected = prompt.x[:, 0] @ task.prior_mean
      np.testing.assert_allclose(at_once[:, 0], expected, atol=1e-12, err_msg=name)


@pytest.mark.parametrize('value', [0, -1, 2.5, True, None])
def test_the_number_of_neighbours_is_checked(unchecked, value):
  for make in (
    lambda: NearestNeighbours(num_neighbours=value),
    lambda: NearestShares(num_neighbours=value),
    lambda: TableNeighbours('numbers', num_neighbours=value),
  ):
    with refuses(f'num_neighbours is {value}; it must be an integer ≥ 1'):
      make()


@pytest.mark.slow
def test_baselines_are_tuned_for_each_number_of_examples():
  task = general(c=4, noise_std=0.5)
  baselines = task.baselines()
  prompt = jax.device_get(task.sample(jax.random.key(0), 8))
  for k in (1, 3):
    part, shorter = prompt.prefix(k), general(c=k, noise_std=0.5)
    for name, expected in (
      ('gd', estimators.gradient_descent(shorter)),
      ('gd_beta', estimators.gd_beta(shorter)),
      ('bayes', estimators.bayes(shorter)),
    ):
      predicted, wanted = (
        jax.jit(baseline)(part) for baseline in (baselines[name], expected)
      )
      # The step is computed in float32 here, and on the host in float64 there.
      np.testing.assert_allclose(
        predicted, wanted, rtol=0, atol=1e-6 * np.abs(wanted).max()
      )
