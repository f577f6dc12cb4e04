import numpy as np
import pytest

import zoo
from tests.marks import SLOW, mostly_full, mostly_slow
from tests.settings import general, isotropic
from zoo import estimators, theory
from zoo.theory import schedules, wishart


@pytest.mark.parametrize(
  'start', [pytest.param(None, marks=SLOW), np.array([0.5, -1.0, 2.0])]
)
@pytest.mark.parametrize('noise_std', mostly_slow([0.7], [0.0, 0.7]))
def test_best_step_size_and_matrix_have_no_slope(start, noise_std):
  """A risk that is quadratic in the step has a central difference of 0 at its best."""
  task = general(noise_std=noise_std)
  origin = task.prior_mean if start is None else start

  def risk(step_matrix):
    rule = estimators.gd_beta(origin, step_matrix).learning_rule()
    return theory.exact_risk(rule, task)

  best = theory.best_step_size(task, start=start) * np.eye(3)
  shift = 0.1 * np.eye(3)
  lowest = risk(best)
  assert risk(best + shift) == pytest.approx(risk(best - shift), rel=1e-10)
  assert risk(best + shift) > lowest
  best = estimators.best_step_matrix(task, start)
  assert risk(best) < lowest
  for shift in 0.1 * np.random.default_rng(1).normal(size=(4, 3, 3)):
    assert risk(best + shift) == pytest.approx(risk(best - shift), rel=1e-10)


@pytest.mark.parametrize(
  ('num_steps', 'noise_std'),
  mostly_full([(3, 0.0), (3, 3.0)], [2, 3, 8], [0.0, 0.5, 3.0], slow=[(2, 0.5)]),
)
def test_best_constant_step_and_schedule(num_steps, noise_std):
  task = isotropic(4, 6, prior_mean=1.0, noise_std=noise_std)

  def risk(step_sizes):
    return schedules.gradient_descent_risk(task, step_sizes, None)

  step_size = theory.best_step_size(task, num_steps)
  constant = risk(np.full(num_steps, step_size))
  for other in np.linspace(0, 1.5, 31):
    assert constant <= risk(np.full(num_steps, other)) * (1 + 1e-12)
  schedule = theory.best_schedule(task, num_steps)
  best = risk(schedule)
  # Under strong noise the best polynomial has complex zeros, and of real steps equal
  # ones are then the best.
  assert best <= constant
  assert noise_std > 1 or best < 0.99 * constant
  fewer = theory.best_schedule(task, num_steps - 1)
  assert best < risk(fewer)
  away = np.random.default_rng(0).normal(size=(20, num_steps))
  for other in schedule * (1 + 0.02 * away):
    assert best <= risk(other) * (1 + 1e-12)


@pytest.mark.parametrize('noise_std', [0.0, 3.0])
@pytest.mark.parametrize('start', [None, np.array([0.5, -1.0, 2.0])])
def test_polynomial_optimum_is_a_least_squares_solution(noise_std, start):
  """The quadratic function of the coefficients of Q, minimised as it stands."""
  task = isotropic(3, 4, noise_std=noise_std, feature_covariance=2.0 * np.eye(3))
  square = 3.0 if start is None else 3.0 + float(np.sum(start**2))
  for degree in (1, 2, 4):
    points, weights = wishart.spectrum(3, 4, degree + 1)
    points = 2.0 * points
    powers = points[:, None] ** np.arange(degree)
    prior = np.sqrt(2.0 * square * weights)
    noise = np.sqrt(2.0 * noise_std**2 * 3 / 4 * points * weights)
    system = np.concatenate(
      [(prior * points)[:, None] * powers, noise[:, None] * powers]
    )
    right = np.concatenate([prior, np.zeros_like(noise)])
    coefficients, *_ = np.linalg.lstsq(system, right)
    least = float(np.sum(np.square(system @ coefficients - right)))
    optimum = schedules.polynomial_optimum(task, degree, start)
    # Powers up to the third of points between 0.1 and 20 are well conditioned.
    assert optimum.risk == pytest.approx(least, rel=1e-10)
    # Q = (1 − P) / s.
    values = (1 - np.prod(1 - np.outer(points, 1 / optimum.roots), axis=1)) / points
    np.testing.assert_allclose(values, powers @ coefficients, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(optimum.coefficients, coefficients, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize(('c', 'degree'), [(200, 8), (2000, 10)])
def test_a_tiny_risk_keeps_its_digits_and_its_schedule(c, degree):
  """Without noise the roots are real, so that their steps attain the risk."""
  task = isotropic(2, c)
  optimum = schedules.polynomial_optimum(task, degree)
  assert optimum.steps is not None
  assert 0 < optimum.risk < 1e-10
  risk = schedules.gradient_descent_risk(task, optimum.steps, None)
  assert optimum.risk == pytest.approx(risk, rel=1e-12)
  # No other step near them is better by more than their own rounding.
  for factor in (0.999, 1.001):
    steps = optimum.steps * factor
    assert schedules.gradient_descent_risk(task, steps, None) > risk


def test_of_a_start_that_is_right_no_step_leads_away():
  task = isotropic(2, 3, prior_covariance=np.zeros((2, 2)), noise_std=1.0)
  optimum = schedules.polynomial_optimum(task, 3)
  assert (optimum.risk, optimum.roots.size) == (0, 0)
  np.testing.assert_array_equal(optimum.coefficients, np.zeros(3))
  np.testing.assert_array_equal(theory.best_schedule(task, 3), np.zeros(3))


@pytest.mark.slow
@pytest.mark.full
def test_schedule_where_the_best_polynomial_has_complex_zeros():
  """A single local search ended at 2.284829."""
  task = isotropic(5, 30, noise_std=4.0)
  schedule = theory.best_schedule(task, 6)
  risk = schedules.gradient_descent_risk(task, schedule, None)
  assert risk == pytest.approx(1.927127, abs=5.1e-7)
  optimum = schedules.polynomial_optimum(task, 6)
  assert optimum.risk == pytest.approx(1.890784, abs=5.1e-7)
  assert np.abs(np.imag(1 / optimum.roots)).max() > 0.1
  assert optimum.steps is None


def test_what_has_no_closed_form_says_so():
  task = general(noise_std=0.5)
  for call in (theory.best_step_size, theory.best_schedule):
    with pytest.raises(zoo.UserError, match='feature_covariance is not a positive mul'):
      call(task, 2)
  with pytest.raises(zoo.UserError, match='penalty is None'):
    estimators.best_penalty(task)
  certain = isotropic(2, 3, prior_covariance=np.zeros((2, 2)), noise_std=1.0)
  with pytest.raises(zoo.UserError, match='use prior_mean'):
    estimators.best_penalty(certain)
  assert theory.best_step_size(certain) == 0
  nothing = isotropic(2, 3, prior_covariance=np.zeros((2, 2)))
  assert theory.best_step_size(nothing, 2) == 0


def test_more_steps_than_can_be_computed_are_refused():
  task = isotropic(2, 3)
  for call in (theory.best_step_size, theory.best_schedule, theory.polynomial_optimum):
    with pytest.raises(zoo.UserError, match='is 129; it must be an integer from 1'):
      call(task, 129)
  descent = estimators.gradient_descent(task, 0.1, 129)
  with pytest.raises(zoo.UserError, match='for at most 128 steps; there are 129'):
    theory.exact_risk(descent, task)


def test_the_best_step_size_does_not_depend_on_units():
  sizes = [
    theory.best_step_size(isotropic(2, 3, feature_covariance=unit * np.eye(2)), 3)
    * unit
    for unit in (1.0, 1e-12, 1e12)
  ]
  np.testing.assert_allclose(sizes, sizes[0], rtol=1e-6)
