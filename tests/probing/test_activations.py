"""Intermediates: against the equation in NumPy."""

import jax
import numpy as np
import pytest
from flax import nnx

import zoo
from tests import oracle
from tests.compare import refuses
from tests.probing.models import Softmax
from tests.settings import isotropic
from zoo.probing import intermediates


@pytest.mark.parametrize('name', ['lsa', 'yq_lsa', 'ltb'])
def test_they_are_the_terms_of_the_equation(name):
  model = zoo.create_model(name, num_features=3, init_scale=0.5, rngs=nnx.Rngs(0))
  prompt = isotropic(3, 4, prior_mean=0.5).sample(jax.random.key(0), 2)
  found = intermediates(model, prompt)
  w_p, w_v, w_k, w_q = (
    np.asarray(w[...][0], np.float64)
    for w in (model.w_p, model.w_v, model.w_k, model.w_q)
  )
  guess = np.asarray(model.initial_guess()[0])
  for i in range(2):
    # Tokens are columns in the oracle.
    x_query = np.asarray(prompt.x_query[i])
    tokens = oracle.embed(prompt.x[i], prompt.y[i], x_query, guess @ x_query)
    scores = (w_k @ tokens).T @ (w_q @ tokens) / 4
    terms = {
      'embed': tokens,
      'keys': w_k @ tokens,
      'queries': w_q @ tokens,
      'values': w_p @ w_v @ tokens,
      'scores': (oracle.mask(4) @ scores).T,  # [key, query], as in zoo
      'update': oracle.attention_update(tokens, oracle.Head(w_p, w_v, w_k, w_q)),
    }
    for term, expected in terms.items():
      value = np.asarray(found[term][i])
      value = value[0] if value.ndim == 3 else value  # the one head
      np.testing.assert_allclose(value, expected.T, atol=1e-4, err_msg=term)
  np.testing.assert_allclose(
    found['forward_tokens'][:, -1, -1], model(prompt), rtol=1e-4, atol=1e-5
  )


def test_the_model_is_left_as_it_was():
  model = zoo.create_model('yq_lsa', num_features=3, rngs=nnx.Rngs(0))
  prompt = isotropic(3, 4).sample(jax.random.key(0), 2)
  before, attributes = nnx.graphdef(model), set(vars(model))
  intermediates(model, prompt)
  assert nnx.graphdef(model) == before
  assert set(vars(model)) == attributes


def test_any_other_module_is_called():
  prompt = isotropic(3, 4).sample(jax.random.key(0), 2)
  found = intermediates(Softmax(3), prompt)
  assert set(found) == {'__call__', 'scores'}
  np.testing.assert_allclose(found['scores'].sum(axis=1), 1, rtol=1e-6)
  with refuses('GradientDescent has no intermediates'):
    intermediates(zoo.estimators.gradient_descent(np.zeros(3), 0.1), prompt)
