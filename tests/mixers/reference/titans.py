"""The linear memory of Titans: `zoo.mixers.Titans`."""

import numpy as np

from tests.mixers.reference import parts
from tests.mixers.reference.parts import convolved, linear, sigmoid, split, unit


def outputs(p, x, num_heads):
  q, k, v = (split(convolved(p, name, x), num_heads) for name in parts.QKV)
  names = 'rate', 'momentum', 'forget'
  theta, eta, alpha = (sigmoid(linear(p, name, x)) for name in names)
  heads = []
  for h in range(num_heads):
    queries, keys, out = unit(q[h]), unit(k[h]), np.zeros_like(v[h])
    memory, change = np.zeros((2, v.shape[2], v.shape[2]))
    for t in range(len(x)):
      gradient = 2 * np.outer(keys[t], keys[t] @ memory - v[h, t])
      change = eta[t, h] * change - theta[t, h] * gradient
      memory = (1 - alpha[t, h]) * memory + change
      out[t] = queries[t] @ memory
    heads.append(parts.rms(p, 'norm', out))
  return linear(p, 'out', parts.merge(heads) * parts.silu(linear(p, 'gate', x)))
