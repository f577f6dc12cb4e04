"""The mesa layer, and test-time training of linear models."""

import numpy as np
import pytest

from tests.compare import assert_close, refuses
from tests.marks import mostly_full
from tests.mixers.loops import (
  H,
  N,
  W,
  assert_is,
  call,
  convolve,
  heads,
  linear,
  rms,
  sigmoid,
  silu,
  softplus,
  tokens,
  unit,
  warm,
)

_S = W // H


def test_mesa():
  def loop(p, x):
    q, k = (
      heads(silu(convolve(p, f'convolutions.{term}', linear(p, term, x))))
      for term in ('query', 'key')
    )
    v = heads(linear(p, 'value', x))
    beta, gamma = sigmoid(linear(p, 'strength', x)), sigmoid(linear(p, 'decay', x))
    merged = np.zeros((N, H, _S))
    for h in range(H):
      moment, cross = np.zeros((_S, _S)), np.zeros((_S, _S))
      ridge = np.diag(softplus(p['ridge'][h]) + 0.25)
      for t in range(N):
        key = unit(k[h, t])
        moment = gamma[t, h] * moment + beta[t, h] * np.outer(key, key)
        cross = gamma[t, h] * cross + beta[t, h] * np.outer(key, v[h, t])
        read = unit(q[h, t]) @ np.linalg.inv(moment + ridge) @ cross
        merged[t, h] = rms(p, 'norm', read)
    return linear(p, 'out', merged.reshape(N, W))

  assert_is('mesa', loop)


@pytest.mark.slow
def test_it_computes_in_bfloat16():
  expected, outputs = (
    call(warm('mesa', dtype), tokens(6, dtype)) for dtype in ('float32', 'bfloat16')
  )
  assert outputs.dtype == 'bfloat16'
  # Rounded to 8 bits, a dozen times one after the other.
  error = np.abs(np.asarray(outputs, 'float32') - expected).max()
  assert error <= 0.05 * np.abs(expected).max()


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
    q, k, v = (heads(linear(p, term, x)) for term in ('query', 'key', 'value'))
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
