"""The heads of a linear attention model: their roles, and the cost of pruning them."""

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
from zoo.core.protocols import Predictor, Task
from zoo.measure.rows import Rows
from zoo.models.linear_attention import LinearAttention
from zoo.theory.exact import in_float64, rule_of


@dataclasses.dataclass(frozen=True)
class Head:
  """One head; predictions depend only on the product of its value vector and form."""

  value: Float[np.ndarray, ' e']  # b_h = W_Vᵀ W_Pᵀ r
  form: Float[np.ndarray, 'e e']  # A_h = W_Kᵀ W_Q
  # E f_h Δ / E Δ², where f_h is the contribution of this head to the prediction and Δ
  # that of all heads. Shares sum to 1; a head that opposes the others has a negative
  # share.
  share: float | None  # None if the heads together contribute nothing
  pruning_cost: float  # exact risk without this head, minus the risk with it


def heads(model: Predictor, task: Task) -> Rows[Head]:
  """The heads of a linear attention model, computed in float64.

  - Quantity: `share`, E f_h Δ / E Δ² for the contribution f_h of a head and that Δ of
    all heads; `pruning_cost`, the exact risk without the head minus that with it. Both
    are closed forms.
  - Null: 0 for a head whose W_P or W_V is 0; no share if all heads together add
    nothing.
  - Counterfactual: 0 in place of what the head adds.
  - Denominator: E Δ², of the share.

  Raises UserError for other models, and where `theory.exact_risk` does.
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
    for head in every:
      others = [other for other in every if other != head]
      alone = rule_of(prune(model, others)) - guess
      # ⟨f, g⟩ = (|f + g|² − |f − g|²) / 4
      product = _square(alone + together, nothing, task)
      product = (product - _square(alone, together, task)) / 4
      pruned = float(theory.exact_risk(prune(model, [head]), task))
      all_heads.append(
        Head(
          value=values[head],
          form=forms[head],
          share=product / total if total > 0 else None,
          pruning_cost=pruned - risk,
        )
      )
  return all_heads


def prune(model: Predictor, heads: Sequence[int]) -> LinearAttention:
  """A copy of a linear attention model without the given heads, counted from 0.

  The heads' W_P is set to 0; shapes do not change. Raises UserError for a head that
  does not exist, and for other models.
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
  if not isinstance(model, LinearAttention):
    raise UserError(
      f'{type(model).__name__} has no separable heads; it must be a linear attention '
      'model'
    )
  return model


# Otherwise each operation would be a program.
_algebra = nnx.jit(LinearAttention.head_algebra)


def _square(first: LearningRule, second: LearningRule, task: Task) -> float:
  return float(theory.squared_difference(first, second, task).prediction)
