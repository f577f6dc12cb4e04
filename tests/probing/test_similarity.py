"""Alignment: sampled against loops in NumPy, exact against sampled."""

from typing import Any, cast

import jax
import numpy as np
import pytest

import zoo
from tests import oracle
from tests.compare import refuses
from tests.marks import FULL, mostly_full
from tests.probing.models import PROGRAMS, assert_within, biased, sample, tasks
from tests.settings import curve_key, isotropic
from tests.weights import heads
from zoo.core.learning_rule import LearningRule
from zoo.measure.predict import Programs
from zoo.probing import alignment
from zoo.probing.similarity import answers


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
