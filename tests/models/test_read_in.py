"""The read-in of images, against loops over pixels."""

from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

import zoo
from tests.compare import assert_close, refuses
from tests.compiled import built
from tests.marks import mostly_slow
from tests.weights import double, drawn, promoting_float64
from zoo.core.roles import parameter_roles
from zoo.models.tokens import LAYOUTS, at_examples, lay_out
from zoo.models.transformer import Transformer

_SIZE, _C, _K, _WIDTH = 5, 2, 3, 4


def _model(**arguments: Any) -> Transformer:
  sizes = {'num_outputs': _K, 'num_layers': 1, 'num_heads': 1, 'width': _WIDTH}
  arguments = sizes | {'read_in': 'convolutional'} | arguments
  return Transformer(_SIZE**2, _C, **arguments, rngs=nnx.Rngs(0))


def _gelu(z):  # as jax.nn.gelu, by tanh
  return z * (1 + np.tanh(np.sqrt(2 / np.pi) * (z + 0.044715 * z**3))) / 2


def _convolved(image, kernel):
  size, _, channels = image.shape
  weights = kernel.reshape(3, 3, channels, -1)
  result = np.zeros((size, size, weights.shape[-1]))
  for i in range(size):
    for j in range(size):
      for u in range(3):
        for v in range(3):
          row, column = i + u - 1, j + v - 1
          if 0 <= row < size and 0 <= column < size:
            result[i, j] += image[row, column] @ weights[u, v]
  return result


def _halved(image):
  half = range(0, len(image), 2)
  return np.array(
    [[image[i : i + 2, j : j + 2].mean((0, 1)) for j in half] for i in half]
  )


@pytest.mark.parametrize('layout', mostly_slow(['interleaved'], LAYOUTS))
def test_it_convolves_the_features_of_each_example(layout):
  x: Any = np.random.default_rng(0).normal(size=(1, _C + 1, _SIZE**2))
  y: Any = np.eye(_K)[[[0, 2, 1]]]
  with promoting_float64():
    model: Any = drawn(lambda: _model(tokens=layout))
    prompt = zoo.Prompt(x[:, :-1], y[:, :-1], x[:, -1], y[:, -1])
    guess, read_in = np.zeros((1, _C + 1, _K)), model.read_in

    @nnx.jit
    def run(read_in, prompt, guess):
      tokens = lay_out(prompt, guess, layout)
      return tokens, read_in(tokens)

    tokens, (actual,) = jax.device_get(run(read_in, prompt, guess))
  kernel, bias = double(read_in.read_rest)
  expected = np.asarray(tokens)[0, :, _SIZE**2 :] @ kernel + bias
  for example, at in enumerate(range(len(expected))[at_examples(layout)]):
    image = x[0, example].reshape(_SIZE, _SIZE, 1)
    for convolve in (read_in.convolve_1, read_in.convolve_2):
      image = _halved(_gelu(_convolved(image, double(convolve)[0])))
    expected[at] += image.ravel() @ double(read_in.read_image)[0]
  assert_close(actual, expected, 1e-11)


def test_features_that_are_no_image_are_refused():
  with refuses('num_features 6; it must be the square of the size of an image'):
    Transformer(6, _C, read_in='convolutional', rngs=nnx.Rngs(0))
  with refuses("unknown read_in 'conv'; known: convolutional, flat"):
    _model(read_in='conv')


def test_its_weights_are_of_the_read_in():
  roles = parameter_roles(nnx.eval_shape(_model))
  kernels = ('convolve_1', 'convolve_2', 'read_image', 'read_rest')
  assert {roles[f'read_in/{name}/kernel'] for name in kernels} == {'embedding'}


@pytest.mark.slow
@pytest.mark.full
def test_it_keeps_the_contract_of_a_model(unchecked):
  task = zoo.create_task('gaussian_clusters', num_features=25, context_length=_C)
  zoo.check_model(built(lambda: _model(num_outputs=2)), task)
