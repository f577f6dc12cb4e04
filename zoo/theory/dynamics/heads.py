"""Heads of linear attention in the parametrisations whose training is studied.

The models of `zoo.models` have four square matrices a head. The literature trains the
product of two of them as one matrix, or keys and queries of low rank; training differs,
and what can be learned does not but for the rank.
"""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, ArrayLike, Float

from zoo.core.errors import check_count, check_number
from zoo.core.learning_rule import LearningRule, symmetric
from zoo.core.prompt import Prompt


class LinearHeads(nnx.Module):
  """Heads with `f = Σ_h b_hᵀ G K_hᵀ Q_h x_q`, or A_h as one matrix for `K_hᵀ Q_h`."""

  def __init__(
    self,
    values: Float[ArrayLike, 'h e'],
    queries: Float[ArrayLike, 'h r d'],
    keys: Float[ArrayLike, 'h r e'] | None = None,
  ):
    """`values` are b, `queries` Q and `keys` K; without keys `queries` are A."""
    self.values = nnx.Param(np.asarray(values, float))
    self.queries = nnx.Param(np.asarray(queries, float))
    self.keys = None if keys is None else nnx.Param(np.asarray(keys, float))

  def learning_rule(self) -> LearningRule:
    """The rule that predicts the same."""
    values, matrices = jnp.asarray(self.values[...]), jnp.asarray(self.queries[...])
    if self.keys is not None:
      matrices = jnp.einsum('hri,hrj->hij', self.keys[...], matrices)
    e, d = matrices.shape[1:]
    return LearningRule(
      init=jnp.zeros(d, values.dtype),
      update=symmetric(jnp.einsum('hi,hkj->jik', values, matrices)),
      bias=jnp.zeros((), values.dtype),
      bias_update=jnp.zeros((e, e), values.dtype),
    )

  def __call__(self, prompt: Prompt) -> Float[Array, ' b']:
    """The prediction for each prompt's query."""
    return self.learning_rule()(prompt)


def merged_heads(
  num_features: int, num_heads: int, scale: float, seed: int = 0
) -> LinearHeads:
  """Heads from `N(0, scale²)` in the entries that a task with `w* = 0` trains.

  These are the label's entry of each value, and the rows of features of each A; the
  others are 0, and stay so. Raises UserError naming the argument that is wrong.
  """
  d, h, draw = _drawing(num_features, num_heads, scale, seed)
  values, scores = np.zeros((h, d + 1)), np.zeros((h, d + 1, d))
  values[:, d], scores[:, :d] = draw(h), draw(h, d, d)
  return LinearHeads(values, scores)


def separate_heads(
  num_features: int, num_heads: int, rank: int, scale: float, seed: int = 0
) -> LinearHeads:
  """As `merged_heads`, with keys and queries of a rank ≥ 1."""
  d, h, draw = _drawing(num_features, num_heads, scale, seed)
  r = check_count('rank', rank)
  values, keys = np.zeros((h, d + 1)), np.zeros((h, r, d + 1))
  values[:, d], keys[..., :d] = draw(h), draw(h, r, d)
  return LinearHeads(values, draw(h, r, d), keys)


def _drawing(
  num_features: int, num_heads: int, scale: float, seed: int
) -> tuple[int, int, Callable[..., np.ndarray]]:
  d = check_count('num_features', num_features)
  h = check_count('num_heads', num_heads)
  size = check_number('scale', scale, minimum=0.0)
  random = np.random.default_rng(seed)
  return d, h, lambda *shape: size * random.normal(size=shape)
