"""Longhorn: `zoo.mixers.Longhorn`."""

import numpy as np

from tests.mixers.reference.parts import convolve, linear, sigmoid, silu


def outputs(p, x, num_heads, state_size=16, convolution=True):
  values = linear(p, 'value', x)
  values = silu(convolve(p, 'convolution', values) if convolution else values)
  both = linear(p, 'key_query', values)
  k, q = both[:, :state_size], both[:, state_size:]  # the same in all channels
  beta = sigmoid(linear(p, 'rate', linear(p, 'rate_in', values)) + p['rate_bias'])
  out = np.zeros_like(values)
  for channel in range(values.shape[1]):
    state = np.zeros(state_size)
    for t in range(len(x)):
      step = beta[t, channel] / (1 + beta[t, channel] * k[t] @ k[t])
      state = (1 - step * k[t] ** 2) * state + step * k[t] * values[t, channel]
      out[t, channel] = q[t] @ state + p['skip'][channel] * values[t, channel]
  return linear(p, 'out', out * silu(linear(p, 'gate', x)))
