"""The mesa layer: `zoo.mixers.Mesa`."""

import numpy as np

from tests.mixers.reference import parts
from tests.mixers.reference.parts import convolved, linear, sigmoid, split, unit


def outputs(p, x, num_heads):
  q, k = (split(convolved(p, name, x), num_heads) for name in ('query', 'key'))
  v, heads = split(linear(p, 'value', x), num_heads), []
  beta, gamma = sigmoid(linear(p, 'strength', x)), sigmoid(linear(p, 'decay', x))
  for h in range(num_heads):
    queries, keys, out = unit(q[h]), unit(k[h]), np.zeros_like(v[h])
    moment, cross = np.zeros((2, v.shape[2], v.shape[2]))
    ridge = np.diag(parts.softplus(p['ridge'][h]) + 0.25)
    for t in range(len(x)):
      moment = gamma[t, h] * moment + beta[t, h] * np.outer(keys[t], keys[t])
      cross = gamma[t, h] * cross + beta[t, h] * np.outer(keys[t], v[h, t])
      out[t] = queries[t] @ np.linalg.inv(moment + ridge) @ cross
    heads.append(parts.rms(p, 'norm', out))
  return linear(p, 'out', parts.merge(heads))
