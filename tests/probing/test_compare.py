"""Risks, losses on shifted tasks and alignment of two predictors."""

import dataclasses
import json
import math
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import zoo
from tests import oracle
from tests.compare import refuses
from tests.marks import FULL, mostly_full
from tests.probing.models import (
  PROGRAMS,
  TASK,
  assert_within,
  biased,
  keep,
  sample,
  tasks,
)
from tests.settings import curve_key, isotropic
from tests.weights import heads
from tests.wrapped import Wrapped
from zoo import estimators, probing, theory
from zoo.core.learning_rule import LearningRule
from zoo.measure.intervals import Estimate
from zoo.measure.predict import LOSS_BATCH_SIZE, Programs, sample_batches
from zoo.probing import alignment, probe
from zoo.probing.compare import TaskShift, answers, not_taken, task_shift
from zoo.probing.report import Report
from zoo.reports.probe import summary
from zoo.reports.probe.pictures import plot_task_shifts
from zoo.reports.style import drawing_of


def test_a_risk_is_sampled_on_the_very_prompts_and_exact_where_theory_covers_them():
  task = isotropic(3, 4, prior_mean=0.5, noise_std=0.3)
  subject = LearningRule.gradient_descent(jnp.zeros(3), 0.4)
  other = estimators.gradient_descent(task)
  risks = probing.risks(subject, other, task, num_prompts=3000)
  batches = [*sample_batches(task, 0, 3000, LOSS_BATCH_SIZE)]
  prompt = jax.tree.map(lambda *arrays: np.concatenate(arrays), *batches)
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
  assert risks.exact_risk == pytest.approx(theory.exact_risk(subject, task))
  assert risks.other_exact_risk == pytest.approx(theory.exact_risk(other, task))
  assert_within(risks.risk, risks.exact_risk)
  assert_within(risks.other_risk, risks.other_exact_risk)
  assert risks.optimal_risk == pytest.approx(risks.other_exact_risk)
  unknown = probing.risks(subject, other, Wrapped(task), num_prompts=3000)
  assert (unknown.risk, unknown.other_risk) == (risks.risk, risks.other_risk)
  exact = unknown.exact_risk, unknown.other_exact_risk, unknown.optimal_risk
  assert exact == (None, None, None)


@pytest.mark.slow
def test_a_loss_is_one_number_wherever_it_is_asked_for():
  task = isotropic(2, 3, noise_std=0.3)
  step = estimators.gradient_descent(task)
  report = probing.probe(step, task, num_prompts=600, only=['risks', 'comparison'])
  assert report.risks is not None
  assert report.comparison is not None
  loss = report.risks.risk.mean
  # One of the programs predicts all examples at once, in float32.
  assert report.comparison['model']['mean'][-1] == pytest.approx(loss, rel=1e-5)
  assert zoo.curve(step, task, 600).mean[-1] == pytest.approx(loss, rel=1e-5)


def test_prompts_with_other_features_are_refused():
  model = zoo.create_model('yq_lsa', num_features=3, rngs=nnx.Rngs(0))
  with refuses('is for 3 features; the prompt has 5'):
    probing.risks(model, model, isotropic(5, 4), num_prompts=10)


_zero: Any = lambda *_: 0.0  # noqa: E731
_OF_A_TASK: dict[str, Any] = {
  'algorithm': probing.sampled_algorithm,
  'alignment': lambda model, task: probing.alignment(model, model, task),
  'baselines': lambda model, task: probing.baselines_of(task),
  'circuit': probing.circuit,
  'null models': lambda model, task: probing.null_models(task),
  'report': probing.probe,
  'risks': lambda model, task: probing.risks(model, model, task),
  'guess': probing.learned_guess,
  'lens': probing.lens,
  'layer_algorithms': probing.layer_algorithms,
  'strategies': lambda model, task: probing.strategies(model, task, {'a': model}),
  'latents': probing.probe_latents,
  'task vectors': probing.task_vectors,
  'instrument': lambda model, task: zoo.check_instrument(_zero, task),
}


@pytest.mark.parametrize('name', _OF_A_TASK)
def test_a_model_in_the_place_of_a_task_is_one_line(name, unchecked):
  model = zoo.models.YqLSA(3, rngs=nnx.Rngs(0))
  with refuses('YqLSA is not a task'):
    _OF_A_TASK[name](isotropic(3, 4), model)


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


def test_an_answer_is_the_prediction_and_the_weights_learned():
  task = isotropic(3, 4, prior_mean=0.5)
  prompt = sample(task, jax.random.key(1), 5)
  model = biased()
  (answer,) = PROGRAMS.run(answers, [model], prompt)
  prompt = jax.device_get(prompt)

  def prediction(i, x_query):
    guess = np.asarray(model.guess[...])
    return oracle.lsa(prompt.x[i], prompt.y[i], x_query, heads(model), guess, 0.4)

  for i in range(5):
    x_query = np.asarray(prompt.x_query[i], np.float64)
    # f is affine in the query: a difference is the derivative.
    gradient = [
      prediction(i, x_query + unit) - prediction(i, x_query) for unit in np.eye(3)
    ]
    # Sums of about 30 float32 products of size ≤ 10: 30 · 10 · 6e-8.
    np.testing.assert_allclose(answer[0][i], prediction(i, x_query), atol=2e-5)
    np.testing.assert_allclose(answer[1][i], gradient, atol=2e-5)


def test_the_metrics_are_those_of_appendix_c2():
  task = isotropic(3, 4, prior_mean=0.5)
  model, step = biased(), zoo.theory.best_step_size(task, 2)
  gd = zoo.estimators.gradient_descent(task, step, num_steps=2)
  num_prompts = 300
  measures = alignment(model, gd, task, num_prompts, programs=PROGRAMS)
  assert measures.exact is None  # two steps have no rule
  prompt = sample(task, curve_key(), num_prompts)
  own, others = PROGRAMS.run(answers, [model, gd], prompt)
  f, g = (np.asarray(part, np.float64) for part in own)
  other_f, other_g = (np.asarray(part, np.float64) for part in others)
  by_hand = {
    'prediction_difference': [abs(a - b) for a, b in zip(f, other_f, strict=True)],
    'gradient_difference': [
      np.linalg.norm(a - b) for a, b in zip(g, other_g, strict=True)
    ],
    'cosine_similarity': [
      a @ b / np.linalg.norm(a) / np.linalg.norm(b)
      for a, b in zip(g, other_g, strict=True)
    ],
    'gradient_product': [a @ b for a, b in zip(g, other_g, strict=True)],
  }
  for name, values in by_hand.items():
    estimate = getattr(measures, name)
    np.testing.assert_allclose(estimate.mean, np.mean(values), rtol=1e-5)
    stderr = np.std(values, ddof=1) / num_prompts**0.5
    np.testing.assert_allclose(estimate.stderr, stderr, rtol=1e-5)


_PLAIN, _NOISY, _GENERAL = tasks()


@pytest.mark.slow
@pytest.mark.parametrize(
  'task',
  [_GENERAL, *(pytest.param(task, marks=FULL) for task in (_PLAIN, _NOISY))],
  ids=['general', 'plain', 'noisy'],
)
def test_exact_and_sampled_agree(task):
  for other in zoo.estimators.gd_beta(task), biased(num_heads=1):
    measures = alignment(biased(), other, task, num_prompts=16384)
    assert measures.exact is not None
    for name in (
      'squared_prediction_difference',
      'squared_gradient_difference',
      'gradient_product',
    ):
      assert_within(getattr(measures, name), getattr(measures.exact, name))


@pytest.mark.slow
def test_calls_that_share_programs_measure_each_model():
  task, programs = isotropic(3, 4), Programs()
  step = zoo.theory.best_step_size(task, 2)
  gd = zoo.estimators.gradient_descent(task, step, num_steps=2)
  first, second = biased(), biased()
  second.w_p[...] = 2 * first.w_p[...]
  for model in first, second:
    shared = alignment(model, gd, task, 300, programs=programs)
    assert shared == alignment(model, gd, task, 300)


@pytest.mark.slow
def test_the_pooled_cosine_is_1_for_a_multiple_and_minus_1_for_its_opposite():
  task = isotropic(3, 4, prior_mean=0.5)
  rule = biased().learning_rule()
  for scale, cosine in (2.0, 1.0), (-0.5, -1.0):
    exact = alignment(rule, rule * scale, task, 10).exact
    assert exact is not None
    # The weights are float32: their rule is rounded once.
    assert exact.pooled_cosine == pytest.approx(cosine, rel=1e-6)
  nothing = alignment(rule, rule * 0.0, task, 10)
  assert nothing.cosine_similarity.mean == 0
  assert nothing.exact is not None
  assert nothing.exact.pooled_cosine is None


@pytest.mark.slow
@pytest.mark.parametrize('name', mostly_full(['task_pool'], ['sparse_regression']))
def test_predictors_of_one_prompt_at_a_time_have_a_gradient(name):
  task = zoo.create_task(name, num_features=3, context_length=4)
  prompt = sample(task, jax.random.key(1), 5)
  (answer,) = PROGRAMS.run(answers, [task.baselines()['bayes']], prompt)
  # The prediction is w·x_q, with weights w that do not depend on the query.
  prediction, gradient = answer
  expected = np.sum(gradient * prompt.x_query, axis=1)
  np.testing.assert_allclose(prediction, expected, rtol=1e-5, atol=1e-6)


def test_mistakes_are_named(unchecked):
  task, few = isotropic(3, 4), {'num_prompts': 300, 'programs': PROGRAMS}
  with refuses('is for 2 features; the prompt has 3'):
    alignment(LearningRule.gradient_descent(np.zeros(2), 0.4), biased(), task, **few)
  with refuses('str is not a predictor'):
    alignment(cast(Any, 'gd'), biased(), task, **few)
  with refuses('num_prompts is 1'):
    alignment(biased(), biased(), task, num_prompts=1)
