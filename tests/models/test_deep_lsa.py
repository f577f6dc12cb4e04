"""Layers of linear self-attention against the equations, and one layer against LSA."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import zoo
from tests import oracle
from tests.compare import assert_close
from tests.compiled import predict
from tests.marks import mostly_full
from tests.models import bodies
from tests.models.bodies import D
from tests.weights import drawn
from zoo.models.linear_attention import LinearLayer

_FORMS = 'dense', 'sparse', 'gd_plus_plus'
# Sums of some hundred products in float64, in another order.
_SAME = 1e-12
_GUESS = [0.5, -1.0, 0.3]


def _model(**given: Any) -> Any:
  given = {'num_features': D, 'num_layers': 2, 'rngs': nnx.Rngs(0)} | given
  return zoo.create_model('deep_lsa', **given)


def _drawn(scale: float = 0.5, **given: Any) -> Any:
  return drawn(lambda: _model(**given), scale)


def _heads(layer: Any, outputs: int) -> list[oracle.Head]:
  """The four matrices of each head of a layer of any form."""
  if isinstance(layer, LinearLayer):
    matrices = (layer.w_p, layer.w_v, layer.w_k, layer.w_q)
    return [oracle.Head(*one) for one in zip(*map(np.asarray, matrices), strict=True)]
  e, found = D + outputs, []
  for h, a in enumerate(np.asarray(layer.a)):
    p, q = np.zeros((e, e)), np.zeros((e, e))
    p[D:, D:] = np.eye(outputs)
    if layer.b is not None:
      p[:D, :D] = np.asarray(layer.b)[h]
    q[:D, :D] = -a
    found.append(oracle.Head(p, np.eye(e), np.eye(e), q))
  return found


def _query(model: Any, layers: list, prompt: zoo.Prompt, guess: Any, sign: int):
  """The query's token [b, e] after all layers, by the equation, one layer at a time.

  Its label starts as sign · guess.
  """
  outputs, found = model.num_outputs, []
  labels = np.asarray(prompt.y).reshape(*prompt.x.shape[:2], outputs)
  for x, y, x_query in zip(
    *map(np.asarray, (prompt.x, labels, prompt.x_query)), strict=True
  ):
    first = sign * np.asarray(guess(x_query))
    tokens = np.concatenate([np.c_[x, y], [[*x_query, *first]]]).T
    for layer in layers:
      tokens = oracle.multi_head_tokens(tokens, _heads(layer, outputs))
    found.append(tokens[:, -1])
  return np.stack(found)


_CASES = [(1, 1, 'last'), (3, 2, 'linear')]


@pytest.mark.parametrize(
  ('form', 'outputs', 'heads', 'readout'),
  mostly_full(
    [('dense', *_CASES[0]), *((form, *_CASES[1]) for form in _FORMS)], _FORMS, _CASES
  ),
)
def test_it_is_the_equation_layer_by_layer(float64, form, outputs, heads, readout):
  model = _drawn(
    0.3,
    num_outputs=outputs,
    num_layers=3,
    num_heads=heads,
    form=form,
    readout=readout,
    guess='linear',
  )
  prompt = bodies.prompt(outputs)
  sign = 1 if form == 'dense' else -1
  w = np.asarray(model.guess.weights[...])
  query = _query(model, list(model.layers), prompt, lambda x: x @ w, sign)
  if readout == 'linear':
    expected = query @ np.asarray(model.read_out[...])
  else:
    expected = sign * query[:, D:]
  if outputs == 1:
    expected = expected[:, 0]
  assert_close(predict(model, prompt), expected, _SAME)


@pytest.mark.parametrize('form', mostly_full(['gd_plus_plus'], _FORMS))
def test_a_linear_readout_starts_as_the_last_entries(form):
  prompt = bodies.prompt(3)

  @jax.jit
  def both(prompt):
    given: Any = {
      'num_outputs': 3,
      'form': form,
      'guess': 'fixed',
      'guess_weights': 1.0,
    }
    last, linear = (_model(**given, readout=readout) for readout in ('last', 'linear'))
    assert linear.read_out.shape == (D + 3, 3)
    return last(prompt), linear(prompt)

  assert_close(*both(prompt), 1e-6)  # pyright: ignore


@pytest.mark.parametrize('form', mostly_full(['sparse'], _FORMS))
def test_shared_layers_are_those_of_the_equation(float64, form):
  model = _drawn(num_layers=3, num_heads=2, shared=True, form=form)
  assert len(model.layers) == 1
  prompt, sign = bodies.prompt(), 1 if form == 'dense' else -1
  query = _query(model, 3 * [model.layers[0]], prompt, lambda x: [0.0], sign)
  assert_close(predict(model, prompt), sign * query[:, -1], _SAME)


def test_one_layer_with_a_fixed_guess_is_multi_head_lsa_from_the_same_seed():
  @jax.jit
  def both(prompt):
    given: Any = {'num_features': D, 'num_heads': 4, 'init_scale': 0.4}
    own: Any = {'guess': 'fixed', 'guess_weights': _GUESS, 'guess_bias': 0.7}
    deep = _model(**given, num_layers=1, **own)
    start: Any = {'initial_guess': _GUESS, 'initial_bias': 0.7}
    flat = zoo.create_model('multi_head_lsa', **given, **start, rngs=nnx.Rngs(0))
    weights = [
      [getattr(one, name)[...] for name in ('w_k', 'w_q', 'w_v', 'w_p')]
      for one in (deep.layers[0], flat)
    ]
    return weights, (deep(prompt), flat(prompt))

  weights, predictions = both(bodies.prompt())
  jax.tree.map(np.testing.assert_array_equal, *weights)
  # Float32: sums of some ten products in another order.
  assert_close(*predictions, 1e-6)  # pyright: ignore


def test_one_layer_with_a_linear_guess_is_yq_lsa():
  @jax.jit
  def both(prompt, guess):
    given: Any = {'num_features': D, 'num_heads': 2, 'init_scale': 0.4}
    deep = _model(**given, num_layers=1, guess='linear')
    flat = zoo.create_model('yq_lsa', **given, rngs=nnx.Rngs(0))
    start = deep(prompt), flat(prompt)
    deep.guess.weights[...], flat.w[...] = guess[:, None], guess
    return start, (deep(prompt), flat(prompt))

  for deep, flat in both(bodies.prompt(), jnp.asarray(_GUESS)):
    assert_close(deep, flat, 1e-6)  # as above


def _gradient_descent(x, y, x_query, steps, curvature):
  """The prediction of steps from 0 on (1/2C) Σ_i |W x_i − y_i|², one by one.

  Between two steps the features lose `curvature` of XᵀX/C times themselves, as the
  query does (GD++): von Oswald et al., arXiv 2212.07677.
  """
  prediction, left = np.zeros(y.shape[1]), y.copy()
  for step, gamma in zip(steps, curvature, strict=True):
    gradient = np.zeros((y.shape[1], D))
    moment = np.zeros((D, D))
    for one, label in zip(x, left, strict=True):
      gradient -= np.outer(label, one) / len(x)
      moment += np.outer(one, one) / len(x)
    move = -step * gradient
    prediction = prediction + move @ x_query
    left = left - x @ move.T
    x, x_query = x - gamma * x @ moment, x_query - gamma * moment @ x_query
  return prediction


@pytest.mark.parametrize(
  ('form', 'guess', 'outputs'),
  mostly_full(
    [('sparse', 'linear', 3), ('gd_plus_plus', 'residual', 1)],
    ['sparse', 'gd_plus_plus'],
    ['linear', 'residual'],
    [1, 3],
  ),
)
def test_multiples_of_the_identity_are_steps_of_descent(float64, form, guess, outputs):
  """Linear: the steps are added to the guess. Residual: they start from it."""
  steps, curvature = (0.3, 0.5, 0.2), (0.1, 0.25, 0.0)
  model = _drawn(num_outputs=outputs, num_layers=3, form=form, guess=guess)
  prompt = bodies.prompt(outputs)
  w = np.asarray(model.guess.weights[...])
  for layer, step, gamma in zip(model.layers, steps, curvature, strict=True):
    layer.a[...] = jnp.asarray(step * np.eye(D)[None])
    if form == 'gd_plus_plus':
      layer.b[...] = jnp.asarray(gamma / step * np.eye(D)[None])
  if form == 'sparse':
    curvature = (0.0, 0.0, 0.0)

  def by_hand(x, y, x_query):
    labels = y - x @ w if guess == 'residual' else y
    return x_query @ w + _gradient_descent(x, labels, x_query, steps, curvature)

  expected = bodies.every_prediction(prompt, by_hand)
  lengths = 2, 5  # the division is by the examples that there are
  found = nnx.jit(lambda m, p: [m(p.prefix(c)) for c in lengths])(model, prompt)
  for c, one in zip(lengths, found, strict=True):
    assert_close(one.reshape(-1, outputs), expected[:, c], _SAME)


@pytest.mark.parametrize(
  ('form', 'guess'),
  mostly_full(
    [('dense', 'fixed'), ('gd_plus_plus', 'residual')], _FORMS, ['fixed', 'residual']
  ),
)
def test_without_examples_it_predicts_the_guess(form, guess):
  given = {'guess_weights': _GUESS} if guess == 'fixed' else {}

  @jax.jit
  def run(prompt, start):
    model = _model(form=form, guess=guess, num_heads=2, **given)
    if guess == 'residual':
      model.guess.weights[...] = start[:, None]

    def total(x):
      return model(zoo.Prompt(prompt.x, prompt.y, x, prompt.y_query)).sum()

    return model(prompt), jax.grad(total)(prompt.x_query)

  prompt = bodies.prompt().prefix(0)
  expected = np.asarray(prompt.x_query) @ np.asarray(_GUESS, np.float32)
  found, gradient = run(prompt, jnp.asarray(_GUESS))
  assert_close(found, expected, 1e-6)  # float32, a sum of three products
  assert np.isfinite(gradient).all()


@bodies.each_task_and_guess
@pytest.mark.parametrize('form', _FORMS)
def test_it_keeps_its_contract(task, guess, form):
  bodies.check(
    'deep_lsa', task, guess, form=form, num_heads=2, init_scale=0.4, readout='linear'
  )


def test_it_predicts_the_query_alone():
  assert not zoo.core.protocols.predicts_all(nnx.eval_shape(_model))
