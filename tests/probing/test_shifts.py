"""Losses on shifted tasks."""

import dataclasses
import json
import math

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import zoo
from tests.probing.models import PROGRAMS, TASK, assert_within, biased, keep
from tests.settings import isotropic
from zoo import theory
from zoo.measure.intervals import Estimate
from zoo.probing import probe
from zoo.probing.report import Report
from zoo.probing.shifts import TaskShift, not_taken, task_shift
from zoo.reports.probe import summary
from zoo.reports.probe.pictures import plot_task_shifts
from zoo.reports.style import drawing_of


@pytest.mark.slow
def test_exact_and_sampled_losses_agree_where_both_are_known():
  task = isotropic(3, 4, prior_mean=[1.0, -0.5, 0.0], noise_std=0.5)
  model, gd = biased(), zoo.estimators.gradient_descent(task)
  shifts = task.shifts()
  noisy, quadrants = (
    task_shift(model, gd, name, shifts[name], programs=PROGRAMS)
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
  assert f'{quadrants.risk.mean:.6f} ± {quadrants.risk.half:.6f}' in said
  axes = plot_task_shifts(report.task_shifts, 'gd')
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


@pytest.mark.slow
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
  assert [row['risk'] is None for row in shown] == [False, True]
  assert 'WithPositions: ' in shown[1]['failure']
  drawing_of(plot_task_shifts(report.task_shifts, 'gd')).canvas.draw()


def test_the_reason_why_nothing_is_measured_is_the_true_one():
  gd = zoo.estimators.gradient_descent(TASK)
  few = task_shift(gd, gd, 'itself', TASK, num_prompts=15)
  assert few.failure == 'num_prompts is 15; it must be at least 16'
  large = dataclasses.replace(TASK, context_length=100_000)
  assert task_shift(gd, gd, 'longer', large).failure == (
    'the task is too large: of prompts with 100,000 examples and 3 features fewer than '
    '16 can be measured in about ten seconds'
  )
  assert few.num_prompts == 0


def _drawn(axes):
  """The points with bars, and the arrows at the edges, as (label or colour, x, y)."""
  points = [
    (box.get_label(), x, y)
    for box in axes.containers
    for x, y in np.transpose(np.array(box.lines[0].get_data(), np.float64))
  ]
  arrows = [
    (line.get_marker(), line.get_color(), x, y)
    for line in axes.lines
    if 'arrow' in str(line.get_marker())
    for x, y in np.transpose(np.array(line.get_data(), np.float64))
  ]
  return points, arrows


def test_the_least_loss_has_a_marker_however_large_another_is():
  losses = {'scale_x=3': (2.95, 773.0), 'scale_y=0.5': (0.0035, 0.1)}
  shifts = [
    TaskShift(name, 100, Estimate(own, 1e-4), Estimate(other, 1e-4))
    for name, (own, other) in losses.items()
  ]
  axes = plot_task_shifts(shifts, 'gd')
  points, arrows = _drawn(axes)
  assert {x for _, x, _ in points} == {2.95, 773.0, 0.0035, 0.1}
  assert not arrows
  low, high = axes.get_xlim()
  assert low < 0.0035 < 773.0 < high


@pytest.mark.slow
def test_what_a_log_axis_cannot_show_is_marked_and_what_is_missing_is_named():
  losses = {
    'a': (Estimate(2.0, 0.1), Estimate(0.0, 0.0)),
    'b': (Estimate(1e-13, 1e-14), Estimate(3.0, 0.1)),  # 0 but for rounding
    'c': (Estimate(math.inf, math.nan), Estimate(1.0, 0.1)),
    'd': (None, Estimate(1.0, 0.1)),
    'e=1': (None, None),
    'e=2': (None, None),
  }
  axes = plot_task_shifts(
    [TaskShift(name, 9, *both) for name, both in losses.items()], 'gd'
  )
  drawing_of(axes).canvas.draw()
  rows = [text.get_text() for text in axes.get_yticklabels()]
  assert rows == ['a', 'b', 'c', 'd']
  arrows = _drawn(axes)[1]
  assert [(marker, round(y)) for marker, _, _, y in arrows] == [
    (r'$\leftarrow$', 1),
    (r'$\rightarrow$', 2),
    (r'$\leftarrow$', 0),
  ]
  figure = drawing_of(axes)
  (legend,) = figure.legends
  names = {text.get_text() for text in legend.get_texts()}
  assert names == {'the model', 'gd', '0, up to rounding', 'infinite'}
  assert figure.get_supxlabel().splitlines() == [
    'loss (log scale)',
    'without a loss: the model on d',
    'without a loss: the model and gd on e=1, 2',
  ]


@pytest.mark.slow
def test_contexts_that_a_model_cannot_take_are_left_out_in_one_sentence(monkeypatch):
  names = 'context_length=8', 'context_length=16', 'context_length=32'
  keep(monkeypatch, 'shifts', *names)
  model = zoo.models.Transformer(3, 4, num_layers=1, width=8, rngs=nnx.Rngs(0))
  refused = [*not_taken(model, TASK, TASK.shifts()).values()]
  assert [shift.name for shift in refused] == [*names]
  said = summary(Report(False, '', 'gd', task_shifts=refused))
  assert said.count('context_length') == 2
  assert (
    'not measured on context_length=8, 16, 32: the model cannot take these prompts '
    '(for context_length=8: the prompt has 17 tokens; the model has places for 9, '
    'those of 4 examples)'
  ) in said
  assert probe(model, TASK, only=['task_shifts']).task_shifts == refused
  # A model of a user says it in its own words, once; what takes all is not asked twice.
  own = not_taken(WithPositions(3, 4), TASK, TASK.shifts())
  assert len({shift.failure for shift in own.values()}) == 1
  assert not_taken(biased(), TASK, TASK.shifts()) == {}
