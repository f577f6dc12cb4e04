import numpy as np
import pytest

import zoo
from tests.settings import general, isotropic
from zoo import estimators, theory
from zoo.estimators import tuning


@pytest.mark.parametrize('start', [None, np.array([0.5, -1.0, 2.0])])
@pytest.mark.parametrize('noise_std', [0.0, 0.7])
def test_best_step_size_and_matrix_have_no_slope(start, noise_std):
  """A risk that is quadratic in the step has a central difference of 0 at its best."""
  task = general(noise_std=noise_std)
  origin = task.prior_mean if start is None else start

  def risk(step_matrix):
    return theory.exact_risk(estimators.gd_beta(origin, step_matrix), task)

  best = tuning.best_step_size(task, start=start) * np.eye(3)
  shift = 0.1 * np.eye(3)
  lowest = risk(best)
  assert risk(best + shift) == pytest.approx(risk(best - shift), rel=1e-10)
  assert risk(best + shift) > lowest
  best = tuning.best_step_matrix(task, start)
  assert risk(best) < lowest
  for shift in 0.1 * np.random.default_rng(1).normal(size=(4, 3, 3)):
    assert risk(best + shift) == pytest.approx(risk(best - shift), rel=1e-10)


def test_best_step_matrix_of_an_isotropic_task_is_a_number():
  task = isotropic(10, 10, prior_mean=2.0, noise_std=0.5)
  expected = 10 / 21.25 * np.eye(10)
  np.testing.assert_allclose(tuning.best_step_matrix(task), expected, atol=1e-15)
  assert tuning.best_step_size(task) == pytest.approx(10 / 21.25, rel=1e-14)


@pytest.mark.parametrize('noise_std', [0.0, 0.5, 3.0])
@pytest.mark.parametrize('num_steps', [2, 3, 8])
def test_best_constant_step_and_schedule(num_steps, noise_std):
  task = isotropic(4, 6, prior_mean=1.0, noise_std=noise_std)

  def risk(step_sizes):
    return tuning.gradient_descent_risk(task, step_sizes, None)

  step_size = tuning.best_step_size(task, num_steps)
  constant = risk(np.full(num_steps, step_size))
  for other in np.linspace(0, 1.5, 301):
    assert constant <= risk(np.full(num_steps, other)) * (1 + 1e-12)
  schedule = tuning.best_schedule(task, num_steps)
  best = risk(schedule)
  # Under strong noise the best polynomial would have complex zeros, and of real steps
  # equal ones are then the best: both searches end there, up to rounding.
  assert best <= constant * (1 + 1e-12)
  assert noise_std > 1 or best < 0.99 * constant
  fewer = tuning.best_schedule(task, num_steps - 1)
  assert best < risk(fewer)
  rng = np.random.default_rng(0)
  for scale in (1e-3, 1e-1):
    for _ in range(20):
      other = schedule * (1 + scale * rng.normal(size=num_steps))
      assert best <= risk(other) * (1 + 1e-12)


def test_one_step_schedule_is_the_best_step():
  for noise_std in (0.0, 0.5):
    task = isotropic(4, 6, prior_mean=1.0, noise_std=noise_std)
    start = np.full(4, 0.3)
    best = tuning.best_step_size(task, start=start)
    assert tuning.best_schedule(task, 1, start) == pytest.approx(best, rel=1e-7)


def test_many_steps_without_noise_end_at_least_squares():
  task = isotropic(5, 3)
  risk = tuning.gradient_descent_risk(task, tuning.best_schedule(task, 30), None)
  # The smallest eigenvalues of a 3 by 3 Wishart part are never quite reached.
  assert 2.0 < risk < 2.1


def test_scaled_features_scale_the_step():
  small, large = (
    isotropic(3, 4, feature_covariance=variance * np.eye(3)) for variance in (1.0, 4.0)
  )
  for num_steps in (1, 3):
    step_sizes = [tuning.best_step_size(task, num_steps) for task in (small, large)]
    assert step_sizes[1] == pytest.approx(step_sizes[0] / 4, rel=1e-6)


def test_what_has_no_closed_form_says_so():
  task = general(noise_std=0.5)
  for call in (tuning.best_step_size, tuning.best_schedule):
    with pytest.raises(zoo.UserError, match='feature_covariance is not a positive mul'):
      call(task, 2)
  with pytest.raises(zoo.UserError, match='penalty is None'):
    tuning.best_penalty(task)
  certain = isotropic(2, 3, prior_covariance=np.zeros((2, 2)), noise_std=1.0)
  with pytest.raises(zoo.UserError, match='use prior_mean'):
    tuning.best_penalty(certain)
  assert tuning.best_step_size(certain) == 0
  with pytest.raises(zoo.UserError, match='num_steps is 0'):
    tuning.best_schedule(task, 0)
  with pytest.raises(zoo.UserError, match=r'start has shape \(2,\)'):
    tuning.best_step_size(task, start=np.zeros(2))
