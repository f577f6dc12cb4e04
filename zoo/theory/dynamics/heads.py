"""Heads of linear attention in the parametrisations whose training is studied.

The models of `zoo.models` have four square matrices a head. The literature trains the
product of two of them as one matrix, or keys and queries of low rank; training differs,
and what can be learned does not but for the rank.
"""

from __future__ import annotations

import abc
import dataclasses
import typing
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from zoo.core.errors import check_count, check_number
from zoo.core.learning_rule import AnyArray, LearningRule, symmetric
from zoo.core.prompt import Prompt


class Heads(abc.ABC):
  """Heads with `f = w·x_q + Σ_h b_hᵀ G A_h x_q`; the guess w is 0 and fixed if None."""

  values: Float[AnyArray, 'h e']  # b
  guess: Float[AnyArray, ' d'] | None

  @abc.abstractmethod
  def matrices(self) -> Float[AnyArray, 'h e d']:
    """A, which multiplies only the features of the query."""

  def learning_rule(self) -> LearningRule:
    """The rule that predicts the same."""
    matrices, dtype = self.matrices(), jnp.result_type(self.values)
    _, e, d = matrices.shape
    return LearningRule(
      init=jnp.zeros(d, dtype) if self.guess is None else self.guess,
      update=symmetric(jnp.einsum('hi,hkj->jik', self.values, matrices)),
      bias=jnp.zeros((), dtype),
      bias_update=jnp.zeros((e, e), dtype),
    )

  def __call__(self, prompt: Prompt) -> Float[Array, ' b']:
    """The prediction for each prompt's query."""
    return self.learning_rule()(prompt)


@typing.no_type_check  # JAX also builds one from placeholders
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class MergedHeads(Heads):
  """Heads with one matrix for keys and queries."""

  values: Float[AnyArray, 'h e']
  scores: Float[AnyArray, 'h e d']  # A
  guess: Float[AnyArray, ' d'] | None = None

  def matrices(self) -> Float[AnyArray, 'h e d']:
    return self.scores


@typing.no_type_check  # JAX also builds one from placeholders
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class SeparateHeads(Heads):
  """Heads with `A_h = K_hᵀ Q_h` of rank r."""

  values: Float[AnyArray, 'h e']
  keys: Float[AnyArray, 'h r e']  # K
  queries: Float[AnyArray, 'h r d']  # Q
  guess: Float[AnyArray, ' d'] | None = None

  def matrices(self) -> Float[AnyArray, 'h e d']:
    return jnp.einsum('hri,hrj->hij', self.keys, self.queries)


def merged_heads(
  num_features: int, num_heads: int, scale: float, seed: int = 0
) -> MergedHeads:
  """Heads from `N(0, scale²)` in the entries that a task with `w* = 0` trains.

  These are the label's entry of each value, and the rows of features of each A; the
  others are 0, and stay so. Raises UserError naming the argument that is wrong.
  """
  d, h, draw = _drawing(num_features, num_heads, scale, seed)
  values, scores = np.zeros((h, d + 1)), np.zeros((h, d + 1, d))
  values[:, d], scores[:, :d] = draw(h), draw(h, d, d)
  return MergedHeads(values, scores)


def separate_heads(
  num_features: int, num_heads: int, rank: int, scale: float, seed: int = 0
) -> SeparateHeads:
  """As `merged_heads`, with keys and queries of a rank ≥ 1."""
  d, h, draw = _drawing(num_features, num_heads, scale, seed)
  r = check_count('rank', rank)
  values, keys = np.zeros((h, d + 1)), np.zeros((h, r, d + 1))
  values[:, d], keys[..., :d] = draw(h), draw(h, r, d)
  return SeparateHeads(values, keys, draw(h, r, d))


def _drawing(
  num_features: int, num_heads: int, scale: float, seed: int
) -> tuple[int, int, Callable[..., np.ndarray]]:
  d = check_count('num_features', num_features)
  h = check_count('num_heads', num_heads)
  size = check_number('scale', scale, minimum=0.0)
  random = np.random.default_rng(seed)
  return d, h, lambda *shape: size * random.normal(size=shape)
