"""Risks of two predictors on the same prompts."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import zoo
from tests.compare import refuses
from tests.probing.models import assert_within
from tests.settings import isotropic
from tests.wrapped import Wrapped
from zoo import estimators, probing, theory
from zoo.core.learning_rule import LearningRule
from zoo.measure.predict import BATCH_SIZE, sample_batches


def test_a_risk_is_the_mean_square_on_the_very_prompts_and_near_the_exact_risk():
  task = isotropic(3, 4, prior_mean=0.5, noise_std=0.3)
  subject = LearningRule.gradient_descent(jnp.zeros(3), 0.4)
  other = estimators.gradient_descent(task)
  risks = probing.risks(subject, other, task, num_prompts=3000)
  (prompt,) = sample_batches(task, 0, 3000, BATCH_SIZE)
  x, y, x_query, target = (
    np.asarray(getattr(prompt, field), np.float64)
    for field in ('x', 'y', 'x_query', 'y_query')
  )
  step = 0.4 * np.einsum('bc,bci->bi', y, x) / 4
  errors = (np.sum(step * x_query, axis=1) - target) ** 2
  assert risks.risk.mean == pytest.approx(errors.mean(), rel=1e-5)  # float32 there
  stderr = errors.std() / np.sqrt(len(errors) - 1)
  assert risks.risk.stderr == pytest.approx(stderr, rel=1e-4)
  assert risks.risk_difference.mean == pytest.approx(
    risks.risk.mean - risks.other_risk.mean, abs=1e-6
  )
  for exact, sampled in (
    (risks.exact_risk, risks.risk),
    (risks.other_exact_risk, risks.other_risk),
  ):
    assert exact is not None
    assert abs(exact - sampled.mean) < 4 * sampled.stderr
  assert risks.exact_risk == pytest.approx(theory.exact_risk(subject, task))
  assert risks.other_exact_risk is not None
  assert risks.optimal_risk is not None
  assert risks.optimal_risk <= risks.other_exact_risk + 1e-12


def test_risks_are_sampled_on_any_task_and_exact_where_theory_covers_it():
  task = isotropic(3, 4, prior_mean=0.5, noise_std=0.3)
  unknown = Wrapped(task)
  gd, start = estimators.gradient_descent(task), estimators.prior_mean(task)
  known = probing.risks(gd, start, task, num_prompts=2000)
  other = probing.risks(gd, start, unknown, num_prompts=2000)
  assert known.exact_risk == pytest.approx(theory.exact_risk(gd, task))
  assert known.optimal_risk == pytest.approx(theory.exact_risk(gd, task))
  assert (known.risk, known.other_risk) == (other.risk, other.other_risk)
  assert [other.exact_risk, other.other_exact_risk, other.optimal_risk] == [None] * 3
  assert_within(known.risk, known.exact_risk)
  assert_within(known.other_risk, 3.0)
  assert known.risk_difference.mean == pytest.approx(
    known.risk.mean - known.other_risk.mean
  )


def test_prompts_with_other_features_are_refused():
  model = zoo.create_model('yq_lsa', num_features=3, rngs=nnx.Rngs(0))
  with refuses('is for 3 features; the prompt has 5'):
    probing.risks(model, model, isotropic(5, 4), num_prompts=10)
