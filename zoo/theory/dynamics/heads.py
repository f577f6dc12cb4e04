"""Heads of linear attention in the parametrisations whose training is studied.

The models of `zoo.models` have four square matrices in each head. The literature trains
the product of two of them as one matrix, or keys and queries of low rank. Training
differs between these. What can be learned is the same, except that a low rank limits
it.
"""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, ArrayLike, Float

from zoo.core.errors import UserError, check_count, check_number
from zoo.core.learning_rule import LearningRule, symmetric
from zoo.core.prompt import Prompt


class LinearHeads(nnx.Module):
  """Heads of linear attention, `f = Σ_h b_hᵀ G A_h x_q`, without a guess.

  A_h is one matrix, or the product `K_hᵀ Q_h` of keys and queries of rank r.

  Example:
    >>> heads = zoo.theory.dynamics.LinearHeads([[0.0, 1.0]], [[[0.5], [0.0]]])
    >>> heads.learning_rule().num_features
    1
  """

  def __init__(
    self,
    values: Float[ArrayLike, 'h e'],
    queries: Float[ArrayLike, 'h r d'],
    keys: Float[ArrayLike, 'h r e'] | None = None,
  ):
    """Makes heads from their weights.

    Args:
      values: b, the vector of each head, `[h, e]` with e = d + 1.
      queries: Q, `[h, r, d]`. Without keys: A, `[h, e, d]`.
      keys: K, `[h, r, e]`. None means that `queries` holds A.

    Raises:
      UserError: If the shapes do not fit each other.
    """
    b, q = np.asarray(values, float), np.asarray(queries, float)
    k = None if keys is None else np.asarray(keys, float)
    fits = b.ndim == 2 and q.ndim == 3
    fits = fits and (len(q), q.shape[2]) == (len(b), b.shape[1] - 1)
    if fits and k is None:
      fits = q.shape[1] == b.shape[1]
    elif fits and k is not None:
      fits = k.shape == (*q.shape[:2], b.shape[1])
    if not fits:
      of_keys = 'no keys' if k is None else f'keys {k.shape}'
      raise UserError(
        f'the shapes are values {b.shape}, queries {q.shape} and {of_keys}; they must '
        'be [h, d + 1], [h, r, d] and [h, r, d + 1]; without keys, queries must be '
        '[h, d + 1, d]'
      )
    self.values, self.queries = nnx.Param(b), nnx.Param(q)
    self.keys = None if k is None else nnx.Param(k)

  def learning_rule(self) -> LearningRule:
    """Returns the rule that predicts the same."""
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
    """Returns the prediction for each prompt's query."""
    return self.learning_rule()(prompt)


def merged_heads(
  num_features: int, num_heads: int, scale: float, seed: int = 0
) -> LinearHeads:
  """Makes heads with one matrix A for keys and queries, with normal weights.

  The weights are drawn from `N(0, scale²)` in the entries that a task with `w* = 0`
  trains: the label's entry of each value, and the rows of features of each A. The other
  entries are 0, and stay 0 in training.

  Args:
    num_features: d ≥ 1.
    num_heads: The number of heads, ≥ 1.
    scale: The standard deviation of the weights, ≥ 0.
    seed: The seed of the draw, ≥ 0.

  Returns:
    The heads.

  Raises:
    UserError: If an argument is out of its range.

  Example:
    >>> heads = zoo.theory.dynamics.merged_heads(2, num_heads=3, scale=0.1)
    >>> heads.values.shape, heads.queries.shape
    ((3, 3), (3, 3, 2))
  """
  d, h, draw = _drawing(num_features, num_heads, scale, seed)
  values, scores = np.zeros((h, d + 1)), np.zeros((h, d + 1, d))
  values[:, d], scores[:, :d] = draw(h), draw(h, d, d)
  return LinearHeads(values, scores)


def separate_heads(
  num_features: int, num_heads: int, rank: int, scale: float, seed: int = 0
) -> LinearHeads:
  """Makes heads with keys and queries of a rank, with normal weights.

  The weights are drawn from `N(0, scale²)` in the entries that a task with `w* = 0`
  trains: the label's entry of each value, the features of each key, and the queries.
  The other entries are 0, and stay 0 in training.

  Args:
    num_features: d ≥ 1.
    num_heads: The number of heads, ≥ 1.
    rank: The rank r ≥ 1 of keys and queries.
    scale: The standard deviation of the weights, ≥ 0.
    seed: The seed of the draw, ≥ 0.

  Returns:
    The heads.

  Raises:
    UserError: If an argument is out of its range.

  Example:
    >>> heads = zoo.theory.dynamics.separate_heads(2, num_heads=3, rank=1, scale=0.1)
    >>> heads.queries.shape, heads.keys.shape
    ((3, 1, 2), (3, 1, 3))
  """
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
  seed = check_count('seed', seed, minimum=0)
  random = np.random.default_rng(seed)
  return d, h, lambda *shape: size * random.normal(size=shape)
