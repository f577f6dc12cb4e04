import jax
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import zoo
from tests.marks import mostly_full
from tests.settings import isotropic
from tests.theory.expectations import make_task
from zoo import estimators, theory


@pytest.mark.parametrize(
  ('d', 'c', 'mean'),
  mostly_full(
    [],
    *([1, 3, 10], [1, 10, 1000], [0.0, 2.0]),
    slow=[(3, 10, 0.0), (3, 1000, 2.0)],
  ),
)
def test_gradient_descent_with_the_best_step_is_the_global_optimum(d, c, mean):
  task = isotropic(d, c, mean)
  gd = estimators.gradient_descent(task)
  certificate = theory.certificate(gd, task)
  # Sums of some d² (1 + |w*|²) terms that cancel, of order 1 to 1e3, in float64.
  assert certificate.gradient_norm < 1e-10
  assert certificate.smallest_eigenvalue > 0
  assert certificate.excess_risk < 1e-20
  # In float32, as models hold it, it still counts as the optimum.
  start = np.full(d, mean, np.float32)
  rule = zoo.LearningRule.gradient_descent(start, np.float32(c / (c + d + 1)))
  # float32 has 7 digits, and the excess is quadratic.
  assert theory.certificate(rule, task).excess_risk < 1e-9


@pytest.mark.slow
def test_the_optimum_under_general_covariances_is_a_matrix_step():
  task = make_task('general', 3, 6)
  step, matrix = (
    make(task).learning_rule()
    for make in (estimators.gradient_descent, estimators.gd_beta)
  )
  assert theory.certificate(step, task).excess_risk > 1e-6
  certificate = theory.certificate(matrix, task)
  assert certificate.gradient_norm < 1e-10
  assert certificate.smallest_eigenvalue > 0
  assert certificate.excess_risk < 1e-20


@pytest.mark.slow
@pytest.mark.parametrize(
  'kind', mostly_full(['general'], ['mean', 'noise', 'singular'])
)
def test_smallest_eigenvalue_is_that_of_the_whole_hessian(kind):
  """Over all symmetric rules, from the risk itself as a black box."""
  d = 2
  task = make_task(kind, d, 3)
  zero = zoo.LearningRule.gradient_descent(np.zeros(d), 0.0)
  with jax.enable_x64(True):
    flat, unravel = ravel_pytree(zero)
    moments = theory.task_moments(task)
    risk = jax.jit(jax.hessian(lambda x: theory.population_risk(unravel(x), moments)))
    eigenvalues = np.linalg.eigvalsh(risk(flat))
  # The antisymmetric parts do not matter: 3 entries of each matrix.
  smallest = theory.certificate(zero, task).smallest_eigenvalue
  assert smallest == pytest.approx(eigenvalues[(d + 1) * 3], abs=1e-12)


@pytest.mark.slow
@pytest.mark.full
def test_the_tuned_step_is_taken_at_the_length_of_the_task():
  gd = isotropic(2, 3).baselines()['gd']
  certificate = theory.certificate(gd, isotropic(2, 30))
  assert certificate.gradient_norm < 1e-10
  assert certificate.excess_risk < 1e-20


@pytest.mark.slow
@pytest.mark.full
def test_a_hessian_that_is_singular_has_an_eigenvalue_of_0():
  # Without noise and with one task, some rules predict the same on every prompt.
  task = zoo.tasks.LinearRegression(3, 4, prior_covariance=np.zeros((3, 3)))
  rule = zoo.LearningRule.gradient_descent(np.zeros(3), 0.5)
  assert theory.certificate(rule, task).smallest_eigenvalue == 0
