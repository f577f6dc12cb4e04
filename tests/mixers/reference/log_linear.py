"""Log-linear Mamba-2: `zoo.mixers.LogLinear`."""

import numpy as np

from tests.mixers.reference import parts
from tests.mixers.reference.parts import linear, silu, softplus, split


def attend(q, k, v, decay, scales):
  """The outputs `[n, v]` of one head; `scales` has λ of each token and level."""
  n, last = scales.shape[0], scales.shape[1] - 1
  out = np.zeros_like(v)
  for t in range(n):
    for i in range(t + 1):
      level = min((t ^ i).bit_length(), last)
      left = decay[i + 1 : t + 1].prod()  # what the decays after token i leave of it
      out[t] += scales[t, level] * left * (q[t] @ k[i]) * v[i]
  return out


def outputs(p, x, num_heads, state_size=64, num_levels=12):
  both, values = (
    silu(parts.convolve(p, f'convolve_{name}', linear(p, name, x)))
    for name in ('key_query', 'value')
  )
  k, q = both[:, :state_size], both[:, state_size:]  # B and C, the same in all heads
  values = split(values, num_heads)
  delta = softplus(linear(p, 'rate.linear', x) + p['rate.bias'])
  logits = linear(p, 'levels', x).reshape(len(x), num_heads, num_levels)
  scales, decay = softplus(p['level_scale'] * logits), parts.decays(p, x)
  heads = []
  for h, v in enumerate(values):
    read = attend(q, delta[:, h, None] * k, v, decay[:, h], scales[:, h])
    heads.append(read + p['skip'][h] * v)
  gated = parts.merge(heads) * silu(linear(p, 'gate', x))
  return linear(p, 'out', parts.rms(p, 'norm', gated))
