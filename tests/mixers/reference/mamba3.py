"""Mamba-3: `zoo.mixers.Mamba3`."""

import numpy as np

from tests.mixers.reference import parts
from tests.mixers.reference.parts import linear, rms, sigmoid, softplus


def turn(x, angles):
  """Turns the pairs (2 j, 2 j + 1) of `[n, k]`, of which the last have no angle."""
  m, out = 2 * angles.shape[1], x.copy()
  z = (x[:, :m:2] + 1j * x[:, 1:m:2]) * np.exp(1j * angles)
  out[:, :m:2], out[:, 1:m:2] = z.real, z.imag
  return out


def recurrence(q, k, v, decay, delta, weight):
  """The outputs `[n, v]` and the last state of one head, by the trapezoidal rule."""
  state, out, before = np.zeros((k.shape[1], v.shape[1])), np.zeros_like(v), 0.0
  for t in range(len(q)):
    state = decay[t] * (state + (1 - weight[t]) * delta[t] * before)
    before = np.outer(k[t], v[t])
    state = state + weight[t] * delta[t] * before
    out[t] = q[t] @ state
  return out, state


def outputs(p, x, num_heads, state_size=64):
  delta = softplus(linear(p, 'rate', x) + p['rate_bias'])
  z, weight = linear(p, 'decay', x), sigmoid(linear(p, 'weight', x))
  a = np.where(z >= 0, 1 + z, 1 / (1 - np.minimum(z, 0)))
  decay, heads = np.exp(-delta * np.maximum(a, 1e-4)), []
  key, query = (rms(p, f'{name}_norm', linear(p, name, x)) for name in ('key', 'query'))
  for h, v in enumerate(parts.split(linear(p, 'value', x), num_heads)):
    angles = np.cumsum(np.pi * np.tanh(linear(p, 'angle', x)) * delta[:, h, None], 0)
    k = turn(key + p['key_bias'][h], angles)
    q = turn(query + p['query_bias'][h], angles)
    read, _ = recurrence(q, k, v, decay[:, h], delta[:, h], weight[:, h])
    heads.append(read + p['skip'][h] * v)
  return linear(p, 'out', parts.merge(heads) * parts.silu(linear(p, 'gate', x)))
