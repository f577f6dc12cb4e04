"""The tokens of prompts, and the initial guesses of labels in them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import zoo
from tests.compare import assert_close, refuses
from tests.marks import mostly_slow
from tests.models import bodies
from tests.weights import double, drawn
from zoo.models.initial_guess import GUESSES, InitialGuess
from zoo.models.tokens import LAYOUTS, at_examples, lay_out, num_tokens, token_width

_B, _C, _D = bodies.B, bodies.C, bodies.D


@pytest.mark.parametrize('k', [1, 3])
@pytest.mark.parametrize('layout', LAYOUTS)
def test_tokens_are_those_of_the_layout(layout, k):
  prompt = jax.device_get(bodies.prompt(k))
  guess = np.random.default_rng(1).normal(size=(_B, _C + 1, k)).astype('f')
  run = jax.jit(lay_out, static_argnums=2)
  tokens = np.asarray(run(prompt, guess, layout))
  x, y = np.vstack([prompt.x[0], prompt.x_query[:1]]), np.reshape(prompt.y[0], (_C, k))
  np.testing.assert_array_equal(tokens[0], bodies.tokens(layout, x, y, guess[0]))
  assert tokens.shape[1:] == (num_tokens(layout, _C), token_width(layout, _D, k))
  if layout != 'joint':
    asked = tokens[:, at_examples(layout), :_D]
    np.testing.assert_array_equal(asked[:, :-1], prompt.x)
    np.testing.assert_array_equal(asked[:, -1], prompt.x_query)


def _guess(kind, k, **arguments):
  return InitialGuess(kind, _D, k, **arguments, rngs=nnx.Rngs(0))


@pytest.mark.parametrize('k', mostly_slow([3], [1]))
@pytest.mark.parametrize('kind', GUESSES)
def test_a_trained_guess_starts_at_zero(kind, k):
  arguments = {'weights': [1.0, -2.0, 0.5], 'bias': 0.5} if kind == 'fixed' else {}
  x = np.random.default_rng(2).normal(size=(_B, 4, _D)).astype('f')
  expected = np.zeros((_B, 4, k))
  if kind == 'fixed':
    expected += (x @ arguments['weights'])[..., None] + arguments['bias']
  # Some products and sums in float32, which may cancel tenfold.
  guesses = jax.jit(lambda x: _guess(kind, k, **arguments)(x))(x)
  np.testing.assert_allclose(guesses, expected, 0, 1e-6)


def test_a_linear_guess_and_a_network_are_their_equations():
  x = np.random.default_rng(2).normal(size=(5, _D))
  with jax.enable_x64(True):
    linear, network, outside = (
      drawn(lambda kind=kind: _guess(kind, 3))
      for kind in ('linear', 'network', 'residual_network')
    )
    nnx.update(outside, nnx.state(network))
    *guesses, of_residual = nnx.jit(lambda guesses, x: [guess(x) for guess in guesses])(
      [linear, network, outside], x
    )
    assert_close(of_residual, np.asarray(guesses[1]), 0)
  assert_close(guesses[0], x @ np.asarray(linear.weights[...]), 1e-12)
  (w, b), (v, c) = double(network.hidden), double(network.out)
  z = x @ w + b
  assert_close(guesses[1], bodies.gelu(z) @ v + c, 1e-12)


def test_guesses_that_do_not_exist_are_refused():
  with refuses("unknown guess 'liner'", 'linear'):
    _guess('liner', 1)
  with refuses("only for guess='fixed'; guess is 'linear'"):
    _guess('linear', 1, weights=1.0)
  with refuses('guess_weights', 'bias'):
    _guess('zero', 1, bias=1.0)


@pytest.mark.parametrize('layout', LAYOUTS)
@pytest.mark.parametrize('kind', ['residual', 'residual_network'])
def test_a_guess_outside_of_the_model_is_taken_from_the_labels_and_added(kind, layout):
  """f(X, y, x_q) = g(x_q) + f_0(X, y − g(X), x_q), of a body that is a sum."""

  class Sum(zoo.models.TokenModel):
    def body(self, tokens, at):
      return jnp.cumsum(jnp.sum(tokens, axis=-1, keepdims=True), axis=1)[:, at]

  with jax.enable_x64(True):
    model, without = (
      drawn(lambda guess=guess: Sum(_D, tokens=layout, guess=guess, rngs=nnx.Rngs(0)))
      for guess in (kind, 'zero')
    )

    @nnx.jit
    def both(model, without, prompt):
      guess = model.guess(prompt.features)[..., 0]
      left = dataclasses.replace(prompt, y=prompt.y - guess[:, :-1])
      return model(prompt), guess[:, -1] + without(left)

    predictions, expected = both(model, without, bodies.prompt())
  # A few roundings of sums of twenty numbers.
  np.testing.assert_allclose(predictions, expected, atol=1e-12)


def test_a_residual_guess_that_overflows_leaves_no_nan_in_the_tokens():
  class Sees(zoo.models.TokenModel):
    def body(self, tokens, at):
      return tokens[:, at, -1:]

  @jax.jit
  def run(prompt):
    model = Sees(_D, guess='residual', tokens='shifted', rngs=nnx.Rngs(0))
    model.guess.weights[...] = jnp.full((_D, 1), 1e38)
    return model.guess(prompt.x_query), model.embed(prompt)

  prompt = dataclasses.replace(bodies.prompt(), x_query=np.full((_B, _D), 10.0, 'f'))
  guess, tokens = jax.device_get(run(prompt))
  assert np.isinf(guess).all()
  assert np.all(tokens[:, -1, -1] == 0)
