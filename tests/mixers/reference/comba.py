"""Comba: `zoo.mixers.Comba`."""

import numpy as np

from tests.mixers.reference import parts
from tests.mixers.reference.parts import convolved, linear, sigmoid, split, unit


def recurrence(q, k, v, decay, beta, reader):
  """The outputs `[n, v]` and the last state of one head.

  What `reader` reads is erased; it reads the state before the decay.
  """
  state, out = np.zeros((k.shape[1], v.shape[1])), np.zeros_like(v)
  for t in range(len(q)):
    error = v[t] - reader[t] @ state
    state = decay[t] * state + beta[t] * np.outer(k[t], error)
    out[t] = q[t] @ state
  return out, state


def outputs(p, x, num_heads):
  q, k, v = (split(convolved(p, name, x), num_heads) for name in parts.QKV)
  beta, decay, heads = sigmoid(linear(p, 'strength', x)), parts.decays(p, x), []
  for h in range(num_heads):
    key = unit(k[h])
    query = unit(q[h]) - p['correction'][h] * key
    reader = sigmoid(p['feedback'][h]) * key
    read, _ = recurrence(query, key, v[h], decay[:, h], beta[:, h], reader)
    heads.append(parts.rms(p, 'norm', read))
  gate = sigmoid(linear(p, 'gate', x))
  return linear(p, 'out', parts.merge(heads) * gate)
