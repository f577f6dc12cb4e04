"""Canonical forms, besides the learning rule, of models whose exact risk is known.

`zoo.theory` computes the risks of models that have such a form.
"""

from typing import NamedTuple

from jaxtyping import Float

from zoo.core.learning_rule import AnyArray


class DeepRule(NamedTuple):
  """Layers of linear attention whose matrices are multiples of the identity.

  Each layer changes features and labels by `x ← x + b S x` and `y ← y + c Xᵀy/C · x`,
  where X, y and `S = XᵀX/C` belong to its input tokens. The first layer reads the
  examples `[x_i; y_i − residual·x_i]` and the query `[x_q; start·x_q + offset]`. The
  prediction is

      residual·x_q + readout · (last label of the query)
                   + feature_readout · (last features of the query).

  Attributes:
    steps: c of each layer, `[l]`; it is < 0 for gradient descent.
    preconditions: b of each layer, `[l]`.
    readout: ρ, the factor of the query's last label.
    feature_readout: The weights of the query's last features, `[d]`.
    start: The weights of the guess of the query's label, `[d]`.
    offset: The offset of that guess.
    residual: The weights of the guess that is subtracted from all labels, and added to
      the prediction, `[d]`.
  """

  steps: Float[AnyArray, '*n l']
  preconditions: Float[AnyArray, '*n l']
  readout: Float[AnyArray, '*n']
  feature_readout: Float[AnyArray, '*n d']
  start: Float[AnyArray, '*n d']
  offset: Float[AnyArray, '*n']
  residual: Float[AnyArray, '*n d']


class Recurrence(NamedTuple):
  """Weights that learn one example at a time, with coefficients that no prompt changes.

  With `w_0 = start` they follow
  `w_i = decay_i w_{i−1} − erase_i x_i x_iᵀ w_{i−1} + write_i x_i y_i`, and the
  prediction after i examples is `w_i·x`.

  Attributes:
    start: The initial weights, `[d]`.
    decay: The factor of the former weights at each example, `[c]`.
    erase: How much each example removes of what the weights predict, `[c]`.
    write: How much each example adds of its label, `[c]`.
  """

  start: Float[AnyArray, '*n d']
  decay: Float[AnyArray, '*n c']
  erase: Float[AnyArray, '*n c']
  write: Float[AnyArray, '*n c']
