"""Retention: `zoo.mixers.Retention`."""

import numpy as np

from tests.mixers.reference.parts import QKV, linear, merge, rms, silu, split, turned


def outputs(p, x, num_heads, rotary=False):
  heads = []
  terms = zip(*(split(linear(p, name, x), num_heads) for name in QKV), strict=True)
  for h, (q, k, v) in enumerate(terms):
    if rotary:
      q, k = turned(q), turned(k)
    size = q.shape[1]
    state, out = np.zeros((size, size)), np.zeros_like(v)
    for t in range(len(x)):
      state = (1 - 2.0 ** (-5 - h)) * state + np.outer(k[t], v[t]) / np.sqrt(size)
      out[t] = q[t] @ state
    heads.append(rms(p, 'norm', out))
  return linear(p, 'out', merge(heads) * silu(linear(p, 'gate', x)))
