"""Mamba-2: `zoo.mixers.Mamba2`."""

import numpy as np

from tests.mixers.reference.parts import (
  convolve,
  decays,
  linear,
  merge,
  rms,
  silu,
  softplus,
  split,
)


def outputs(p, x, num_heads, state_size=64):
  values = silu(convolve(p, 'convolve_value', linear(p, 'value', x)))
  values = split(values, num_heads)
  both = silu(convolve(p, 'convolve_key_query', linear(p, 'key_query', x)))
  k, q = both[:, :state_size], both[:, state_size:]  # B and C, the same in all heads
  delta = softplus(linear(p, 'rate.linear', x) + p['rate.bias'])
  decay, heads = decays(p, x), []
  for h in range(num_heads):
    state, out = np.zeros((state_size, values.shape[2])), np.zeros_like(values[h])
    for t in range(len(x)):
      state = decay[t, h] * state + delta[t, h] * np.outer(k[t], values[h, t])
      out[t] = q[t] @ state + p['skip'][h] * values[h, t]
    heads.append(out)
  gated = merge(heads) * silu(linear(p, 'gate', x))
  return linear(p, 'out', rms(p, 'norm', gated))
