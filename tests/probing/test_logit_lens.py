"""What can be read after each layer, by the model's readout and by a fitted one."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import zoo
from tests.compare import assert_close, refuses
from tests.compiled import built, predict_all
from tests.probing.models import sample
from tests.settings import curve_key, isotropic
from tests.weights import drawn
from zoo.measure.intervals import Estimate
from zoo.probing import lens
from zoo.probing.logit_lens import fitted_predictions

_D, _C = 3, 6


def _descent(num_layers, step):
  """Layers that are steps of gradient descent from 0."""
  model = built(
    lambda: zoo.models.DeepLSA(
      _D, num_layers=num_layers, form='sparse', rngs=nnx.Rngs(0)
    )
  )
  layers: Any = model.layers
  for layer in layers:
    layer.a[...] = jnp.asarray(step * np.eye(_D)[None], 'float32')
  return model


@pytest.mark.slow
def test_after_each_layer_a_model_of_gradient_descent_has_taken_one_more_step():
  task = isotropic(_D, _C, noise_std=0.3)
  readouts = lens(_descent(2, 0.4), task, num_prompts=64)
  prompt = sample(task, curve_key(), 128)
  x, y = np.asarray(prompt.x, np.float64)[:64], np.asarray(prompt.y, np.float64)[:64]
  w, expected = np.zeros((64, _D)), []
  for _ in range(3):
    prediction = np.einsum('bd,bd->b', w, prompt.x_query[:64])
    expected.append(np.mean((prediction - prompt.y_query[:64]) ** 2))
    w += 0.4 / _C * np.einsum('bcd,bc->bd', x, y - np.einsum('bcd,bd->bc', x, w))
  # Some hundred float32 sums.
  assert_close(readouts.own.mean, expected, 1e-5)
  np.testing.assert_array_equal(readouts.own.num_layers, range(3))
  half = Estimate(0.0, readouts.own.stderr[0], 64).half
  assert readouts.own.half[0] == pytest.approx(half)
  assert readouts.fitted is not None
  record = readouts.records()[2]
  ends = '', '_stderr', '_num'
  columns = [f'{name}{end}' for name in ('own', 'fitted') for end in ends]
  assert [*record] == ['num_layers', *columns]
  assert record['own_num'] == 64
  assert record['num_layers'] == 2
  assert record['own_stderr'] == readouts.own.stderr[2]
  assert record['fitted'] == readouts.fitted.mean[2]
  assert str(readouts).split()[:3] == ['num_layers', 'own', 'fitted']


@pytest.mark.slow
def test_the_last_layer_has_the_loss_of_the_model_and_a_loop_counts_each_time():
  task = isotropic(_D, _C)
  model = drawn(
    lambda: zoo.models.Transformer(
      *(_D, _C), num_layers=1, width=8, num_loops=2, rngs=nnx.Rngs(0)
    ),
    dtype='float32',
  )
  readouts = lens(model, task, num_prompts=100)
  assert len(readouts.own.mean) == 1 + 2
  prompt = sample(task, jax.random.key(3), 4)
  last = nnx.jit(lambda model: model.read(model.layer_tokens(prompt)[-1], prompt))
  # The same operations, compiled otherwise.
  assert_close(last(model), predict_all(model, prompt), 1e-5)


def test_a_fitted_readout_finds_what_is_linear_in_the_token():
  """Without a prior's variance the target is a fixed linear function of the query."""
  task = isotropic(_D, _C, prior_mean=2.0, prior_covariance=np.zeros((_D, _D)))
  readouts = lens(_descent(1, 0.4), task, num_prompts=200)
  assert readouts.fitted is not None
  # E (w·x)² = 4 d is what a guess of 0 has; the features are float32.
  assert readouts.own.mean[0] > 4
  assert readouts.fitted.mean[0] < 1e-10


def test_a_fitted_readout_is_not_fitted_to_the_prompts_that_it_is_measured_on():
  tokens, weights = np.random.default_rng(0).normal(size=(12, 1, 2)), [1.0, -2.0]
  expected = tokens[:, 0] @ weights + 3
  measured = np.arange(12) < 5
  found = fitted_predictions(tokens, np.where(measured, 9.0, expected), 5)
  np.testing.assert_allclose(found[:, 0], expected)


@pytest.mark.slow
def test_a_loss_of_classes_has_no_fitted_readout():
  task = zoo.create_task('gaussian_clusters', num_features=_D, context_length=_C)
  model = built(
    lambda: zoo.models.DeepLSA(_D, num_outputs=2, num_layers=2, rngs=nnx.Rngs(0))
  )
  readouts = lens(model, task, num_prompts=20)
  assert readouts.fitted is None
  assert readouts.own.mean.shape == (3,)


def test_a_model_without_layers_and_too_few_prompts_are_refused():
  model = zoo.create_model('yq_lsa', num_features=_D, rngs=nnx.Rngs(0))
  with refuses('YqLSA has no layers to read'):
    lens(model, isotropic(_D, _C))
  # Tokens have d + 1 = 4 entries, so that a linear map has 5 parameters.
  with refuses('num_prompts is 9; it must be an integer ≥ 10'):
    lens(_descent(1, 0.1), isotropic(_D, _C), num_prompts=9)
  with refuses('num_prompts is 1'):
    lens(_descent(1, 0.1), isotropic(_D, _C), num_prompts=1)
