"""Losses on shifted tasks."""

import dataclasses
import json

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import zoo
from tests.probing.models import TASK, assert_within, biased
from tests.settings import isotropic
from zoo import theory
from zoo.probing import summary
from zoo.probing.pictures import plot_task_shifts
from zoo.probing.report import Report
from zoo.probing.shifts import task_shift


def test_exact_and_sampled_losses_agree_where_both_are_known():
  task = isotropic(3, 4, prior_mean=[1.0, -0.5, 0.0], noise_std=0.5)
  model, gd = biased(), zoo.estimators.gradient_descent(task)
  noisy, quadrants = (
    task_shift(model, gd, name, task.shifts()[name])
    for name in ('noise_std=1', 'random_quadrants')
  )
  assert noisy.risk is not None
  assert noisy.other_risk is not None
  assert noisy.failure is None
  # The predictors are those of the training task.
  there = dataclasses.replace(task, noise_std=1.0)
  exact = theory.exact_risk(model, there), theory.exact_risk(gd, there)
  assert (noisy.exact_risk, noisy.other_exact_risk) == pytest.approx(exact, rel=1e-12)
  assert_within(noisy.risk, exact[0])
  assert_within(noisy.other_risk, exact[1])
  assert quadrants.risk is not None
  assert (quadrants.exact_risk, quadrants.other_exact_risk) == (None, None)
  report = Report(False, '', 'gd', task_shifts=[noisy, quadrants])
  said = summary(report)
  assert f'{exact[0]:.6f}, exact' in said
  assert f'{quadrants.risk.mean:.6f} ± {quadrants.risk.stderr:.6f}' in said
  (axes,) = plot_task_shifts(report.task_shifts, 'gd').axes
  values = [x for line in axes.lines for x in np.ravel(line.get_xdata())]
  assert exact[0] in values


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
  kept, longer = (
    task_shift(model, gd, name, TASK.shifts()[name], 100)
    for name in ('scale_y=2', 'context_length=8')
  )
  assert kept.risk is not None
  assert kept.failure is None
  assert longer.risk is None
  assert longer.other_risk is not None
  report = Report(False, '', 'gd', task_shifts=[kept, longer])
  assert f'context_length=8: {longer.failure}' in summary(report)
  shown = json.loads(report.to_json())['task_shifts']
  assert [one['risk'] is None for one in shown] == [False, True]
  assert 'WithPositions: ' in shown[1]['failure']
  plot_task_shifts(report.task_shifts, 'gd').canvas.draw()
