"""Recurrent networks against a loop over the tokens by the cells of flax."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import zoo
from tests.compare import assert_close
from tests.marks import mostly_full, mostly_slow
from tests.models import bodies
from tests.models.bodies import D
from tests.traced import carried
from tests.weights import drawn

_W = 4
_CELLS = 'lstm', 'gru'


def _model(name: str, **arguments: Any) -> Any:
  arguments = {'num_features': D, 'width': _W, 'rngs': nnx.Rngs(0)} | arguments
  return zoo.create_model(name, **arguments)


@nnx.jit
def _step(cell, carry, token):
  return cell(carry, token)


def _last(model, tokens) -> np.ndarray:
  """The output of the last layer at the last token, by flax's cells one by one."""
  states = [jnp.asarray(token[None]) for token in tokens]
  for cell in model.layers:
    carry, inputs, states = model.start(jnp.zeros((1, _W))), states, []
    for token in inputs:
      carry, state = _step(cell, carry, token)
      states.append(state)
  return np.asarray(states[-1])[0]


@pytest.mark.parametrize(
  ('name', 'layout'),
  mostly_full(
    [('lstm', 'shifted')],
    _CELLS,
    ['shifted', 'interleaved'],
    slow=[('gru', 'interleaved')],
  ),
)
def test_layers_of_cells_read_the_tokens_of_the_layout(float64, name, layout):
  arguments = {'num_layers': 2, 'num_outputs': 3, 'tokens': layout, 'guess': 'linear'}
  model, prompt = drawn(lambda: _model(name, **arguments)), bodies.prompt(3)
  w = np.asarray(model.guess.weights[...])

  def by_hand(x, y, x_query):
    x = np.vstack([x, x_query])
    tokens = bodies.tokens(layout, x, y, x @ w)
    return bodies.linear(model.read_out, _last(model, tokens))

  expected = bodies.every_prediction(prompt, by_hand)
  # Sums of some ten products in float64, in another order, and gates that forget.
  everywhere, alone = nnx.jit(lambda m, p: (m.predictions(p), m(p)))(model, prompt)
  assert_close(everywhere, expected, 1e-12)
  assert_close(alone, expected[:, -1], 1e-12)


@pytest.mark.parametrize('name', mostly_slow([], _CELLS))
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
