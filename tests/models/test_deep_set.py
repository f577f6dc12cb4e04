"""Deep sets against a loop over the examples."""

from typing import Any

import numpy as np
import pytest
from flax import nnx

import zoo
from tests.compare import assert_close, refuses
from tests.compiled import predict, predict_all
from tests.models import bodies
from tests.models.bodies import D
from tests.weights import randomize


def _model(**given: Any) -> Any:
  given = {'num_features': D, 'width': 6, 'rngs': nnx.Rngs(0)} | given
  return zoo.create_model('deep_set', **given)


@pytest.mark.parametrize('outputs', [1, 3])
def test_it_is_a_network_of_a_mean_over_examples(float64, outputs):
  model = randomize(_model(num_outputs=outputs, guess='linear'))
  prompt, w = bodies.prompt(outputs), np.asarray(model.guess.weights[...])

  def by_hand(x, y, x_query):
    mean = np.zeros(6)
    for one, label in zip(x, y, strict=True):
      mean += bodies.gelu_layers(model.phi, np.r_[one, label]) / len(x)
    hidden = bodies.gelu_layers(model.rho, np.r_[mean, x_query, x_query @ w])
    return bodies.linear(model.read_out, hidden)

  expected = bodies.every_prediction(prompt, by_hand)
  found = predict_all(model, prompt)
  # Sums of some ten products in float64, in another order.
  assert_close(found.reshape(expected.shape), expected, 1e-12)
  assert_close(predict(model, prompt), found[:, -1], 1e-12)
  assert_close(predict(model, prompt.prefix(0)), found[:, 0], 1e-12)


@bodies.each_task_and_guess
def test_it_keeps_its_contract(task, guess):
  bodies.check('deep_set', task, guess, width=8)


@pytest.mark.parametrize(
  ('changes', 'said'),
  [
    ({'num_layers': 0}, 'num_layers is 0'),
    ({'width': 0}, 'width is 0'),
    ({'num_features': 0}, 'num_features is 0'),
  ],
  ids=lambda value: value if isinstance(value, str) else '',
)
def test_bad_input_is_refused_in_one_line(unchecked, changes, said):
  with refuses(said):
    _model(**changes)
