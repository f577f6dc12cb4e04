from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import zoo
from tests import oracle
from tests.compare import assert_close, refuses
from tests.settings import random_rule

_B, _C, _D = 2, 5, 3
# All of it is float64. A prediction is a sum of about d(d+1)² + C(d+1)² ≈ 130 products
# and may cancel by a factor of ten or so: 130 · 1.1e-16 · 10 ≈ 1.4e-13.
_ROUNDING = 1e-12

_seeds = st.integers(0, 2**32 - 1)
_scales = st.floats(-3, 3).filter(lambda scale: abs(scale) > 1e-3)


pytestmark = pytest.mark.usefixtures('float64')


def _prompt(seed: int, context: int = _C, features: int = _D) -> zoo.Prompt:
  draw = np.random.default_rng((seed, 1)).normal
  shapes = (_B, context, features), (_B, context), (_B, features)
  parts: Any = (*(draw(size=shape) for shape in shapes), np.zeros(_B))
  return zoo.Prompt(*parts)


_predict = jax.jit(zoo.LearningRule.__call__)
_weights = jax.jit(zoo.LearningRule.weights)


def _each(prompt: zoo.Prompt):
  return zip(*map(np.asarray, (prompt.x, prompt.y, prompt.x_query)), strict=True)


@given(seed=_seeds)
def test_rule_is_its_definition(seed):
  rule, prompt = random_rule(_D, seed, 1.0), _prompt(seed)
  expected = [
    oracle.rule_prediction(
      *(x, y, x_query), rule.init, rule.update, rule.bias, rule.bias_update
    )
    for x, y, x_query in _each(prompt)
  ]
  assert_close(_predict(rule, prompt), expected, _ROUNDING)
  weights = [
    oracle.rule_weights(x, y, rule.init, rule.update) for x, y, _ in _each(prompt)
  ]
  assert_close(_weights(rule, prompt), weights, _ROUNDING)


@given(seed=_seeds, scale=_scales)
def test_sum_difference_and_scaling_act_on_predictions(seed, scale):
  first_rule, second_rule, prompt = (
    random_rule(_D, seed, 1.0),
    random_rule(_D, seed + 1, 1.0),
    _prompt(seed),
  )
  f, g = (np.asarray(_predict(rule, prompt)) for rule in (first_rule, second_rule))
  size = np.abs(f).max() + np.abs(g).max()  # f + g and f − g may be small by chance
  for combined, expected in (
    (first_rule + second_rule, f + g),
    (first_rule - second_rule, f - g),
    (scale * first_rule, scale * f),
    (first_rule * scale, scale * f),
  ):
    assert isinstance(combined, zoo.LearningRule)
    assert (
      np.abs(np.asarray(_predict(combined, prompt)) - expected).max()
      <= 3 * _ROUNDING * size
    )


def test_distance_is_euclidean_over_all_four_parts():
  zero = 0 * random_rule(_D, 0, 1.0)
  init, update, bias_update = map(np.array, (zero.init, zero.update, zero.bias_update))
  init[1], update[2, 0, 0] = 1.0, 2.0
  bias_update[0, 1] = 4.0  # its symmetric part has 2 twice
  rule = zoo.LearningRule(init, update, np.asarray(3.0), bias_update)
  # 1 + 4 + 9 + 2·4 = 22
  assert_close(rule.distance(zero), np.sqrt(22.0), 1e-15)


@given(seed=_seeds)
def test_only_symmetric_parts_matter(seed):
  rule, prompt, draw = (
    random_rule(_D, seed, 1.0),
    _prompt(seed),
    np.random.default_rng(seed).normal,
  )
  twist = draw(size=(_D + 1, _D + 1, _D + 1))
  twist = twist - np.swapaxes(twist, 1, 2)
  twisted = zoo.LearningRule(
    rule.init, rule.update + twist[:-1], rule.bias, rule.bias_update + twist[-1]
  )
  # What is left after the difference is rounding of entries of size up to about 5.
  assert rule.distance(twisted) <= 1e-14
  assert_close(_predict(twisted, prompt), _predict(rule, prompt), 3 * _ROUNDING)


@given(seed=_seeds, step=st.floats(-2, 2), context=st.sampled_from([1, 2, 8]))
def test_gradient_descent_is_one_step_written_as_a_loop(seed, step, context):
  start = np.random.default_rng(seed).normal(size=_D)
  prompt = _prompt(seed, context)
  rule = zoo.LearningRule.gradient_descent(start, step)
  expected = np.stack(
    [oracle.gd_weights(x, y, start, step) for x, y, _ in _each(prompt)]
  )
  assert_close(_weights(rule, prompt), expected, _ROUNDING)


@given(seed=_seeds)
def test_gd_beta_is_one_step_with_a_matrix(seed):
  draw, prompt = np.random.default_rng(seed).normal, _prompt(seed)
  start, step = draw(size=_D), draw(size=(_D, _D))  # Γ need not be symmetric
  rule = zoo.LearningRule.gd_beta(start, step)
  expected = [oracle.gd_beta_weights(x, y, start, step) for x, y, _ in _each(prompt)]
  assert_close(_weights(rule, prompt), expected, _ROUNDING)


def test_bad_input_is_named(unchecked):
  gradient_descent = zoo.LearningRule.gradient_descent
  gd_beta = zoo.LearningRule.gd_beta
  for make, arguments, said in (
    (gradient_descent, (jnp.asarray(0.5), 0.1), 'start has shape ()'),
    (gd_beta, (jnp.asarray(0.5), 0.1), 'start has shape ()'),
    (gradient_descent, (np.array([1.0, np.nan]), 0.1), 'start holds a value'),
    (gradient_descent, (np.array([1.0, 1j]), 0.1), 'start is'),
    (gradient_descent, (np.zeros(2), float('nan')), 'step_size holds a value'),
    (gradient_descent, (np.zeros(2), 0.1j), 'step_size is 0.1j'),
    (gradient_descent, (np.zeros(2), np.zeros(2)), 'step_size has shape (2,)'),
    (gd_beta, (np.zeros(2), np.eye(3)), 'step_matrix has shape (3, 3)'),
    (gd_beta, (np.zeros(2), 1j * np.eye(2)), 'step_matrix is'),
    (gd_beta, (np.zeros(2), np.inf * np.ones((2, 2))), 'step_matrix holds a value'),
  ):
    with refuses(said):
      make(*arguments)


def test_rules_and_prompts_of_other_sizes_are_refused():
  rule, other = random_rule(_D, 0, 1.0), random_rule(2, 0, 1.0)
  for combine in (zoo.LearningRule.__add__, zoo.LearningRule.__sub__, rule.distance):
    arguments = (other,) if combine == rule.distance else (rule, other)
    with refuses('for 3 and 2 features'):
      combine(*arguments)
  prompt = _prompt(0, features=2)
  for use in (rule, rule.weights):
    with refuses('for 3 features; the prompt has 2'):
      use(prompt)


@pytest.mark.parametrize('scale', [float('nan'), 1j, [1.0, 2.0]], ids=str)
def test_a_scale_is_one_finite_number(unchecked, scale):
  with refuses('scale'):
    _ = random_rule(_D, 0, 1.0) * scale


@pytest.mark.parametrize('x64', [True, False])
def test_numbers_lose_nothing_and_traced_ones_keep_their_precision(x64):
  start = np.asarray([1.0, 1 / 3])
  with jax.enable_x64(x64):
    rule = zoo.LearningRule.gradient_descent(start, 0.1)
    total = (rule + rule) * 0.5 - 0.0 * rule
    for leaves in jax.tree.leaves(rule), jax.tree.leaves(total):
      assert {leaf.dtype for leaf in leaves} == {np.dtype('float64')}
    # −η Γ_ij w_k on the diagonal of the features.
    assert rule.update[1, 1, 1] == -0.1 * (1 / 3)
    assert rule.distance(total) == 0
    traced = jax.jit(zoo.LearningRule.gradient_descent)(start, 0.1)
  expected = jnp.dtype('float64' if x64 else 'float32')
  assert {leaf.dtype for leaf in jax.tree.leaves(traced)} == {expected}


def test_a_rule_is_shown_on_one_line():
  rule = zoo.theory.optimal_rule(zoo.create_task('linear_regression', prior_mean=2.0))
  assert repr(rule) == (
    'LearningRule(init=2.0, update=array of 10 × 11 × 11, bias=0.0, bias_update=0.0)'
  )
  traced = []
  jax.jit(lambda rule: traced.append(repr(rule)) or rule)(rule)
  assert traced[0].startswith('LearningRule(init=array of 10, ')
