"""S4D-Lin: `zoo.mixers.S4D`."""

import numpy as np
from scipy.special import erf

from tests.mixers.reference.parts import linear, sigmoid


def outputs(p, x, num_heads, state_size=64):
  poles = -np.exp(p['log_real']) + 1j * p['frequency']
  assert poles.shape[1] == state_size // 2
  kept = np.exp(np.exp(p['log_rate'])[:, None] * poles)
  read = p['read_real'] + 1j * p['read_imaginary']
  state, out = np.zeros(poles.shape, complex), np.zeros_like(x)
  for t in range(len(x)):
    state = kept * state + (kept - 1) / poles * x[t][:, None]
    out[t] = 2 * (read * state).sum(axis=1).real + p['skip'] * x[t]
  hidden = out * (1 + erf(out / np.sqrt(2))) / 2  # GELU
  return linear(p, 'out', hidden) * sigmoid(linear(p, 'gate', hidden))
