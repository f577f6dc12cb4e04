"""Canonical forms, besides the learning rule, of models whose exact risk is known.

`zoo.theory` computes their risks.
"""

from typing import NamedTuple

from jaxtyping import Float

from zoo.core.learning_rule import AnyArray


class DeepRule(NamedTuple):
  """Layers of linear attention whose matrices are multiples of the identity.

  Each layer changes features and labels by `x ← x + b S x`, `y ← y + c Xᵀy/C · x`,
  where X, y and `S = XᵀX/C` are those of its input tokens. The first layer reads the
  examples `[x_i; y_i − residual·x_i]` and the query `[x_q; start·x_q + offset]`. The
  prediction is `residual·x_q`, plus `readout` times the last label of the query, plus
  `feature_readout` times its last features.
  """

  steps: Float[AnyArray, '*n l']  # c of each layer, < 0 for descent
  preconditions: Float[AnyArray, '*n l']  # b of each layer
  readout: Float[AnyArray, '*n']  # κ
  feature_readout: Float[AnyArray, '*n d']
  start: Float[AnyArray, '*n d']
  offset: Float[AnyArray, '*n']
  residual: Float[AnyArray, '*n d']


class Recurrence(NamedTuple):
  """Weights that learn one example at a time, with coefficients that no prompt changes.

  `w_i = decay_i w_{i−1} − erase_i x_i x_iᵀ w_{i−1} + write_i x_i y_i` with `w_0 =
  start`; the prediction after i examples is `w_i·x`.
  """

  start: Float[AnyArray, '*n d']
  decay: Float[AnyArray, '*n c']
  erase: Float[AnyArray, '*n c']
  write: Float[AnyArray, '*n c']
