"""Networks of a fixed number of tokens against loops over tokens and channels."""

import functools
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

import zoo
from tests.compare import assert_close, refuses
from tests.models import bodies
from tests.models.bodies import B, C, D
from tests.weights import drawn

_W, _OUTPUTS = 4, 3
_each_model = pytest.mark.parametrize('name', ['mlp', 'mlp_mixer'])


def _model(name: str, **arguments: Any) -> Any:
  arguments = {'num_features': D, 'context_length': C, 'width': _W} | arguments
  return zoo.create_model(name, rngs=nnx.Rngs(0), **arguments)


def _feed_forward(network, z):
  return bodies.linear(network.out, bodies.gelu(bodies.linear(network.up, z)))


def _mixer(model, tokens):
  z = bodies.linear(model.read_in, tokens)
  for layer in model.layers:
    normed = bodies.layer_norm(layer.norm_1, z)
    for channel in range(_W):
      z[:, channel] += _feed_forward(layer.over_tokens, normed[:, channel])
    normed = bodies.layer_norm(layer.norm_2, z)
    z += _feed_forward(layer.over_channels, normed)
  return bodies.linear(model.read_out, bodies.layer_norm(model.norm, z[-1]))


def _mlp(model, tokens):
  return bodies.linear(
    model.read_out, bodies.gelu_layers(model.network, np.concatenate(tokens))
  )


@_each_model
def test_it_is_the_equation_on_padded_tokens(float64, name):
  arguments = {'num_outputs': _OUTPUTS, 'num_layers': 2, 'guess': 'linear'}
  model, prompt = drawn(lambda: _model(name, **arguments)), bodies.prompt(_OUTPUTS)
  w = np.asarray(model.guess.weights[...])
  network = {'mlp': _mlp, 'mlp_mixer': _mixer}[name]

  def by_hand(x, y, x_query):
    x = np.vstack([x, x_query])
    padded = np.zeros((C + 1, D + _OUTPUTS))
    padded[C + 1 - len(x) :] = bodies.tokens('joint', x, y, x @ w)
    return network(model, padded)

  expected = bodies.every_prediction(prompt, by_hand)
  lengths = 0, C
  with jax.numpy_dtype_promotion('standard'):  # flax's norm promotes a float32
    predictions = nnx.jit(lambda m, p: [m(p.prefix(c)) for c in lengths])(model, prompt)
  for c, prediction in zip(lengths, predictions, strict=True):
    # Sums of some ten products in float64, in another order.
    assert_close(prediction, expected[:, c], 1e-12)


@_each_model
def test_it_predicts_the_query_alone(name):
  assert not zoo.core.protocols.predicts_all(nnx.eval_shape(lambda: _model(name)))


@_each_model
def test_the_smallest_network_has_no_context(name):
  prompt = jax.device_get(bodies.prompt(context=1)).prefix(0)
  width = 2 if name == 'mlp_mixer' else 1  # A layer norm of one entry is always 0.
  make = functools.partial(_model, name, context_length=0, width=width)
  prediction = nnx.eval_shape(lambda: make()(prompt))
  assert prediction.shape == (B,)


@_each_model
def test_a_prompt_that_is_too_long_is_refused(name):
  with refuses('the prompt has 7 tokens; the model has places for 6', '5 examples'):
    nnx.eval_shape(lambda: _model(name)(bodies.prompt(context=C + 1)))
