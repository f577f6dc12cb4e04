"""Probes of models whose call has a transform of NNX."""

import jax
import numpy as np
import pytest
from flax import nnx

import zoo
from tests.flax_models import FORMS


@pytest.mark.slow
def test_gradients_in_the_query_are_those_of_the_same_layers_without_a_transform():
  task = zoo.tasks.LinearRegression(3, 4)
  remat, plain = (FORMS[name](3, rngs=nnx.Rngs(0)) for name in ('Remat', 'Plain'))
  prompt = task.sample(jax.random.key(0), 8)
  predictions = [zoo.predict(model, prompt) for model in (remat, plain)]
  np.testing.assert_allclose(*predictions, rtol=1e-6)
  apart = zoo.probing.alignment(remat, plain, task, num_prompts=64)
  # Rounding of float32, in another order of sums.
  assert apart.prediction_difference.mean < 1e-6
  assert apart.gradient_difference.mean < 1e-6
