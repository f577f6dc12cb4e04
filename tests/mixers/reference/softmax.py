"""Softmax attention: `zoo.mixers.SoftmaxAttention`."""

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
      # In a set a query sees the context, and the last token itself as well.
      seen = range(t + 1) if causal else range(max(n - 1, t + 1))
      weights = np.exp([q[t] @ k[i] / np.sqrt(q.shape[1]) for i in seen])
      for i, weight in zip(seen, weights / weights.sum(), strict=True):
        out[t] += weight * v[i]
    heads.append(out)
  return linear(p, 'out', merge(heads))
