"""What the tests of models of tokens have in common."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

import zoo
from tests.weights import double

D, C, B = 3, 5, 2  # features, examples and prompts


def prompt(
  outputs: int = 1, context: int = C, seed: int = 0, batch: int = B
) -> zoo.Prompt:
  """A few prompts of numbers without any law, in the precision that is enabled."""
  draw = np.random.default_rng(seed).normal
  k = (outputs,) if outputs > 1 else ()
  shapes = (batch, context, D), (batch, context, *k), (batch, D)
  dtype = jnp.result_type(float)
  # Converted in NumPy: JAX would compile a program for each shape.
  x, y, x_query, y_query = (
    jnp.asarray(array.astype(dtype), dtype)
    for array in (*(draw(size=shape) for shape in shapes), np.zeros((batch, *k)))
  )
  return zoo.Prompt(x=x, y=y, x_query=x_query, y_query=y_query)


def every_prediction(
  prompt: zoo.Prompt, predict: Callable[[np.ndarray, np.ndarray, np.ndarray], Any]
) -> np.ndarray:
  """`predict(x, y, x_query)` `[k]` of one example after the other: `[b, t, k]`."""
  x = np.concatenate([prompt.x, np.asarray(prompt.x_query)[:, None]], axis=1)
  y = np.asarray(prompt.y).reshape(len(x), x.shape[1] - 1, -1)
  return np.array(
    [
      [predict(x[b, :t], y[b, :t], x[b, t]) for t in range(x.shape[1])]
      for b in range(len(x))
    ]
  )


def tokens(layout: str, x: np.ndarray, y: np.ndarray, guess: np.ndarray) -> np.ndarray:
  """The tokens of one prompt, written out from the table in `zoo.models.tokens`.

  `x` is `[t, d]` with the query last, `y` `[c, k]`, and `guess` `[t, k]`.
  """
  if layout == 'joint':
    known = [[*x[i], *y[i]] for i in range(len(y))]
    return np.array([*known, [*x[-1], *guess[-1]]])
  zero_x, zero_y = np.zeros(x.shape[1]), np.zeros(y.shape[1])
  if layout == 'shifted':
    before = [zero_y, *y]
    return np.array([[*x[i], *before[i], *guess[i]] for i in range(len(x))])
  rows = [[*x[0], *guess[0]]]
  for i in range(len(y)):
    rows += [[*zero_x, *y[i]], [*x[i + 1], *guess[i + 1]]]
  return np.array(rows)


def gelu(z: np.ndarray) -> np.ndarray:
  """GELU with tanh (Hendrycks & Gimpel, arXiv 1606.08415, section 2)."""
  return 0.5 * z * (1 + np.tanh(np.sqrt(2 / np.pi) * (z + 0.044715 * z**3)))


def linear(layer: Any, z: np.ndarray) -> np.ndarray:
  """The outputs of a linear layer."""
  kernel, bias = double(layer)
  return z @ kernel + bias


def layer_norm(norm: Any, z: np.ndarray) -> np.ndarray:
  """Layer norm of the last axis (Ba et al., arXiv 1607.06450)."""
  centred = z - z.mean(-1, keepdims=True)
  scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
  return scaled * np.asarray(norm.scale[...]) + np.asarray(norm.bias[...])


def gelu_layers(network: Any, z: np.ndarray) -> np.ndarray:
  """The output of layers gelu(W z + b)."""
  for layer in network.layers:
    z = gelu(linear(layer, z))
  return z
