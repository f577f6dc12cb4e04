"""TTT-Linear: `zoo.mixers.TTT`."""

import numpy as np

from tests.mixers.reference.parts import QKV, linear, merge, sigmoid, split


def norm(z, scale, bias):
  return (z - z.mean()) / np.sqrt(z.var() + 1e-6) * scale + bias


def gradient(z, scale, bias, target):
  """That of ½|LN(z) − target|² with respect to z, by the matrix of LN's derivatives."""
  n, deviation = len(z), np.sqrt(z.var() + 1e-6)
  centre = np.eye(n) - 1 / n
  unit = (centre @ z) / deviation
  derivative = scale[:, None] * (centre - np.outer(unit, unit) / n) / deviation
  return (norm(z, scale, bias) - target) @ derivative


def outputs(p, x, num_heads, mini_batch_size=16):
  q, k, v = (split(linear(p, name, x), num_heads) for name in QKV)
  rate, heads = sigmoid(linear(p, 'rate', x)) / q.shape[2], []
  for h in range(num_heads):
    scale, shift = p['norm_scale'][h], p['norm_bias'][h]
    weights, bias, out = p['weights'][h], p['bias'][h], np.zeros_like(v[h])
    start, start_bias = weights, bias
    for t in range(len(x)):
      if t % mini_batch_size == 0:
        start, start_bias = weights, bias
      read = k[h, t] @ start + start_bias
      down = rate[t, h] * gradient(read, scale, shift, v[h, t] - k[h, t])
      weights, bias = weights - np.outer(k[h, t], down), bias - down
      out[t] = q[h, t] + norm(q[h, t] @ weights + bias, scale, shift)
    heads.append(out)
  return linear(p, 'out', merge(heads))
