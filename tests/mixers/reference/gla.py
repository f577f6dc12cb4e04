"""Gated linear attention: `zoo.mixers.GatedLinearAttention`."""

import numpy as np

from tests.mixers.reference.parts import (
  QKV,
  linear,
  merge,
  rms,
  sigmoid,
  silu,
  split,
)


def outputs(p, x, num_heads):
  heads = []
  q, k, v = (split(linear(p, name, x), num_heads) for name in QKV)
  logits = linear(p, 'decay', linear(p, 'decay_in', x))
  decay = split(sigmoid(logits) ** (1 / 16), num_heads)
  size = q.shape[2]
  for h in range(num_heads):
    state, out = np.zeros((size, size)), np.zeros_like(v[h])
    for t in range(len(x)):
      state = decay[h, t][:, None] * state + np.outer(k[h, t], v[h, t])
      out[t] = q[h, t] @ state / np.sqrt(size)
    heads.append(rms(p, 'norm', out))
  return linear(p, 'out', merge(heads) * silu(linear(p, 'gate', x)))
