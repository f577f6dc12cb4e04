"""Risks on shifted tasks."""

import dataclasses
import json
from typing import Any, cast

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import zoo
from tests.compare import refuses
from tests.marks import mostly_full
from tests.probing.models import (
  TASK,
  Softmax,
  assert_within,
  biased,
)
from tests.settings import general, isotropic
from zoo import theory
from zoo.probing import SHIFTS, shift, shifted_tasks, summary
from zoo.probing.pictures import plot_shifts
from zoo.probing.report import Report
from zoo.probing.shifts import task_shift
from zoo.probing.summaries import _shift_table


@pytest.mark.parametrize('name', mostly_full(['query_scale'], SHIFTS))
def test_exact_and_sampled_agree_and_the_task_itself_is_among_them(name):
  task = isotropic(3, 4, prior_mean=[1.0, -0.5, 0.0], noise_std=0.5)
  model, gd = biased(), zoo.estimators.gradient_descent(task)
  found = shift(model, gd, task, name)
  for risk in found.risks:
    assert risk.exact is not None
    assert risk.other_exact is not None
    assert risk.sampled is not None
    assert risk.other_sampled is not None
    assert risk.failure is None
    assert_within(risk.sampled, risk.exact)
    assert_within(risk.other_sampled, risk.other_exact)
    assert risk.optimal <= min(risk.exact, risk.other_exact) * (1 + 1e-9)
  (trained,) = [risk for risk in found.risks if risk.value == found.trained]
  assert trained.exact == pytest.approx(theory.exact_risk(model, task), rel=1e-12)
  assert trained.other_exact == pytest.approx(theory.exact_risk(gd, task), rel=1e-12)
  assert len({risk.exact for risk in found.risks}) == len(found.risks)


def test_the_shifted_feature_covariance_keeps_its_trace():
  task = general()
  before = np.asarray(task.feature_covariance)
  for shifted in shifted_tasks(task, 'feature_condition'):
    features = np.asarray(shifted.task.feature_covariance)
    assert np.trace(features) == pytest.approx(np.trace(before))
    if shifted.value == 1:
      assert shifted.task is task
    else:
      assert np.linalg.eigvalsh(features)[-1] > np.linalg.eigvalsh(before)[-1]


def test_a_task_is_shifted_to_the_values_that_are_given():
  task = isotropic(3, 4, prior_mean=[1.0, -2.0, 2.0], noise_std=0.5)
  longer, same = shifted_tasks(task, 'context_length', [9.0, 4.0])
  assert (longer.value, longer.task.context_length) == (9.0, 9)
  assert same.task is task
  (moved,) = shifted_tasks(task, 'prior_mean', [6.0])
  np.testing.assert_allclose(moved.task.prior_mean, [3.0, -6.0, 6.0])
  (scaled,) = shifted_tasks(task, 'feature_scale', [3.0])
  np.testing.assert_array_equal(scaled.task.feature_covariance, 9 * np.eye(3))
  (noisy,) = shifted_tasks(task, 'noise_std', [0.25])
  assert noisy.task.noise_std == 0.25
  (query,) = shifted_tasks(task, 'query_scale', [2.0])
  assert (query.task, query.query_scale) == (task, 2.0)


def test_what_has_no_rule_is_sampled_alone():
  task = isotropic(3, 4, prior_mean=0.5)
  found = shift(Softmax(3), zoo.estimators.bayes(task), task, 'query_scale', 500)
  assert [risk.exact for risk in found.risks] == [None] * 3
  # With 4 examples for 3 features and no noise the posterior mean knows ŵ.
  assert [risk.other_exact for risk in found.risks] == [0] * 3


class WithPositions(nnx.Module):
  """A model with a table of positions, which is as long as its training contexts."""

  def __init__(self, num_features, context_length):
    self.num_features = num_features
    self.weights = nnx.Param(jnp.ones(context_length) / context_length)

  def __call__(self, prompt):
    weights = self.weights[: prompt.x.shape[1]]
    return jnp.einsum('c,bc,bcd,bd->b', weights, prompt.y, prompt.x, prompt.x_query)


def test_where_a_predictor_fails_its_risk_is_null_and_the_summary_says_so():
  model, gd = WithPositions(3, 4), zoo.estimators.gradient_descent(TASK)
  found = shift(model, gd, TASK, 'context_length', 100)
  for risk in found.risks:
    assert (risk.sampled is None) == (risk.value > 4) == (risk.failure is not None)
    assert risk.other_sampled is not None
    assert risk.other_exact is not None
  kept, longer = (
    task_shift(model, gd, name, TASK.shifts()[name], 100)
    for name in ('scale_y=2', 'context_length=8')
  )
  assert kept.risk is not None
  assert kept.failure is None
  assert longer.risk is None
  assert longer.other_risk is not None
  nothing = dict.fromkeys(field.name for field in dataclasses.fields(Report))
  parts: Any = {'is_gradient_descent': False, 'verdict': '', 'failures': {}}
  parts |= {'against': 'gd', 'shifts': [found], 'task_shifts': [kept, longer]}
  report = Report(**nothing | parts)
  said = summary(report)
  for c in (8, 16):
    assert f'context_length at {c} failed: WithPositions: ' in said
  assert f'context_length=8: {longer.failure}' in said
  (shown,) = json.loads(report.to_json())['shifts']
  known = [risk['sampled'] is not None for risk in shown['risks']]
  assert known == [True, True, True, False, False]
  plot_shifts(report.shifts, 'gd').canvas.draw()


def test_where_the_optimum_is_0_the_report_is_whole():
  """Nothing to learn, and no noise: the prior mean is right, and its risk is 0."""
  task = isotropic(3, 4, prior_mean=0.5, prior_covariance=np.zeros((3, 3)))
  gd = zoo.estimators.prior_mean(task)
  model = zoo.LearningRule.gradient_descent(jnp.full(3, 0.25), 0.5)
  found = shift(model, gd, task, 'query_scale', 100)
  assert [risk.optimal for risk in found.risks] == [0, 0, 0]
  assert [risk.other_exact for risk in found.risks] == [0, 0, 0]
  plot_shifts([found, found], 'prior mean').canvas.draw()
  table = _shift_table([found], 'prior mean')
  assert table.rows[0][-1] == '0.0000'


def test_mistakes_are_named(unchecked):
  task = isotropic(3, 4)
  with refuses("unknown shift 'depth'", 'context_length'):
    shift(biased(), biased(), task, 'depth')

  class Other:
    num_features = 3

  with refuses('exact theory covers LinearRegression'):
    shift(biased(), biased(), cast(Any, Other()), 'noise_std')
