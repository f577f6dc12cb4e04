"""The equations of the linear family, written a second time: NumPy, float64, loops.

Nothing here imports zoo, and nothing is fast. Tokens are columns, as in the paper
(arXiv 2512.04268), one prompt at a time: `x` is [c, d], `y` is [c], `x_query` is [d].
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike


class Head(NamedTuple):
  """The four (d+1) x (d+1) matrices of one attention head."""

  w_p: np.ndarray
  w_v: np.ndarray
  w_k: np.ndarray
  w_q: np.ndarray


def embed(x, y, x_query, y_guess) -> np.ndarray:
  """Eq. 2: E = [[X^T, x_q], [y^T, y_q]], of shape [d+1, c+1]."""
  x, y, x_query = _float64(x, y, x_query)
  context, features = x.shape
  tokens = np.zeros((features + 1, context + 1))
  for i in range(context):
    for k in range(features):
      tokens[k, i] = x[i, k]
    tokens[features, i] = y[i]
  for k in range(features):
    tokens[k, context] = x_query[k]
  tokens[features, context] = float(y_guess)
  return tokens


def mask(context: int) -> np.ndarray:
  """W_M: the identity on the context columns, zero on the query's."""
  w_m = np.zeros((context + 1, context + 1))
  for i in range(context):
    w_m[i, i] = 1.0
  return w_m


def attention_update(tokens: np.ndarray, head: Head) -> np.ndarray:
  """(1/C) W_P W_V E W_M E^T W_K^T W_Q E, one query column and one key at a time."""
  w_p, w_v, w_k, w_q = _float64(*head)
  width, columns = tokens.shape
  context = columns - 1
  w_m = mask(context)
  update = np.zeros((width, columns))
  for j in range(columns):
    query = w_q @ tokens[:, j]
    for i in range(columns):
      key = w_k @ tokens[:, i]
      value = w_p @ (w_v @ tokens[:, i])
      update[:, j] += w_m[i, i] * float(key @ query) * value / context
  return update


def multi_head_tokens(tokens: np.ndarray, heads: list[Head]) -> np.ndarray:
  """Eqs. 5 and 6: E plus the sum of the heads' updates of the same E."""
  updated = tokens.copy()
  for head in heads:
    updated += attention_update(tokens, head)
  return updated


def lsa(
  x, y, x_query, heads: list[Head], guess: ArrayLike = 0.0, bias: float = 0.0
) -> float:
  """Eqs. 3, 5 and 6 with the fixed initial guess y_q = g.x_q + beta."""
  g = np.zeros(len(x_query)) + np.asarray(guess, np.float64)
  y_guess = float(bias)
  for k in range(len(x_query)):
    y_guess += g[k] * float(x_query[k])
  tokens = embed(x, y, x_query, y_guess)
  return float(multi_head_tokens(tokens, heads)[-1, -1])


def ltb_tokens(tokens: np.ndarray, heads: list[Head], w_1, w_2) -> np.ndarray:
  """Eq. 30 before its index: W_2^T W_1 applied to the updated embedding."""
  w_1, w_2 = _float64(w_1, w_2)
  updated = multi_head_tokens(tokens, heads)
  out = np.zeros_like(updated)
  for j in range(updated.shape[1]):
    out[:, j] = w_2.T @ (w_1 @ updated[:, j])
  return out


def gd_weights(x, y, start, step_size: float) -> np.ndarray:
  """One gradient step on (1/2C) sum_i (w.x_i - y_i)^2, from `start`."""
  return gd_beta_weights(x, y, start, step_size * np.eye(len(start)))


def gd_beta_weights(x, y, start, step) -> np.ndarray:
  """GD-beta: beta - Gamma (1/C) X^T (X beta - y), with a matrix step Gamma."""
  x, y, start, step = _float64(x, y, start, step)
  context, features = x.shape
  gradient = np.zeros(features)
  for i in range(context):
    residual = float(x[i] @ start) - y[i]
    gradient += residual * x[i] / context
  return start - step @ gradient


def second_moment(x, y) -> np.ndarray:
  """G = (1/C) sum_i z_i z_i^T with z_i = [x_i; y_i]."""
  x, y = _float64(x, y)
  context, features = x.shape
  moment = np.zeros((features + 1, features + 1))
  for i in range(context):
    z = np.append(x[i], y[i])
    for k in range(features + 1):
      for m in range(features + 1):
        moment[k, m] += z[k] * z[m] / context
  return moment


def rule_weights(x, y, init, update) -> np.ndarray:
  """omega(G)_i = init_i + <U_i, G>."""
  init, update = _float64(init, update)
  moment = second_moment(x, y)
  weights = np.zeros(len(init))
  for i in range(len(init)):
    weights[i] = init[i] + np.sum(update[i] * moment)
  return weights


def rule_prediction(x, y, x_query, init, update, bias, bias_update) -> float:
  """f = omega(G).x_q + b(G), with b(G) = bias + <V, G>."""
  (x_query, bias_update) = _float64(x_query, bias_update)
  constant = float(bias) + np.sum(bias_update * second_moment(x, y))
  return float(rule_weights(x, y, init, update) @ x_query + constant)


def _float64(*arrays) -> tuple[np.ndarray, ...]:
  return tuple(np.asarray(array, np.float64) for array in arrays)
