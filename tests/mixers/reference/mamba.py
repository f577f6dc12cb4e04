"""Mamba: `zoo.mixers.Mamba`."""

import numpy as np

from tests.mixers.reference.parts import convolve, linear, silu, softplus


def outputs(p, x, num_heads, state_size=16, convolution=True):
  values = linear(p, 'value', x)
  values = silu(convolve(p, 'convolution', values) if convolution else values)
  both = linear(p, 'key_query', values)
  k, q = both[:, :state_size], both[:, state_size:]  # B and C, the same in all channels
  delta = softplus(linear(p, 'rate', linear(p, 'rate_in', values)) + p['rate_bias'])
  out = np.zeros_like(values)
  for channel in range(values.shape[1]):
    state, a = np.zeros(state_size), -np.exp(p['log_a'][channel])
    for t in range(len(x)):
      state = np.exp(delta[t, channel] * a) * state
      state = state + delta[t, channel] * k[t] * values[t, channel]
      out[t, channel] = q[t] @ state + p['skip'][channel] * values[t, channel]
  return linear(p, 'out', out * silu(linear(p, 'gate', x)))
