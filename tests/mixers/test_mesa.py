"""The mesa layer."""

import jax
import jax.numpy as jnp
import numpy as np

from tests.compare import assert_close
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
from zoo.mixers.linear_state import Inputs
from zoo.mixers.mesa import regress

_S = W // H


def test_mesa():
  def loop(p, x):
    q, k = (
      heads(silu(convolve(p, f'convolutions.{one}', linear(p, one, x))))
      for one in ('query', 'key')
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


def test_it_is_ridge_regression_without_forgetting():
  """argmin_w Σ_i (w·x_i − y_i)² + λ|w|² on all examples so far, by least squares."""
  rng = np.random.default_rng(4)
  d, c, ridge = 4, 9, 0.3
  x, y, query = rng.normal(size=(c, d)), rng.normal(size=c), rng.normal(size=(c, d))
  expected = []
  for t in range(1, c + 1):
    rows = np.concatenate([x[:t], np.sqrt(ridge) * np.eye(d)])
    w = np.linalg.lstsq(rows, np.concatenate([y[:t], np.zeros(d)]), rcond=None)[0]
    expected.append(query[t - 1] @ w)
  with jax.enable_x64(True):
    x_, query_ = (one[None, :, None] for one in (x, query))
    values = np.concatenate([x_, y[None, :, None, None]], axis=-1)
    memory, inputs = np.zeros((1, 1, d, d + 1)), Inputs(query_, x_, values)  # pyright: ignore
    found, _ = jax.jit(regress)(
      *jax.tree.map(jnp.asarray, (np.full((1, d), ridge), inputs, memory))
    )
    # λ = 0.3 bounds the condition number by some 100: far below 1e-8 in float64.
    assert_close(found[0, :, 0, 0], expected, 1e-8)


def test_it_computes_in_bfloat16():
  expected, found = (
    call(warm('mesa', dtype), tokens(6, dtype)) for dtype in ('float32', 'bfloat16')
  )
  assert found.dtype == 'bfloat16'
  # Rounded to 8 bits, a dozen times one after the other.
  error = np.abs(np.asarray(found, 'float32') - expected).max()
  assert error <= 0.05 * np.abs(expected).max()
