"""The gated delta rule: `zoo.mixers.GatedDelta`."""

import numpy as np

from tests.mixers.reference import parts
from tests.mixers.reference.parts import convolved, linear, sigmoid, split, unit


def recurrence(q, k, v, decay, beta):
  """The outputs `[n, v]` and the last state of one head; a decay for each token."""
  state, out = np.zeros((k.shape[1], v.shape[1])), np.zeros_like(v)
  for t in range(len(q)):
    state = decay[t] * state
    state = state + beta[t] * np.outer(k[t], v[t] - k[t] @ state)
    out[t] = q[t] @ state
  return out, state


def outputs(p, x, num_heads, negative_eigenvalues=False):
  q, k, v = (split(convolved(p, name, x), num_heads) for name in parts.QKV)
  beta = (1 + negative_eigenvalues) * sigmoid(linear(p, 'strength', x))
  decay, heads = parts.decays(p, x), []
  for h in range(num_heads):
    read, _ = recurrence(unit(q[h]), unit(k[h]), v[h], decay[:, h], beta[:, h])
    heads.append(parts.rms(p, 'norm', read))
  return linear(p, 'out', parts.merge(heads) * parts.silu(linear(p, 'gate', x)))
