"""The time mixing of RWKV-7: `zoo.mixers.RWKV7`."""

import numpy as np

from tests.mixers.reference.parts import linear, low_rank, merge, sigmoid, split, unit


def recurrence(q, k, v, decay, reader, place):
  """The outputs `[n, v]` and the last state of one head."""
  state, out = np.zeros((k.shape[1], v.shape[1])), np.zeros_like(v)
  for t in range(len(q)):
    erased = np.outer(place[t], reader[t] @ state)
    state = decay[t][:, None] * state - erased + np.outer(k[t], v[t])
    out[t] = q[t] @ state
  return out, state


def outputs(p, x, num_heads):
  change = np.concatenate([np.zeros((1, x.shape[1])), x[:-1]]) - x
  names = 'receptance', 'decay', 'key', 'value', 'rate', 'gate'
  r, w, k, v, a, g = (x + p[f'shifts.{name}'] * change for name in names)
  r, k, v = linear(p, 'receptance', r), linear(p, 'key', k), linear(p, 'value', v)
  decay = np.exp(-np.exp(-0.5) * sigmoid(low_rank(p, 'decay', w, np.tanh)))
  a, erased = sigmoid(low_rank(p, 'rate', a)), k * p['numbers.erased']
  k = k * (1 + (a - 1) * p['numbers.mixed'])
  of_channels = (p[f'numbers.{name}'][None] for name in ('scale', 'bias', 'bonus'))
  terms, heads = (r, k, v, decay, erased, a, *of_channels), []
  for q, k, v, decay, erased, a, scale, bias, bonus in zip(
    *(split(term, num_heads) for term in terms), strict=True
  ):
    kappa = unit(erased)
    read, _ = recurrence(q, k, v, decay, kappa, a * kappa)
    centred = read - read.mean(axis=1, keepdims=True)
    variance = (centred**2).mean(axis=1, keepdims=True)
    read = centred / np.sqrt(variance + 1e-5 * q.shape[1]) * scale + bias
    heads.append(read + (q * k * bonus).sum(axis=1, keepdims=True) * v)
  return linear(p, 'out', low_rank(p, 'gate', g, sigmoid) * merge(heads))
