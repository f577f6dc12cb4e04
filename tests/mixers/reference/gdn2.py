"""Gated DeltaNet-2: `zoo.mixers.GatedDelta2`."""

import numpy as np

from tests.mixers.reference import parts
from tests.mixers.reference.parts import convolved, linear, sigmoid, split, unit


def recurrence(q, k, v, decay, erase, write):
  """The outputs `[n, v]` and the last state of one head; b and w are vectors."""
  state, out = np.zeros((k.shape[1], v.shape[1])), np.zeros_like(v)
  for t in range(len(q)):
    state = decay[t][:, None] * state
    change = write[t] * v[t] - (erase[t] * k[t]) @ state
    state = state + np.outer(k[t], change)
    out[t] = q[t] @ state
  return out, state


def outputs(p, x, num_heads, negative_eigenvalues=False):
  q, k, v = (split(convolved(p, name, x), num_heads) for name in parts.QKV)
  erase = (1 + negative_eigenvalues) * sigmoid(linear(p, 'erase', x))
  erase, write = (split(b, num_heads) for b in (erase, sigmoid(linear(p, 'write', x))))
  decay, heads = parts.key_decays(p, x, num_heads), []
  for h in range(num_heads):
    read, _ = recurrence(unit(q[h]), unit(k[h]), v[h], decay[h], erase[h], write[h])
    heads.append(parts.rms(p, 'norm', read))
  gate = sigmoid(parts.low_rank(p, 'gate', x))
  return linear(p, 'out', parts.merge(heads) * gate)
