"""Linear attention: `zoo.mixers.LinearMixer`."""

import numpy as np

from tests.mixers.reference.parts import QKV, linear, merge, split


def outputs(p, x, num_heads, causal=True):
  n, heads = len(x), []
  for q, k, v in zip(
    *(split(linear(p, name, x), num_heads) for name in QKV), strict=True
  ):
    out = np.zeros_like(v)
    for t in range(n):
      seen = range(t + 1) if causal else range(n - 1)
      for i in seen:
        out[t] += (q[t] @ k[i]) * v[i] / len(seen)
    heads.append(out)
  return linear(p, 'out', merge(heads))
