"""The heads of a linear attention model: their shares, and the cost of pruning them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Float

from zoo import theory
from zoo.core.errors import UserError
from zoo.core.learning_rule import LearningRule
from zoo.core.losses import ROUNDING
from zoo.core.protocols import Predictor, Task
from zoo.measure.table import Rows
from zoo.models.linear_attention import LinearAttention
from zoo.theory.exact import in_float64, rule_of


@dataclasses.dataclass(frozen=True)
class Head:
  """One head of a linear attention model.

  It is a row of what `zoo.probing.heads` returns, a table that prints. `records`
  returns the rows as dictionaries, `to_frame` as a data frame of pandas, and `to_csv`
  writes them to a file.

  Predictions depend only on the product of the value vector and the bilinear form of a
  head. The contribution of head h to the prediction is called f_h, and the contribution
  of all heads together Δ.

  Attributes:
    value: The value vector b_h = W_Vᵀ W_Pᵀ r, `[e]`.
    form: The bilinear form A_h = W_Kᵀ W_Q, `[e, e]`.
    share: E f_h Δ / E Δ². The shares of all heads sum to 1, and a head that opposes the
      others has a negative share. None if the heads together contribute nothing, or
      cancel one another up to the rounding of float32.
    pruning_cost: The exact risk without this head, minus the risk with it.
  """

  value: Float[np.ndarray, ' e']
  form: Float[np.ndarray, 'e e']
  share: float | None
  pruning_cost: float


def heads(model: Predictor, task: Task) -> Rows[Head]:
  """Measures the share and the pruning cost of each head of a linear attention model.

  Everything is a closed form, computed in float64.

  - Quantity: `share`, E f_h Δ / E Δ² for the contribution f_h of a head and the
    contribution Δ of all heads; `pruning_cost`, the exact risk without the head minus
    that with it. Both are closed forms.
  - Null: 0 for a head whose W_P or W_V is 0; no share if all heads together add
    nothing.
  - Counterfactual: 0 in place of what the head adds.
  - Denominator: E Δ², of the share.

  Args:
    model: A linear attention model: LSA, multi-head LSA, yq-LSA or LTB.
    task: A task that exact theory covers, linear regression.

  Returns:
    The heads, in their order; they print as a table.

  Raises:
    UserError: If the model is not a linear attention model, or was edited, or if exact
      theory does not cover the task.

  Example:
    >>> saved = zoo.load('checkpoints/yq_lsa')
    >>> [head.share for head in zoo.probing.heads(saved.model, saved.task)]
    [1.0]
  """
  model = _with_heads(model)
  risk = float(theory.exact_risk(model, task))
  every = range(model.num_heads)
  all_heads = Rows[Head]()
  with jax.enable_x64(True):
    values, forms = map(np.asarray, _algebra(in_float64(model)))
    guess = rule_of(prune(model, every))
    together = rule_of(model) - guess
    nothing = together * 0.0
    total = _square(together, nothing, task)
    each_alone = [
      rule_of(prune(model, [other for other in every if other != head])) - guess
      for head in every
    ]
    squares = sum(_square(alone, nothing, task) for alone in each_alone)
    # Heads that cancel one another up to the rounding of their weights add nothing.
    add_nothing = total <= ROUNDING * squares
    for head, alone in zip(every, each_alone, strict=True):
      # The product is ⟨f, g⟩ = (|f + g|² − |f − g|²) / 4.
      product = _square(alone + together, nothing, task)
      product = (product - _square(alone, together, task)) / 4
      pruned = float(theory.exact_risk(prune(model, [head]), task))
      all_heads.append(
        Head(
          value=values[head],
          form=forms[head],
          share=None if add_nothing else product / total,
          pruning_cost=pruned - risk,
        )
      )
  return all_heads


def prune(model: Predictor, heads: Sequence[int]) -> LinearAttention:
  """Returns a copy of a linear attention model without the given heads.

  The W_P of these heads is set to 0; shapes do not change.

  Args:
    model: A linear attention model: LSA, multi-head LSA, yq-LSA or LTB.
    heads: Numbers of heads, from 0.

  Returns:
    The copy.

  Raises:
    UserError: If a head does not exist, or if the model is not a linear attention
      model.

  Example:
    >>> saved = zoo.load('checkpoints/yq_lsa')
    >>> without = zoo.probing.prune(saved.model, [0])
    >>> float(jnp.abs(without.w_p[...]).max())
    0.0
  """
  model = _with_heads(model)
  for head in heads:
    if head not in range(model.num_heads):
      raise UserError(
        f'head {head!r} cannot be pruned; heads are counted from 0 to '
        f'{model.num_heads - 1}'
      )
  copy = nnx.clone(model)
  kept = np.isin(np.arange(model.num_heads), np.asarray(heads, int), invert=True)
  copy.w_p[...] = jnp.where(kept[:, None, None], copy.w_p[...], 0)
  return copy


def _with_heads(model: Predictor) -> LinearAttention:
  """Returns the model; raises UserError unless it is linear attention."""
  if not isinstance(model, LinearAttention):
    raise UserError(
      f'{type(model).__name__} has no separable heads; it must be lsa, multi_head_lsa, '
      'yq_lsa or ltb; zoo.probing.head_scores describes the heads of a transformer'
    )
  return model


# Without compilation, each operation would be a program of its own.
_algebra = nnx.jit(LinearAttention.head_algebra)


def _square(first: LearningRule, second: LearningRule, task: Task) -> float:
  """Returns the mean squared difference of the predictions of two rules."""
  return float(theory.squared_difference(first, second, task).prediction)
