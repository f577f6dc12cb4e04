"""Hyena of order 2: `zoo.mixers.Hyena`."""

import numpy as np

from tests.mixers.reference.parts import convolve, linear


def filters(p, n, width, horizon):
  """The kernels h_1 and h_2, `[2, n, w]`, without the skips."""
  kernels = np.zeros((2, n, width))
  alpha = np.linspace(np.log(100) / 1.5, np.log(100) / 0.3, width)
  for t in range(n):
    angles = 2 * np.pi * np.arange(1, 9) * t / horizon
    hidden = np.concatenate([[t / horizon], np.cos(angles), np.sin(angles)])
    for i in range(2):
      hidden = np.sin(linear(p, f'network.{i}', hidden))
    both = linear(p, 'filters', hidden).reshape(2, width)
    kernels[:, t] = np.exp(-alpha * t / horizon) * both
  return kernels


def long_convolution(kernel, skip, x):
  out = skip * x
  for t in range(len(x)):
    for i in range(t + 1):
      out[t] += kernel[t - i] * x[i]
  return out


def outputs(p, x, num_heads, horizon=128.0):
  v, first_gate, second_gate = (
    convolve(p, f'convolutions.{i}', linear(p, f'projections.{i}', x)) for i in range(3)
  )
  first, second = filters(p, len(x), x.shape[1], horizon)
  inner = first_gate * long_convolution(first, p['skips'][0], v)
  read = second_gate * long_convolution(second, p['skips'][1], inner)
  return linear(p, 'out', read)
