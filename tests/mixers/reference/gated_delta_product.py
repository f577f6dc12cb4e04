"""Several gated delta rules per token: `zoo.mixers.GatedDeltaProduct`."""

import numpy as np

from tests.mixers.reference import parts
from tests.mixers.reference.parts import convolved, linear, sigmoid, split, unit


def recurrence(q, k, v, decay, beta):
  """The outputs `[n, v]` and the last state of one head.

  A token has one query and decay, and keys, values and strengths `[n, steps, …]`.
  """
  n, steps, size = k.shape
  state, out = np.zeros((size, v.shape[2])), np.zeros((n, v.shape[2]))
  for t in range(n):
    state = decay[t] * state
    for j in range(steps):
      error = v[t, j] - k[t, j] @ state
      state = state + beta[t, j] * np.outer(k[t, j], error)
    out[t] = q[t] @ state
  return out, state


def outputs(p, x, num_heads, num_householder=2, negative_eigenvalues=True):
  n, shape = len(x), (len(x), num_householder, num_heads, -1)
  q = split(convolved(p, 'query', x), num_heads)
  k, v = (convolved(p, name, x).reshape(shape) for name in ('key', 'value'))
  beta = (1 + negative_eigenvalues) * sigmoid(linear(p, 'strength', x))
  beta, decay, heads = beta.reshape(n, num_householder, -1), parts.decays(p, x), []
  for h in range(num_heads):
    terms = unit(q[h]), unit(k[:, :, h]), v[:, :, h], decay[:, h], beta[:, :, h]
    heads.append(parts.rms(p, 'norm', recurrence(*terms)[0]))
  return linear(p, 'out', parts.merge(heads) * parts.silu(linear(p, 'gate', x)))
