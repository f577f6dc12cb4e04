"""Softmax attention that forgets: `zoo.mixers.ForgettingAttention`."""

import numpy as np

from tests.mixers.reference.parts import QKV, linear, merge, sigmoid, split


def attend(q, k, v, kept):
  """The outputs `[n, s]` of one head; `kept` has the forget gate f of each token."""
  out = np.zeros_like(v)
  for t in range(len(q)):
    weights = np.zeros(t + 1)
    for i in range(t + 1):
      # What is left of token i: the product of f over the tokens after it.
      weights[i] = (
        np.exp(q[t] @ k[i] / np.sqrt(q.shape[1])) * kept[i + 1 : t + 1].prod()
      )
    out[t] = weights / weights.sum() @ v[: t + 1]
  return out


def outputs(p, x, num_heads):
  heads, kept = [], sigmoid(linear(p, 'forget', x))
  terms = zip(
    *(split(linear(p, name, x), num_heads) for name in QKV), kept.T, strict=True
  )
  for q, k, v, f in terms:
    heads.append(attend(q, k, v, f))
  return linear(p, 'out', merge(heads))
