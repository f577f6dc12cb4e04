"""Risks on shifted tasks."""

import numpy as np
import pytest

import zoo
from tests.compare import refuses
from tests.probing.models import Softmax, assert_within, biased
from tests.settings import general, isotropic
from zoo import theory
from zoo.probing import SHIFTS, shift
from zoo.probing.distribution_shift import _shifted


@pytest.mark.parametrize('name', SHIFTS)
def test_exact_and_sampled_agree_and_the_task_itself_is_among_them(name):
  task = isotropic(3, 4, prior_mean=[1.0, -0.5, 0.0], noise_std=0.5)
  model, gd = biased(), zoo.estimators.gradient_descent(task)
  found = shift(model, gd, task, name)
  for risk in found.risks:
    assert risk.exact is not None
    assert risk.other_exact is not None
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
  for condition, shifted, _ in _shifted(task, 'feature_condition'):
    features = np.asarray(shifted.feature_covariance)
    assert np.trace(features) == pytest.approx(np.trace(before))
    if condition == 1:
      assert shifted is task
    else:
      assert np.linalg.eigvalsh(features)[-1] > np.linalg.eigvalsh(before)[-1]


def test_what_has_no_rule_is_sampled_alone():
  task = isotropic(3, 4, prior_mean=0.5)
  found = shift(Softmax(3), zoo.estimators.bayes(task), task, 'query_scale', 500)
  assert [risk.exact for risk in found.risks] == [None] * 3
  # With 4 examples for 3 features and no noise the posterior mean knows ŵ.
  assert [risk.other_exact for risk in found.risks] == [0] * 3


def test_mistakes_are_named():
  task = isotropic(3, 4)
  with refuses("unknown shift 'depth'", 'context_length'):
    shift(biased(), biased(), task, 'depth')

  class Other:
    num_features = 3

  with refuses('exact theory covers LinearRegression'):
    shift(biased(), biased(), Other(), 'noise_std')
