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
from tests.weights import drawn, heads
from zoo.models.linear_attention import LinearLayer

_FORMS = 'dense', 'sparse', 'gd_plus_plus'
# Sums of some hundred products in float64, in another order.
_SAME = 1e-12
_GUESS = [0.5, -1.0, 0.3]


def _model(**arguments: Any) -> Any:
  arguments = {'num_features': D, 'num_layers': 2, 'rngs': nnx.Rngs(0)} | arguments
  return zoo.create_model('deep_lsa', **arguments)


def _drawn(scale: float = 0.5, **arguments: Any) -> Any:
  return drawn(lambda: _model(**arguments), scale)


def _heads(layer: Any, outputs: int) -> list[oracle.Head]:
  """The four matrices of each head of a layer of any form."""
  if isinstance(layer, LinearLayer):
    return heads(layer)
  e, layer_heads = D + outputs, []
  for h, a in enumerate(np.asarray(layer.a)):
    p, q = np.zeros((e, e)), np.zeros((e, e))
    p[D:, D:] = np.eye(outputs)
    if layer.b is not None:
      p[:D, :D] = np.asarray(layer.b)[h]
    q[:D, :D] = -a
    layer_heads.append(oracle.Head(p, np.eye(e), np.eye(e), q))
  return layer_heads


def _query(model: Any, layers: list, prompt: zoo.Prompt, sign: int):
  """The query's token [b, e] after all layers, by the equation, one layer at a time.

  Its label starts as sign · w·x_q.
  """
  outputs, queries = model.num_outputs, []
  labels = np.asarray(prompt.y).reshape(*prompt.x.shape[:2], outputs)
  for x, y, x_query in zip(
    *map(np.asarray, (prompt.x, labels, prompt.x_query)), strict=True
  ):
    first = sign * x_query @ np.asarray(model.guess.weights[...])
    tokens = np.concatenate([np.c_[x, y], [[*x_query, *first]]]).T
    for layer in layers:
      tokens = oracle.multi_head_tokens(tokens, _heads(layer, outputs))
    queries.append(tokens[:, -1])
  return np.stack(queries)


_CASES = [(1, 1, 'last'), (3, 2, 'linear')]


@pytest.mark.parametrize(
  ('form', 'outputs', 'heads', 'readout'),
  mostly_full(
    [('dense', *_CASES[0]), ('sparse', *_CASES[1])],
    _FORMS,
    _CASES,
    slow=[('gd_plus_plus', *_CASES[1])],
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
    shared=form == 'sparse',
  )
  prompt = bodies.prompt(outputs)
  sign = 1 if form == 'dense' else -1
  layers = list(model.layers) * (3 if form == 'sparse' else 1)
  assert len(layers) == 3
  query = _query(model, layers, prompt, sign)
  if readout == 'linear':
    expected = query @ np.asarray(model.read_out[...])
  else:
    expected = sign * query[:, D:]
  if outputs == 1:
    expected = expected[:, 0]
  assert_close(predict(model, prompt), expected, _SAME)


@pytest.mark.slow
@pytest.mark.parametrize('form', mostly_full(['gd_plus_plus'], _FORMS))
def test_a_linear_readout_starts_as_the_last_entries(form):
  prompt = bodies.prompt(3)

  @jax.jit
  def both(prompt):
    arguments: Any = {
      'num_outputs': 3,
      'form': form,
      'guess': 'fixed',
      'guess_weights': 1.0,
    }
    last, linear = (
      _model(**arguments, readout=readout) for readout in ('last', 'linear')
    )
    assert linear.read_out.shape == (D + 3, 3)
    return last(prompt), linear(prompt)

  assert_close(*both(prompt), 1e-6)  # pyright: ignore


@pytest.mark.slow
@pytest.mark.parametrize(
  ('form', 'guess'),
  mostly_full(
    [('dense', 'fixed')],
    _FORMS,
    ['fixed', 'residual'],
    slow=[('gd_plus_plus', 'residual')],
  ),
)
def test_without_examples_it_predicts_the_guess(form, guess):
  arguments = {'guess_weights': _GUESS} if guess == 'fixed' else {}

  @jax.jit
  def run(prompt, start):
    model = _model(form=form, guess=guess, num_heads=2, **arguments)
    if guess == 'residual':
      model.guess.weights[...] = start[:, None]

    def total(x):
      return model(zoo.Prompt(prompt.x, prompt.y, x, prompt.y_query)).sum()

    return model(prompt), jax.grad(total)(prompt.x_query)

  prompt = jax.device_get(bodies.prompt()).prefix(0)
  expected = np.asarray(prompt.x_query) @ np.asarray(_GUESS, np.float32)
  prediction, gradient = run(prompt, jnp.asarray(_GUESS))
  assert_close(prediction, expected, 1e-6)  # float32, a sum of three products
  assert np.isfinite(gradient).all()


def test_it_predicts_the_query_alone():
  assert not zoo.core.protocols.predicts_all(nnx.eval_shape(_model))
