"""The implicit algorithm: known ones are recovered, parts against other derivations."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
import scipy.optimize
from flax import nnx

import zoo
from tests.compare import refuses
from tests.marks import FULL
from tests.probing.models import Softmax, biased, sample, tasks
from tests.settings import general, isotropic
from zoo import theory
from zoo.probing import implicit_algorithm
from zoo.probing.compare import exact_alignment
from zoo.theory import constructions
from zoo.theory.exact import rule_of

# The general task has the others as special cases.
_TASKS = [
  pytest.param(task, id=name, marks=() if name == 'general' else FULL)
  for task, name in zip(tasks(), ('plain', 'noisy', 'general'), strict=True)
]
START = np.array([0.5, -1.0, 2.0])


@functools.cache
def _rule():
  return nnx.jit(lambda model: model.learning_rule())(biased())


@pytest.mark.parametrize('task', _TASKS)
def test_a_gd_transformer_probes_as_exactly_that_step(task):
  model = constructions.gd_transformer(START, 0.3)
  algorithm = implicit_algorithm(model, task)
  # Its weights are float32: 0.3 is off by 1e-8, and so is what is recovered.
  assert abs(algorithm.nearest_gd.step - 0.3) < 1e-6
  np.testing.assert_allclose(algorithm.nearest_gd.start, START, atol=1e-6)
  assert algorithm.nearest_gd.unexplained == pytest.approx(0, abs=1e-12)
  np.testing.assert_allclose(algorithm.step_matrix, 0.3 * np.eye(3), atol=1e-7)
  assert algorithm.anisotropy == pytest.approx(0, abs=1e-7)
  np.testing.assert_allclose(algorithm.start, START)
  gd = zoo.LearningRule.gradient_descent(START, 0.3)
  exact = exact_alignment(model, gd, task)
  # (1e-8 of the step)² times second moments of the task, which are below 1e4.
  assert exact.squared_prediction_difference < 1e-11
  assert exact.squared_gradient_difference < 1e-11


def test_a_matrix_step_is_recovered():
  task = general(noise_std=0.7)
  gamma = np.random.default_rng(0).normal(size=(3, 3))
  algorithm = implicit_algorithm(zoo.estimators.gd_beta(START, gamma), task)
  np.testing.assert_allclose(algorithm.step_matrix, gamma, atol=1e-12)
  np.testing.assert_allclose(algorithm.nearest_gd_beta.start, START, atol=1e-9)
  assert algorithm.nearest_gd_beta.unexplained == pytest.approx(0, abs=1e-12)
  assert algorithm.nearest_gd.unexplained is not None
  assert algorithm.nearest_gd.unexplained > 0.1
  assert algorithm.anisotropy == pytest.approx(
    np.linalg.norm(gamma - np.trace(gamma) / 3 * np.eye(3)) / np.linalg.norm(gamma)
  )


@pytest.mark.slow
def test_the_optimum_of_d_heads_shows_its_pseudo_constant():
  d, c = 3, 4
  task = isotropic(d, c, prior_mean=2.0)
  model = constructions.multi_head_lsa(theory.optimal_rule(task, 0.0))
  constant = implicit_algorithm(model, task).pseudo_constant
  assert constant is not None
  assert constant.optimum == pytest.approx(c / (c * d + 2), rel=1e-12)
  assert constant.value == pytest.approx(constant.optimum, rel=1e-6)
  assert constant.unexplained == pytest.approx(0, abs=1e-12)


def test_with_noise_the_optimum_has_the_pseudo_constant_that_is_told():
  task = general(noise_std=0.7)
  rule = theory.optimal_rule(task, np.array([0.3, -0.5, 1.0]), 0.4)
  constant = implicit_algorithm(rule, task).pseudo_constant
  assert constant is not None
  assert constant.value == pytest.approx(constant.optimum, rel=1e-10)


@pytest.mark.slow
def test_a_right_guess_needs_no_pseudo_constant():
  task = isotropic(3, 4, prior_mean=0.5)
  gd = zoo.estimators.gradient_descent(task)
  assert implicit_algorithm(gd, task).pseudo_constant is None


@pytest.mark.parametrize('task', _TASKS)
def test_the_parts_of_the_excess_are_those_of_theory(task):
  """`theory.excess_risk` has them in two parts, from polynomials written elsewhere."""
  algorithm = implicit_algorithm(biased(), task)
  parts = dataclasses.asdict(algorithm.excess)
  assert min(parts.values()) > 0
  excess = algorithm.risk - algorithm.optimal_risk
  assert sum(parts.values()) == pytest.approx(excess, rel=1e-9)
  without_offset = dataclasses.replace(
    _rule(), bias=np.zeros(()), bias_update=np.zeros((4, 4))
  )
  two = theory.excess_risk(without_offset, task)
  # The rule is rounded to float32 here.
  assert algorithm.excess.guess_mean + algorithm.excess.guess_spread == pytest.approx(
    two.initial_guess, rel=1e-5
  )
  assert algorithm.excess.step_size + algorithm.excess.step_shape == pytest.approx(
    two.update, rel=1e-5
  )


@pytest.mark.slow
def test_the_mean_weights_and_the_spread_are_those_of_samples():
  task = general(noise_std=0.7)
  model = biased()
  algorithm = implicit_algorithm(model, task)
  num_prompts = 10_000
  prompt = sample(task, jax.random.key(0), num_prompts)
  learned = nnx.jit(lambda model, prompt: model.learning_rule().weights(prompt))
  weights = np.asarray(learned(model, prompt), np.float64)
  stderr = weights.std(axis=0) / num_prompts**0.5
  assert (np.abs(weights.mean(axis=0) - algorithm.mean_weights) < 4 * stderr).all()


@pytest.mark.parametrize('task', _TASKS)
def test_no_other_step_is_nearer(task):
  rule = _rule()
  closest = implicit_algorithm(rule, task).nearest_gd

  @jax.jit
  def difference(step):
    gd = zoo.LearningRule.gradient_descent(step[1:], step[0])
    return theory.squared_difference(rule, gd, task).prediction

  with jax.enable_x64(True):
    rule = rule_of(rule)
    assert difference(np.append(closest.step, closest.start)) == pytest.approx(
      closest.difference, rel=1e-9
    )
    searches = [
      scipy.optimize.minimize(difference, np.append(eta, START), method='Powell')
      for eta in (-1.0, 0.3, 1.0)
    ]
  # A search with a tolerance of its own, 1e-4, can end above, never below.
  nearest = min(search.fun for search in searches)
  assert closest.difference <= nearest * (1 + 1e-9)
  assert closest.difference == pytest.approx(nearest, rel=1e-3)
  assert closest.unexplained is not None
  assert 0 < closest.unexplained <= 1


def test_a_rule_that_ignores_its_context_has_nothing_to_explain():
  task = isotropic(3, 4, prior_mean=0.5)
  algorithm = implicit_algorithm(zoo.estimators.prior_mean(task), task)
  assert algorithm.nearest_gd.unexplained is None
  assert algorithm.nearest_gd.step == 0
  assert algorithm.anisotropy == 0


def test_what_has_no_rule_is_refused():
  with refuses('Softmax has no learning rule'):
    implicit_algorithm(Softmax(3), isotropic(3, 4))
