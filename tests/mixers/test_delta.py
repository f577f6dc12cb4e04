"""The delta rule and the gated one."""

import jax
import numpy as np
import pytest

from tests.compare import assert_close
from tests.mixers.loops import (
  EXACT,
  H,
  N,
  W,
  call,
  convolve,
  each,
  heads,
  linear,
  parameters,
  recur,
  rms,
  sigmoid,
  silu,
  softplus,
  tokens,
  unit,
  warm,
)

_S = W // H


@pytest.mark.parametrize('name', ['delta', 'gated_delta'])
def test_delta_rules(name):
  def loop(x):
    q, k, v = (
      heads(silu(convolve(p, f'convolutions.{one}', linear(p, one, x))))
      for one in ('query', 'key', 'value')
    )
    beta, decay = sigmoid(linear(p, 'strength', x)), np.ones((N, H))
    if name == 'gated_delta':
      rate = softplus(linear(p, 'rate.linear', x) + p['rate.bias'])
      decay = np.exp(-np.exp(p['rate.log_a']) * rate)
    merged = np.zeros((N, H, _S))
    for h in range(H):
      q[h], k[h] = (np.stack([unit(row) for row in one[h]]) for one in (q, k))
      decays = np.outer(decay[:, h], np.ones(_S))
      read, _ = recur(q[h], k[h], v[h], decays, beta[:, h], beta[:, h])
      merged[:, h] = [rms(p, 'norm', row) for row in read]
    merged = merged.reshape(N, W)
    if name == 'gated_delta':
      merged = merged * silu(linear(p, 'gate', x))
    return linear(p, 'out', merged)

  with jax.enable_x64(True):
    mixer, x = warm(name), tokens()
    p = parameters(mixer)
    assert_close(call(mixer, x), each(loop, x), EXACT)
