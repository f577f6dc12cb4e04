"""ReLU attention: `zoo.mixers.ReLUAttention`."""

import numpy as np

from tests.mixers.reference.parts import QKV, linear, merge, split, turned


def outputs(p, x, num_heads, causal=True, rotary=False):
  n, heads = len(x), []
  for q, k, v in zip(
    *(split(linear(p, name, x), num_heads) for name in QKV), strict=True
  ):
    if rotary:
      q, k = turned(q), turned(k)
    out = np.zeros_like(v)
    for t in range(n):
      seen = range(t + 1) if causal else range(n - 1)
      for i in seen:
        score = q[t] @ k[i] / np.sqrt(q.shape[1])
        out[t] += max(score, 0) * v[i] / len(seen)
    heads.append(out)
  return linear(p, 'out', merge(heads))
