from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import zoo
from tests import oracle
from tests.compiled import built, predict
from tests.marks import mostly_full
from tests.settings import isotropic
from tests.theory import deep_rules
from zoo import theory
from zoo.core.exact_forms import DeepRule
from zoo.theory import constructions

pytestmark = pytest.mark.usefixtures('float64')


def task_of(d, c, **other):
  return isotropic(d, c, prior_mean=2.0, **other)


def random_yq_lsa(d, num_heads=1):
  sizes = {'num_features': d, 'num_heads': num_heads, 'init_scale': 0.7}
  model = built(lambda: zoo.create_model('yq_lsa', **sizes, rngs=nnx.Rngs(0)))
  model.w[...] = jnp.asarray(np.linspace(-1.0, 2.0, d))
  return model


def prompt_of(d, c, count=16):
  """Random numbers: what is compared here is the same for any prompt."""
  draw = np.random.default_rng(0).normal
  shapes = (count, c, d), (count, c), (count, d), count
  parts: Any = (2 * draw(size=shape) for shape in shapes)
  return zoo.Prompt(*parts)


@nnx.jit
def forward(model, prompt):
  """The prediction by the paper's equation, literally."""
  return model.forward_tokens(model.embed(prompt))[:, -1, -1]


@pytest.mark.slow
@pytest.mark.parametrize(('d', 'c'), mostly_full([(3, 5)], [(1, 1), (10, 10)]))
def test_gd_transformer_is_one_step_of_gradient_descent(d, c):
  prompt = prompt_of(d, c)
  start, matrix = np.linspace(-1, 1, d), np.random.default_rng(0).normal(size=(d, d))
  for step in (0.3 * np.eye(d), matrix):
    model = constructions.gd_transformer(start, step)
    wanted = []
    for x, y, x_query in zip(*numpy_parts(prompt), strict=True):
      wanted.append(oracle.gd_beta_weights(x, y, start, step) @ x_query)
    np.testing.assert_allclose(forward(model, prompt), wanted, rtol=0, atol=1e-10)
    np.testing.assert_allclose(predict(model, prompt), wanted, rtol=0, atol=1e-10)


@pytest.mark.slow
def test_d_heads_reach_the_optimum_with_a_fixed_guess():
  d = c = 3
  task = task_of(d, c)
  model = constructions.multi_head_lsa(theory.optimal_rule(task, 0.0))
  assert model.num_heads == d
  assert theory.exact_risk(model, task) == pytest.approx(12 / 7 + 24 / 11, abs=1e-12)
  # The explicit form of docs/theory_one_layer.md, section 4.
  p, step = c / (c * d + 2), c / (c + d + 1)
  identity, e = np.eye(d), d + 1
  b_he, a_hee = np.zeros((d, e)), np.zeros((d, e, e))
  b_he[:, :d] = identity
  for h, unit in enumerate(identity):
    a_hee[h, :d, :d] = p * np.outer(unit, task.prior_mean)
    a_hee[h, :d, :d] -= step * np.outer(task.prior_mean, unit)
    a_hee[h, d, :d] = step * unit
  moves = np.einsum('hi,hkj->jik', b_he, a_hee)
  moves = (moves + moves.swapaxes(1, 2)) / 2
  explicit = zoo.LearningRule(
    init=np.zeros(d), update=moves[:d], bias=np.zeros(()), bias_update=moves[d]
  )
  rule = nnx.jit(lambda model: model.learning_rule())(model)
  assert float(explicit.distance(jax.device_get(rule))) < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize(
  ('bias', 'noise_std'), mostly_full([(0.4, 0.5)], [0.0, 0.4], [0.0, 0.5])
)
def test_multi_head_lsa_realises_the_optimum(bias, noise_std):
  task = task_of(3, 5, noise_std=noise_std, feature_covariance=np.diag([1.0, 2.0, 0.5]))
  rule = theory.optimal_rule(task, 0.5, bias)
  model = constructions.multi_head_lsa(rule)
  assert model.num_heads == (3 if noise_std == 0 else 4)
  assert float(rule.distance(model.learning_rule())) < 1e-12
  prompt = prompt_of(3, 5)
  np.testing.assert_allclose(forward(model, prompt), rule(prompt), rtol=0, atol=1e-10)


@pytest.mark.parametrize('num_steps', mostly_full([3], [1]))
def test_sparse_layers_are_steps_of_gradient_descent(num_steps):
  start, steps = np.linspace(-1, 1, 3), np.array([0.3, 0.5, 0.1])[:num_steps]
  prompt = prompt_of(3, 5)
  model = constructions.deep_gradient_descent(start, steps)
  predictions = predict(model, prompt)
  for i, (x, y, x_query) in enumerate(zip(*numpy_parts(prompt), strict=True)):
    w = start
    for step in steps:
      w = oracle.gd_weights(x, y, w, step)
    assert predictions[i] == pytest.approx(w @ x_query, rel=0, abs=1e-10)


def test_dense_layers_are_gd_plus_plus():
  """Steps on residuals, while the features lose some of XᵀX/C (arXiv 2212.07677)."""
  start = np.linspace(-1, 1, 3)
  steps, preconditions, readout = (-0.3, 0.0, -0.2), (-0.1, 0.2), -0.7
  prompt = prompt_of(3, 5)
  model = constructions.gd_plus_plus(start, steps, preconditions, readout)
  zeros, offset = np.zeros(3), np.asarray(0.0)
  b = np.array([*preconditions, 0.0])
  form = DeepRule(np.array(steps), b, np.asarray(readout), zeros, zeros, offset, start)
  wanted = deep_rules.predict(form, *numpy_parts(prompt))
  np.testing.assert_allclose(predict(model, prompt), wanted, rtol=0, atol=1e-10)


def numpy_parts(prompt):
  return (np.asarray(part) for part in (prompt.x, prompt.y, prompt.x_query))


@pytest.mark.slow
@pytest.mark.parametrize('num_heads', mostly_full([3], [1]))
def test_yq_lsa_is_inside_ltb(num_heads):
  model = random_yq_lsa(4, num_heads)
  prompt = prompt_of(4, 6)
  block = constructions.ltb_from_yq_lsa(model)
  expected = forward(model, prompt)
  np.testing.assert_allclose(forward(block, prompt), expected, rtol=0, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize('num_heads', mostly_full([3], [1]))
def test_ltb_is_inside_yq_lsa(num_heads):
  sizes = {'num_heads': num_heads, 'hidden_features': 7, 'init_scale': 0.7}
  block = built(lambda: zoo.models.LTB(4, **sizes, rngs=nnx.Rngs(0)))
  prompt = prompt_of(4, 6)
  model = constructions.yq_lsa_from_ltb(block)
  expected = forward(block, prompt)
  np.testing.assert_allclose(forward(model, prompt), expected, rtol=0, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize('num_heads', mostly_full([3], [1]))
def test_signs_make_the_guess_free(num_heads):
  """One head more and `y_q = 0` in place of a trained guess, where labels are ±1."""
  model = random_yq_lsa(4, num_heads)
  prompt = prompt_of(4, 6)
  labels: Any = np.sign(prompt.y)
  signs = zoo.Prompt(prompt.x, labels, prompt.x_query, prompt.y_query)
  other = constructions.multi_head_lsa_for_signs(model)
  assert other.num_heads == num_heads + 1
  guess, bias = other.initial_guess()
  assert not guess.any()
  assert bias == 0
  # Rounding errors in float64 of numbers up to 1e3.
  expected = forward(model, signs)
  np.testing.assert_allclose(forward(other, signs), expected, rtol=0, atol=1e-10)
  np.testing.assert_allclose(predict(other, signs), expected, rtol=0, atol=1e-10)
  assert np.abs(predict(other, prompt) - predict(model, prompt)).max() > 1


def test_bad_arguments():
  with pytest.raises(zoo.UserError, match='step_size is nan'):
    constructions.gd_transformer(np.zeros(3), float('nan'))
  with pytest.raises(
    zoo.UserError, match=r'step_size has shape \(2, 2\).* are \(3, 3\)'
  ):
    constructions.gd_transformer(np.zeros(3), np.eye(2))
  rule = zoo.LearningRule(
    np.zeros(2), np.zeros((2, 3, 3)), np.zeros(()), np.ones((3, 3))
  )
  with pytest.raises(zoo.UserError, match='bias is 0 and bias_update is not'):
    constructions.multi_head_lsa(rule)
