"""Deep sets against a loop over the examples."""

from typing import Any

import numpy as np
import pytest
from flax import nnx

import zoo
from tests.compare import assert_close
from tests.marks import mostly_full
from tests.models import bodies
from tests.models.bodies import D
from tests.weights import drawn


def _model(**arguments: Any) -> Any:
  arguments = {'num_features': D, 'width': 6, 'rngs': nnx.Rngs(0)} | arguments
  return zoo.create_model('deep_set', **arguments)


@pytest.mark.parametrize('outputs', mostly_full([3], [1]))
def test_it_is_a_network_of_a_mean_over_examples(float64, outputs):
  model = drawn(lambda: _model(num_outputs=outputs, guess='linear'))
  prompt, w = bodies.prompt(outputs), np.asarray(model.guess.weights[...])

  def by_hand(x, y, x_query):
    mean = np.zeros(6)
    for row, label in zip(x, y, strict=True):
      mean += bodies.gelu_layers(model.phi, np.r_[row, label]) / len(x)
    hidden = bodies.gelu_layers(model.rho, np.r_[mean, x_query, x_query @ w])
    return bodies.linear(model.read_out, hidden)

  expected = bodies.every_prediction(prompt, by_hand)
  predictions, alone, none = nnx.jit(
    lambda m, p: (m.predictions(p), m(p), m(p.prefix(0)))
  )(model, prompt)
  # Sums of some ten products in float64, in another order.
  assert_close(predictions.reshape(expected.shape), expected, 1e-12)
  assert_close(alone, predictions[:, -1], 1e-12)
  assert_close(none, predictions[:, 0], 1e-12)
