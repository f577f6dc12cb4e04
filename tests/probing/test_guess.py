"""The initial guess of models: exact where it is linear, fitted where it is not."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import zoo
from tests.compare import refuses
from tests.compiled import built
from tests.marks import mostly_full
from tests.settings import isotropic
from zoo.models.initial_guess import InitialGuess
from zoo.probing import learned_guess

_D, _C = 3, 4
_TASK = isotropic(_D, _C, prior_mean=[1.0, -1.0, 0.5])
_W = np.array([0.5, -1.0, 0.25])  # exact in float32


def _model(guess, **arguments) -> Any:
  return built(
    lambda: zoo.models.DeepLSA(
      _D, num_layers=1, guess=guess, **arguments, rngs=nnx.Rngs(0)
    )
  )


@pytest.mark.parametrize(
  'kind', mostly_full(['fixed'], ['zero', 'linear'], slow=['residual'])
)
def test_a_linear_guess_is_exact_and_is_what_is_predicted_without_examples(kind):
  arguments = {'guess_weights': _W, 'guess_bias': 0.75} if kind == 'fixed' else {}
  model = _model(kind, **arguments)
  if kind in ('linear', 'residual'):
    model.guess.weights[...] = jnp.asarray(_W[:, None], 'float32')
  guess = learned_guess(model, _TASK, 128)
  weights, bias = 0 * _W if kind == 'zero' else _W, 0.75 if kind == 'fixed' else 0.0
  token = guess.token
  assert token is not None
  assert guess.kind == kind
  assert token.r2 is None
  np.testing.assert_array_equal(token.weights, weights)
  assert float(token.bias) == bias
  assert token.prior_mean_distance == pytest.approx(
    np.linalg.norm(weights - _TASK.prior_mean)
  )
  # LSA leaves the guess as it is where there is no example; a fit to float32.
  np.testing.assert_allclose(guess.prediction.weights, weights, atol=1e-5)
  np.testing.assert_allclose(guess.prediction.bias, bias, atol=1e-5)
  assert guess.prediction.r2 == pytest.approx(1, abs=1e-9)


@pytest.mark.slow
def test_of_a_network_it_is_the_best_linear_fit():
  """Of x_1² + 2 x_1, for normal features: 2 x_1 + 1, and R² = 4 / (4 + 2)."""
  model = _model('network')

  class Network(InitialGuess):
    def __call__(self, x):
      return x[..., :1] ** 2 + 2 * x[..., :1]

  model.guess = Network('network', _D, rngs=nnx.Rngs(0))
  fit = learned_guess(model, _TASK, 16384).token
  assert fit is not None
  # Means over 8192 prompts of products with a variance of some ten: 0.04, three times.
  np.testing.assert_allclose(fit.weights, [2, 0, 0], atol=0.12)
  assert float(fit.bias) == pytest.approx(1, abs=0.12)
  assert fit.r2 == pytest.approx(2 / 3, abs=0.05)


@pytest.mark.slow
def test_several_outputs_have_a_guess_each():
  task = zoo.create_task(
    'gaussian_clusters', num_features=_D, context_length=_C, num_classes=2
  )
  model = _model('linear', num_outputs=2)
  model.guess.weights[...] = jnp.asarray(np.stack([_W, 2 * _W], axis=1), 'float32')
  guess = learned_guess(model, task, 128)
  assert guess.token is not None
  np.testing.assert_array_equal(guess.token.weights, np.stack([_W, 2 * _W], axis=1))
  np.testing.assert_allclose(guess.prediction.weights, guess.token.weights, atol=1e-5)
  assert guess.token.prior_mean_distance is None


@pytest.mark.slow
@pytest.mark.parametrize(
  ('name', 'kind'), mostly_full([('yq_lsa', 'linear')], [('ltb', 'fixed')])
)
def test_linear_attention_has_that_of_its_token(name, kind):
  model = built(lambda: zoo.create_model(name, num_features=_D, rngs=nnx.Rngs(0)))
  weights = np.zeros(_D)
  if name == 'yq_lsa':
    weights = _W
    model.w[...] = jnp.asarray(_W, 'float32')
  guess = learned_guess(model, _TASK, 128)
  assert guess.token is not None
  assert guess.kind == kind
  np.testing.assert_array_equal(guess.token.weights, weights)
  # Without examples a learning rule predicts with its own start.
  start = nnx.jit(lambda model: model.learning_rule().init)(model)
  np.testing.assert_allclose(guess.prediction.weights, start, atol=1e-5)


class Constant(nnx.Module):
  def __call__(self, prompt):
    return jnp.full(len(prompt.x_query), 3.0)


def test_a_model_without_a_guess_has_a_prediction():
  guess = learned_guess(Constant(), _TASK, 128)
  assert guess.kind is None
  assert guess.token is None
  assert float(guess.prediction.bias) == pytest.approx(3)
  assert guess.prediction.r2 is not None
  assert np.isnan(guess.prediction.r2)  # nothing varies that could be explained
  with refuses('the model is of type GradientDescent; it must be an NNX module'):
    learned_guess(zoo.estimators.gradient_descent(_TASK), _TASK)


def test_fewer_queries_than_32_for_each_number_that_is_fitted_are_refused():
  task = isotropic(20, 4)
  with refuses('num_prompts is 84; it must be an integer ≥ 672'):
    learned_guess(Constant(), task, num_prompts=84)
  weights = learned_guess(Constant(), task, num_prompts=672).prediction.weights
  np.testing.assert_allclose(weights, 0, atol=1e-6)
