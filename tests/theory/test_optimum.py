import dataclasses

import hypothesis
import hypothesis.strategies as st
import jax
import numpy as np
import pytest

import zoo
from tests.marks import mostly_full
from tests.settings import isotropic
from tests.theory.expectations import KINDS, make_task
from zoo import estimators, theory

counts = st.tuples(st.sampled_from([1, 3]), st.integers(1, 12))  # d and C
numbers = st.floats(-3, 3).map(lambda number: round(number, 3))
noises = st.floats(0, 2).map(lambda number: round(number, 3))
# Compiling for a new d takes longer than the deadline of an example.
examples = hypothesis.settings(deadline=None, max_examples=8, derandomize=True)


@pytest.mark.slow
@examples
@hypothesis.given(counts, numbers, noises)
def test_best_step_and_its_risk(count, mean, noise_std):
  d, c = count
  task = isotropic(d, c, mean, noise_std)
  best = c / (c + d + 1 + noise_std**2)
  assert theory.best_step_size(task) == pytest.approx(best, rel=1e-12)
  risk = d * (d + 1 + noise_std**2) / (c + d + 1 + noise_std**2)
  gd = estimators.gradient_descent(task)
  step = gd.learning_rule()
  assert theory.exact_risk(step, task) == pytest.approx(risk, rel=1e-11)
  rule = theory.optimal_rule(task)
  assert float(rule.distance(step)) < 1e-5
  assert theory.exact_risk(rule, task) == pytest.approx(risk, rel=1e-11)


@examples
@hypothesis.given(counts, numbers, noises, st.integers(0, 99))
def test_guess_costs_kappa_times_its_square(count, bias, noise_std, seed):
  """With noise the labels tell more of the constant: κ has a third term."""
  d, c = count
  rng = np.random.default_rng(seed)
  a, b = rng.normal(size=(2, d, d))
  prior, features = a @ a.T, b @ b.T + 0.1 * np.eye(d)
  task = isotropic(
    d,
    c,
    prior_mean=rng.normal(size=d),
    prior_covariance=prior,
    feature_covariance=features,
    noise_std=noise_std,
  )
  guess = rng.normal(size=d)
  spread = features @ prior
  tau = np.trace(spread) + noise_std**2
  variance = 2 * (1 + 1 / c) * np.trace(spread @ spread) + 2 * tau**2 / c
  kappa = 1 / (1 + d * c / 2 + noise_std**4 / variance)
  delta = task.prior_mean - guess
  extra = theory.exact_risk(theory.optimal_rule(task, guess, bias), task)
  extra -= theory.exact_risk(theory.optimal_rule(task), task)
  expected = kappa * (delta @ features @ delta + bias**2)
  assert extra == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize('kind', mostly_full(['noise'], KINDS))
def test_no_fixed_guess_has_a_lower_risk(kind):
  """The gradient over what is free vanishes, and the risk is convex."""
  task = make_task(kind, 3, 4)
  rule = theory.optimal_rule(task, np.array([0.5, -1.0, 0.2]), 0.7)
  with jax.enable_x64(True):

    def risk(update, bias_update):
      free = dataclasses.replace(rule, update=update, bias_update=bias_update)
      return theory.population_risk(free, theory.task_moments(task))

    gradients = jax.jit(jax.grad(risk, (0, 1)))(
      jax.numpy.array(rule.update), jax.numpy.array(rule.bias_update)
    )
  for gradient in gradients:
    np.testing.assert_allclose(gradient, 0, atol=1e-11)


def test_bad_arguments(unchecked):
  task = isotropic(3, 4)
  with pytest.raises(zoo.UserError, match=r'initial_guess has shape \(2,\)'):
    theory.optimal_rule(task, np.zeros(2))
  with pytest.raises(zoo.UserError, match='initial_bias is inf'):
    theory.optimal_rule(task, 0.0, float('inf'))
  with pytest.raises(zoo.UserError, match='the task is of type NoneType'):
    theory.optimal_rule(None)  # pyright: ignore[reportArgumentType]
