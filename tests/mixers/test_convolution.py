"""Hyena."""

import numpy as np

from tests.compare import refuses
from tests.mixers.loops import N, W, assert_is, convolve, linear, warm


def _long(kernels, x):
  out = np.zeros_like(x)
  for t in range(len(x)):
    for i in range(t + 1):
      out[t] += kernels[t - i] * x[i]
  return out


def test_hyena():
  horizon = 10.0

  def filters(p):
    kernels = np.zeros((2, N, W))
    for t in range(N):
      angles = 2 * np.pi * np.arange(1, 9) * t / horizon
      hidden = np.concatenate([[t / horizon], np.cos(angles), np.sin(angles)])
      for i in range(2):
        hidden = np.sin(linear(p, f'network.{i}', hidden))
      both = linear(p, 'filters', hidden).reshape(2, W)
      for channel in range(W):
        slow, fast = np.log(100) / 1.5, np.log(100) / 0.3
        alpha = slow + (fast - slow) * channel / (W - 1)
        kernels[:, t, channel] = np.exp(-alpha * t / horizon) * both[:, channel]
    return kernels

  def loop(p, u):
    v, one, two = (
      convolve(p, f'convolutions.{i}', linear(p, f'projections.{i}', u))
      for i in range(3)
    )
    first, second = filters(p)
    direct, other = p['skips']
    inner = one * (_long(first, v) + direct * v)
    return linear(p, 'out', two * (_long(second, inner) + other * inner))

  assert_is('hyena', loop, horizon=horizon)


def test_the_horizon_is_positive():
  with refuses('horizon is 0'):
    warm('hyena', horizon=0.0)
