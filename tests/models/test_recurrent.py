"""Recurrent networks against a loop over the tokens of the equations of their cells."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import zoo
from tests.compare import assert_close
from tests.marks import mostly_full
from tests.models import bodies
from tests.models.bodies import D
from tests.scans import carried
from tests.weights import drawn

_W = 4
_each_cell = pytest.mark.parametrize('name', ['lstm', 'gru'])


def _model(name: str, **given: Any) -> Any:
  given = {'num_features': D, 'width': _W, 'rngs': nnx.Rngs(0)} | given
  return zoo.create_model(name, **given)


def _sigmoid(z):
  return 1 / (1 + np.exp(-z))


def _gates(kernel, count: int) -> list[np.ndarray]:
  """The weights of each gate, from a kernel that has them side by side."""
  kernel = np.asarray(kernel[...])
  return [kernel[..., i * _W : (i + 1) * _W] for i in range(count)]


def _lstm(cell, inputs: list) -> list[np.ndarray]:
  weights, recurrent = _gates(cell.dense_i.kernel, 4), _gates(cell.dense_h.kernel, 4)
  bias, h, c, states = _gates(cell.dense_h.bias, 4), np.zeros(_W), np.zeros(_W), []
  for z in inputs:
    i, f, g, o = (
      w.T @ z + u.T @ h + b for w, u, b in zip(weights, recurrent, bias, strict=True)
    )
    c = _sigmoid(f) * c + _sigmoid(i) * np.tanh(g)
    h = _sigmoid(o) * np.tanh(c)
    states.append(h)
  return states


def _gru(cell, inputs: list) -> list[np.ndarray]:
  weights, recurrent = _gates(cell.dense_i.kernel, 3), _gates(cell.dense_h.kernel, 3)
  bias, h, states = _gates(cell.dense_i.bias, 3), np.zeros(_W), []
  for z in inputs:
    r, u, n = (w.T @ z + b for w, b in zip(weights, bias, strict=True))
    of_r, of_u, of_n = (w.T @ h for w in recurrent)
    reset, update = _sigmoid(r + of_r), _sigmoid(u + of_u)
    h = (1 - update) * np.tanh(n + reset * of_n) + update * h
    states.append(h)
  return states


def _tokens(layout: str, x, y, x_query, guess) -> list[np.ndarray]:
  """The tokens up to the query's, from the table in zoo.models.tokens."""
  k, asked = y.shape[1], [*x, x_query]
  if layout == 'shifted':
    before = [np.zeros(k), *y]
    return [np.r_[one, b, guess(one)] for one, b in zip(asked, before, strict=True)]
  tokens = [np.r_[x_query, guess(x_query)]]
  for one, label in zip(x[::-1], y[::-1], strict=True):
    tokens = [np.r_[one, guess(one)], np.r_[np.zeros(D), label], *tokens]
  return tokens


@pytest.mark.parametrize(
  ('name', 'layout'),
  mostly_full(
    [('lstm', 'shifted'), ('gru', 'interleaved')],
    ['lstm', 'gru'],
    ['shifted', 'interleaved'],
  ),
)
def test_it_is_the_equations_of_the_cell(float64, name, layout):
  given = {'num_layers': 2, 'num_outputs': 3, 'tokens': layout, 'guess': 'linear'}
  model, prompt = drawn(lambda: _model(name, **given)), bodies.prompt(3)
  cell, w = {'lstm': _lstm, 'gru': _gru}[name], np.asarray(model.guess.weights[...])

  def by_hand(x, y, x_query):
    states = _tokens(layout, x, y, x_query, lambda one: one @ w)
    for layer in model.layers:
      states = cell(layer, states)
    return bodies.linear(model.read_out, states[-1])

  expected = bodies.every_prediction(prompt, by_hand)
  # Sums of some ten products in float64, in another order, and gates that forget.
  everywhere, alone = nnx.jit(lambda m, p: (m.predictions(p), m(p)))(model, prompt)
  assert_close(everywhere, expected, 1e-12)
  assert_close(alone, expected[:, -1], 1e-12)


@_each_cell
@bodies.each_task_and_guess
def test_it_keeps_its_contract(name, task, guess):
  bodies.check(name, task, guess, num_layers=2, width=8)


@_each_cell
def test_a_cell_in_bfloat16_keeps_its_state_in_float32(name):
  """Forward and backward, where the weights' gradients are sums over the tokens."""
  model = drawn(lambda: _model(name), dtype='bfloat16')
  graph, weights, rest = nnx.split(model, nnx.Param, ...)

  def loss(weights, tokens):
    outputs = nnx.merge(graph, weights, rest).body(tokens, slice(None))
    assert outputs.dtype == jnp.bfloat16
    return jnp.square(outputs).sum()

  tokens = jnp.asarray(np.ones((2, 5, model.token_width)), 'bfloat16')
  program = jax.make_jaxpr(jax.grad(loss, argnums=(0, 1)))(weights, tokens)
  assert {*carried(program.jaxpr)} <= {'float32', 'int32'}
