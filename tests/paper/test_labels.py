"""Exact risks for any label function and for pools of tasks."""

import jax
import numpy as np
import pytest
from flax import nnx

import zoo
from studies.paper import labels
from studies.paper.label_moments import label_moments
from tests.compare import refuses
from tests.marks import mostly_full, mostly_slow
from tests.settings import general, isotropic, random_rule
from zoo import theory
from zoo.tasks.task_pool import TaskPool


def smooth(v):
  return np.log1p(np.exp(-np.abs(v))) + np.maximum(v, 0) - 0.3


def relu(v):
  return np.maximum(v, 0)


FUNCTIONS = {'sign': np.sign, 'tanh': np.tanh}


def pool(n, d=10, c=10, noise_std=0.0, seed=0):
  return TaskPool(d, c, n, noise_std, seed)


def squared_errors(rule, function, noise_std, target, x, noise, w, x_query, last):
  """`(f − t)²` of prompts, the last axes [c, d]; straight from the definitions."""
  y = function(np.einsum('ncd,nd->nc', x, w) + noise_std * noise)
  z = np.concatenate([x, y[..., None]], axis=-1)
  second = np.einsum('nci,ncj->nij', z, z) / x.shape[1]
  weights = rule.init + np.einsum('kij,nij->nk', rule.update, second)
  offset = rule.bias + np.einsum('ij,nij->n', rule.bias_update, second)
  latent = np.einsum('nd,nd->n', w, x_query)
  t = latent if target == 'latent' else function(latent + noise_std * last)
  return (np.einsum('nd,nd->n', weights, x_query) + offset - t) ** 2


@pytest.mark.parametrize('seed', mostly_full([0, 5], range(24)))
def test_monte_carlo(seed):
  """Random rules, functions, noise and targets, d and C: within 4 standard errors.

  24 such tests of correct numbers fail once in 650 choices of the seeds.
  """
  rng = np.random.default_rng(seed)
  d, c, n = 1 + seed % 3, 1 + seed % 5, 40_000
  names = 'sign', 'tanh', smooth, relu
  label = names[seed % 4]
  function = FUNCTIONS[label] if isinstance(label, str) else label
  noise_std = [0.0, 0.7][seed // 2 % 2]
  target = ['latent', 'label'][seed // 4 % 2]
  rule = random_rule(d, seed)
  w = rng.normal(size=(n, d))
  if seed % 3 == 0:
    task = pool(5, d, c, noise_std, seed)
    w = task.pool[rng.integers(5, size=n)]
  else:
    task = isotropic(d, c, rng.normal(size=d), noise_std)
    w += task.prior_mean
  parts = rng.normal(size=(n, c, d)), rng.normal(size=(n, c)), w
  query = rng.normal(size=(n, d)), rng.normal(size=n)
  errors = squared_errors(rule, function, noise_std, target, *parts, *query)
  exact = labels.label_risk(rule, task, label, target)
  assert abs(errors.mean() - exact) < 4 * errors.std() / np.sqrt(n)


@pytest.mark.parametrize(
  ('label', 'length', 'noise_std'),
  [('tanh', 9.0, 1.5), (smooth, 0.4, 0.0), (smooth, 0.0, 0.5)],
)
def test_label_moments_by_the_trapezoid_rule(label, length, noise_std):
  """In both variables ξ and n, without the reduction to one.

  Its error falls as `exp(−2π · distance of the nearest pole / step)`: tanh(9ξ) has one
  at 0.17, which gives 13 digits.
  """
  step = 1 / 32
  grid = np.arange(-9, 9 + step, step)
  density = step * np.exp(-(grid**2) / 2) / np.sqrt(2 * np.pi)
  function = FUNCTIONS[label] if isinstance(label, str) else label
  y = function(length * grid[:, None] + noise_std * grid)
  hermite = {0: grid**0, 1: grid, 2: grid**2 - 1, 3: grid**3 - 3 * grid}
  orders = (1, 0), (1, 1), (1, 3), (2, 0), (2, 2), (3, 1), (4, 0)
  powers = {1: y, 2: y**2, 3: y**2 * y, 4: (y**2) ** 2}  # NumPy's y**3 is slow
  expected = [(density * hermite[j]) @ powers[k] @ density for k, j in orders]
  moments = np.concatenate(label_moments(label, np.array([length]), noise_std))
  sizes = expected[-1] ** (np.array([k for k, _ in orders]) / 4)
  np.testing.assert_array_less(np.abs(moments - expected), 1e-11 * sizes)


def test_label_moments_of_signs():
  """`E |ξ| = √(2/π)`; with noise `a_kj` falls as `(u/s)^j`, s² = u² + σ²."""
  moments = label_moments('sign', np.array([2.0]), 1.5)
  mean = np.sqrt(2 / np.pi)
  expected = 0, 0.8 * mean, -(0.8**3) * mean, 1, 0, 0.8 * mean, 1
  np.testing.assert_allclose(np.concatenate(moments), expected, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize(
  ('label', 'target', 'guess'),
  mostly_slow(
    [(relu, 'label', 'free'), (relu, 'latent', 'zero')], [('tanh', 'latent', 'zero')]
  ),
)
def test_no_rule_has_a_lower_risk(label, target, guess):
  task = isotropic(2, 3, 0.7, 0.4)
  best = labels.optimum(task, label, target, guess)
  away = random_rule(2)
  if guess == 'zero':
    away = zoo.LearningRule(
      0 * away.init, away.update, 0 * away.bias, 0 * away.bias_update
    )
  # A parabola along any direction, whose least point is the optimum.
  ahead, behind = (
    labels.label_risk(best.rule + step * away, task, label, target)
    for step in (1.0, -1.0)
  )
  assert ahead == pytest.approx(behind, rel=1e-10)
  assert ahead > best.risk


def test_on_a_pool_gradient_descent_takes_the_step_for_as_many_examples():
  step = isotropic(3, 10).baselines()['gd']
  rule = zoo.LearningRule.gradient_descent(np.zeros(3), 4 / (4 + 3 + 1))
  risk = theory.exact_risk(step, pool(5, 3, 4))
  assert risk == pytest.approx(theory.exact_risk(rule, pool(5, 3, 4)), rel=1e-12)


@pytest.mark.parametrize(('guess', 'bias'), [(None, 0.0), (0.5, 0.0), (0.5, 0.7)])
def test_gradient_vanishes_at_the_optimum_of_a_pool(float64, guess, bias):
  task = pool(40, 2, 3, 0.5)
  rule = theory.optimal_rule(task, guess, bias)
  slope = jax.grad(lambda rule: theory.exact_risk(rule, task))(rule)
  np.testing.assert_allclose(slope.update, 0, atol=1e-10)
  if guess is None:
    np.testing.assert_allclose(slope.init, 0, atol=1e-10)
  if bias:
    np.testing.assert_allclose(slope.bias_update, 0, atol=1e-10)


@pytest.mark.slow
def test_fresh_risk_of_gd_beta_trained_on_a_pool():
  """`R*(1 + 1/N) + (d/C)² (d(d + 1) − 2)/(N m³)`, up to terms of order 1/N²."""
  d, c, n, m = 10, 10, 1000, 2.1
  new = isotropic(d, c)
  risks = []
  for seed in range(100):
    w = pool(n, seed=seed).pool
    # GD-β sees only the mean and the covariance of the pool, as shown above.
    trained = isotropic(d, c, w.mean(0), prior_covariance=np.cov(w.T, ddof=0))
    risks.append(theory.exact_risk(theory.optimal_rule(trained), new))
  expected = 110 / 21 * (1 + 1 / n) + (d / c) ** 2 * (d * (d + 1) - 2) / (n * m**3)
  assert expected == pytest.approx(5.238095 + 16.9 / n, abs=5e-5)
  # Four standard errors, and the next order with a coefficient as large as 16.9².
  error = 4 * float(np.std(risks)) / 10 + 16.9**2 / n**2
  assert np.mean(risks) == pytest.approx(expected, abs=error)
  assert error < 0.1 * 16.9 / n


def test_a_label_that_is_always_0_is_predicted_by_0():
  task = isotropic(2, 3)
  best = labels.optimum(task, lambda v: 0 * v, 'label')
  assert best.risk == 0
  assert not np.any(best.rule.init)


@pytest.mark.slow
def test_refusals(unchecked, monkeypatch):
  task = isotropic(2, 3)
  rule = random_rule(2)
  with refuses('label', "'cubik'", 'cubic'):
    labels.label_risk(rule, task, 'cubik')
  with refuses('prior_covariance is not the identity'):
    labels.label_risk(rule, general(2))
  with refuses('the model has 2 features; the task has 3'):
    theory.exact_risk(rule, pool(3, 3))
  with refuses('the model has 2 features; the task has 3'):
    labels.label_risk(rule, isotropic(3, 3), 'sign')
  sizes = {'num_features': 2, 'form': 'scalar'}
  deep = nnx.eval_shape(lambda: zoo.create_model('deep_lsa', **sizes, rngs=nnx.Rngs(0)))
  with refuses('DeepLSA has no learning rule'):
    labels.label_risk(deep, task, 'sign')
  with refuses('num_features is 49; it must be ≤ 48'):
    labels.optimum(isotropic(49, 3))
  with refuses('grows too fast'):
    labels.label_risk(rule, task, np.exp)
  with refuses('not finite everywhere'):
    labels.label_risk(rule, task, lambda v: np.exp(v**2 / 10))
  # As many intervals as there are by default take four seconds.
  monkeypatch.setattr('studies.paper.label_moments._MOST_INTERVALS', 50)
  with refuses('changes too quickly'):
    labels.label_risk(rule, task, lambda v: np.sign(v - 1))
  with refuses('one number for each'):
    labels.label_risk(rule, task, lambda v: 1.0)
