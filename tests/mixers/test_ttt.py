"""Test-time training of linear models."""

import numpy as np
import pytest

from tests.compare import assert_close, refuses
from tests.marks import mostly_full
from tests.mixers.loops import H, N, W, assert_is, heads, linear, sigmoid, warm

_S = W // H


def _norm(z, scale, bias):
  return (z - z.mean()) / np.sqrt(z.var() + 1e-6) * scale + bias


def _gradient(z, scale, bias, target):
  """That of ½|LN(z) − target|² with respect to z, by the matrix of LN's derivatives."""
  n, deviation = len(z), np.sqrt(z.var() + 1e-6)
  centre = np.eye(n) - 1 / n
  unit = (centre @ z) / deviation
  derivative = scale[:, None] * (centre - np.outer(unit, unit) / n) / deviation
  return (_norm(z, scale, bias) - target) @ derivative


# A mini-batch that is cut short, one a token, and one longer than the prompt.
@pytest.mark.parametrize('size', mostly_full([3], [1, 16]))
def test_ttt(size):
  def loop(p, x):
    q, k, v = (heads(linear(p, one, x)) for one in ('query', 'key', 'value'))
    rate = sigmoid(linear(p, 'rate', x)) / _S
    out = np.zeros((N, H, _S))
    for h in range(H):
      scale, shift = p['norm_scale'][h], p['norm_bias'][h]
      weights, bias = p['weights'][h], p['bias'][h]
      start, start_bias = weights, bias
      for t in range(N):
        if t % size == 0:
          start, start_bias = weights, bias
        read = k[h, t] @ start + start_bias
        gradient = _gradient(read, scale, shift, v[h, t] - k[h, t])
        weights = weights - rate[t, h] * np.outer(k[h, t], gradient)
        bias = bias - rate[t, h] * gradient
        out[t, h] = q[h, t] + _norm(q[h, t] @ weights + bias, scale, shift)
    return linear(p, 'out', out.reshape(N, W))

  assert_is('ttt', loop, mini_batch_size=size)


def test_the_gradient_in_this_file_is_one():
  rng = np.random.default_rng(5)
  z, scale, bias, target = rng.normal(size=(4, 5))
  loss = [
    0.5 * ((_norm(z + s * 1e-5 * e, scale, bias) - target) ** 2).sum()
    for e in np.eye(5)
    for s in (1, -1)
  ]
  numeric = (np.array(loss[::2]) - np.array(loss[1::2])) / 2e-5
  # Central differences err by the square of 1e-5.
  assert_close(_gradient(z, scale, bias, target), numeric, 1e-7)


def test_a_mini_batch_has_a_token():
  with refuses('mini_batch_size is 0'):
    warm('ttt', mini_batch_size=0)
