"""The equation of `zoo/mixers/recurrence.py`, which linear-state mixers share."""

import numpy as np


def recurrence(q, k, u, decay, erase=None, at=None, state=None):
  """Outputs `[n, v]` and the last state of one head; `decay` is e^g, `[n, k]`.

  S_t = decay ∘ S_{t−1} − atᵀ (erase S_{t−1}) + kᵀ u; `at` is k by default.
  """
  n, size = k.shape
  state = np.zeros((size, u.shape[-1])) if state is None else state
  out = np.zeros((n, u.shape[-1]))
  for t in range(n):
    read = 0 if erase is None else erase[t] @ state
    state = decay[t][:, None] * state + np.outer(k[t], u[t])
    state = state - np.outer(k[t] if at is None else at[t], read * np.ones_like(u[t]))
    out[t] = q[t] @ state
  return out, state
