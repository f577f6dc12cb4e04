"""Baselines of the task `tabular`, whose labels are a number, classes, or either."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float

from zoo.core.errors import check_count
from zoo.estimators.baselines import Baseline, Examples


@struct.dataclass(eq=False, repr=False)
class MeanLabel(Baseline):
  """The mean number of the examples, and the logits of the shares of classes.

  The share of class k among K classes is (n_k + 1) / (n + K) if n_k of n examples are
  of it. This is the posterior mean of its probability under a uniform prior over the
  probabilities of the K classes.

  Args:
    kind: What labels are, one of `zoo.tasks.tabular.KINDS`.
  """

  kind: str = struct.field(pytree_node=False)

  def predict(self, examples: Examples) -> Float[Array, '*k']:
    return weighted_label(self.kind, examples, examples.seen.astype(examples.x.dtype))


@struct.dataclass(eq=False, repr=False)
class TableNeighbours(Baseline):
  """The mean label of the nearest examples, after standardisation.

  A missing feature (NaN) is taken as the mean. Shares of classes are those of
  `MeanLabel`.

  Args:
    kind: What labels are, one of `zoo.tasks.tabular.KINDS`.
    num_neighbours: Number of nearest examples, ≥ 1.
  """

  kind: str = struct.field(pytree_node=False)
  num_neighbours: int = struct.field(pytree_node=False, default=10)

  def __post_init__(self):
    super().__post_init__()
    check_count('num_neighbours', self.num_neighbours)

  def predict(self, examples: Examples) -> Float[Array, '*k']:
    x, x_query = standardized(examples)
    distances = jnp.sum(jnp.square(x - x_query[None]), axis=-1)
    order = jnp.argsort(jnp.where(examples.seen, distances, jnp.inf))
    rank = jnp.argsort(order)
    is_near = examples.seen & (rank < self.num_neighbours)
    return weighted_label(self.kind, examples, is_near.astype(x.dtype))


@struct.dataclass(eq=False, repr=False)
class TableRidge(Baseline):
  """Ridge regression on standardised features, with an intercept.

  It minimises `Σ_i (y_i − ȳ − w·x_i)² + penalty |w|²`. A missing feature (NaN) is taken
  as the mean. It predicts numbers only.

  Args:
    penalty: The penalty, > 0; 1 is the default of scikit-learn.
  """

  penalty: float = struct.field(pytree_node=False, default=1.0)

  def predict(self, examples: Examples) -> Float[Array, '']:
    x, x_query = standardized(examples)
    count = jnp.maximum(examples.num_seen, 1)
    mean = jnp.sum(examples.y, where=examples.seen) / count
    x = jnp.where(examples.seen[:, None], x, 0)
    y = jnp.where(examples.seen, examples.y - mean, 0)
    gram = x.T @ x + self.penalty * jnp.eye(x.shape[1], dtype=x.dtype)
    weights = jax.scipy.linalg.solve(gram, x.T @ y, assume_a='pos')
    return mean + jnp.dot(x_query, weights)


def standardized(examples: Examples) -> tuple[Float[Array, 'c d'], Float[Array, ' d']]:
  """Returns standardised features; a feature that is missing or constant is 0."""
  x, seen = examples.x, examples.seen[:, None] & ~jnp.isnan(examples.x)
  count = jnp.maximum(jnp.sum(seen.astype(x.dtype), axis=0), 1)
  mean = jnp.sum(jnp.nan_to_num(x), axis=0, where=seen) / count
  squares = jnp.square(jnp.nan_to_num(x) - mean[None])
  std = jnp.sqrt(jnp.sum(squares, axis=0, where=seen) / count)
  # The rounded mean of equal numbers may differ from them.
  largest = jnp.max(jnp.abs(jnp.nan_to_num(x)), axis=0, where=seen, initial=0.0)
  varies = std > 1e-6 * largest
  scale = jnp.where(varies, 1 / jnp.where(varies, std, 1), 0)
  of_all = jnp.concatenate([x, examples.x_query[None]])
  rows = (of_all - mean[None]) * scale[None]
  rows = jnp.where(jnp.isnan(rows), 0, rows)
  return rows[:-1], rows[-1]


def weighted_label(
  kind: str, examples: Examples, weights: Float[Array, ' c']
) -> Float[Array, '*k']:
  """Returns the weighted mean of numbers, and the logits of weighted shares of classes.

  Args:
    kind: What labels are, one of `zoo.tasks.tabular.KINDS`.
    examples: The examples.
    weights: Weight of each example `[c]`.
  """
  total = jnp.sum(weights)
  y = jnp.where(examples.seen.reshape(-1, *[1] * (examples.y.ndim - 1)), examples.y, 0)
  sums = jnp.tensordot(weights, y, axes=1)
  if kind == 'numbers':
    return sums / jnp.maximum(total, 1)
  counts = sums if kind == 'classes' else sums[1:]
  logits = jnp.log((counts + 1) / (total + len(counts)))
  if kind == 'classes':
    return logits
  return jnp.concatenate([sums[:1] / jnp.maximum(total, 1), logits])
