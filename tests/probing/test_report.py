"""The report: its verdicts, its JSON and its pictures."""

import json
from typing import Any

import numpy as np
import pytest
from flax import nnx

import zoo
from tests.compare import refuses
from tests.probing.models import Softmax, biased
from tests.settings import general, isotropic
from zoo import theory
from zoo.probing import probe, summary
from zoo.probing.pictures import pictures
from zoo.theory import constructions

FEW: Any = {'num_prompts': 500}


def test_a_gd_transformer_is_gradient_descent():
  task = isotropic(3, 4, prior_mean=0.5)
  model = constructions.gd_transformer(np.full(3, 0.5), 0.5)
  report = probe(model, task, **FEW)
  assert report.is_gradient_descent
  assert report.verdict.startswith('Yes: one step of size 0.5000')
  assert 'Is it doing gradient descent? Yes' in summary(report)
  found = json.loads(report.to_json())
  # Exact where the weights are exact in float32.
  assert found['algorithm']['nearest_gd']['step'] == pytest.approx(0.5, abs=1e-9)
  assert found['alignment']['exact']['squared_prediction_difference'] < 1e-15
  assert [one['name'] for one in found['shifts']] == list(zoo.probing.SHIFTS)
  assert set(pictures(report, model, zoo.estimators.gradient_descent(task), task)) == {
    'alignment',
    'step_matrix',
    'heads',
    'interpolation',
    'shift',
  }


def test_a_matrix_step_and_a_fixed_guess_are_told_apart():
  task = general()
  matrix = zoo.estimators.gd_beta(task)
  report = probe(matrix, task, 'gd_beta', **FEW)
  assert not report.is_gradient_descent
  assert report.verdict.startswith('Yes, with a matrix for the step')
  assert report.heads is None
  fixed = constructions.multi_head_lsa(theory.optimal_rule(isotropic(3, 4, 2.0), 0.0))
  report = probe(fixed, isotropic(3, 4, 2.0), **FEW)
  assert report.verdict.startswith('No: of all steps')
  assert 'optimum 0.285714' in summary(report)  # C/(Cd + 2) = 4/14


def test_what_has_no_learning_rule_is_judged_by_samples():
  task = isotropic(3, 4, prior_mean=0.5)
  model = Softmax(3)
  report = probe(model, task, 'bayes', **FEW)
  assert report.verdict.startswith('No: its mean squared difference')
  assert report.algorithm is None
  assert 'sampled' in summary(report)
  json.loads(report.to_json())
  assert set(pictures(report, model, zoo.estimators.bayes(task), task)) == {
    'alignment',
    'shift',
  }
  two_steps = zoo.estimators.gradient_descent(task, np.array([0.3, 0.0]), num_steps=2)
  best = zoo.estimators.gradient_descent(task)
  again = zoo.estimators.gradient_descent(
    task, np.append(best.step_sizes, 0.0), num_steps=2
  )
  assert probe(again, task, **FEW).verdict.startswith('Yes: its mean squared')
  assert probe(two_steps, task, **FEW).verdict.startswith('No')


def test_a_task_beyond_theory_is_compared_with_a_model_alone():
  class Cubic(zoo.tasks.LinearRegression):
    def sample(self, key, batch_size):
      return super().sample(key, batch_size)

  task = Cubic(num_features=3, context_length=4)
  report = probe(biased(), task, biased(3), **FEW)
  assert report.verdict.startswith('Unknown')
  assert report.shifts == []
  with refuses('exact theory covers LinearRegression'):
    probe(biased(), task)


def test_an_infinite_risk_is_null():
  task = isotropic(3, 4)
  # With label noise least squares has an infinite risk for |C − d| ≤ 1.
  report = probe(
    zoo.create_model('lsa', num_features=3, rngs=nnx.Rngs(0)), task, 'bayes', **FEW
  )
  found = json.loads(report.to_json())
  (noise,) = [one for one in found['shifts'] if one['name'] == 'noise_std']
  assert [risk['other_exact'] for risk in noise['risks']] == [0.0] + [None] * 4
