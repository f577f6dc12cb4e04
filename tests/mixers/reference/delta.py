"""The delta rule: `zoo.mixers.Delta`."""

import numpy as np

from tests.mixers.reference.parts import (
  QKV,
  convolved,
  linear,
  merge,
  rms,
  sigmoid,
  split,
  unit,
)


def recurrence(q, k, v, beta):
  """The outputs `[n, v]` and the last state of one head."""
  state, out = np.zeros((k.shape[1], v.shape[1])), np.zeros_like(v)
  for t in range(len(q)):
    error = v[t] - k[t] @ state
    state = state + beta[t] * np.outer(k[t], error)
    out[t] = q[t] @ state
  return out, state


def outputs(p, x, num_heads, negative_eigenvalues=False):
  q, k, v = (split(convolved(p, name, x), num_heads) for name in QKV)
  beta, heads = (1 + negative_eigenvalues) * sigmoid(linear(p, 'strength', x)), []
  for h in range(num_heads):
    read, _ = recurrence(unit(q[h]), unit(k[h]), v[h], beta[:, h])
    heads.append(rms(p, 'norm', read))
  return linear(p, 'out', merge(heads))
