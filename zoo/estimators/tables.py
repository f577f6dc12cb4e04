"""Baselines of the task `tabular`, whose labels are a number, classes, or either."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float

from zoo.core.errors import check_count
from zoo.estimators.baselines import Baseline, Examples
from zoo.estimators.classes import smoothed


@struct.dataclass(eq=False, repr=False)
class MeanLabel(Baseline):
  """The mean number of the examples, and the logits of the shares of classes.

  The share of class k among K classes is (n_k + 1/K) / (n + 1) if n_k of n examples are
  of it: all classes together count as one more example. This is the posterior mean of
  its probability under the prior of Perks, a Dirichlet distribution with the
  concentration 1/K for each class.

  Args:
    kind: What labels are, one of `zoo.tasks.tabular.KINDS`.
  """

  kind: str = struct.field(pytree_node=False)

  def predict(self, examples: Examples) -> Float[Array, '*k']:
    return _label_of(self.kind, examples)


@struct.dataclass(eq=False, repr=False)
class TableNeighbours(Baseline):
  """The mean label of the nearest examples, after standardisation.

  A missing feature (NaN) is taken as the mean. The share of a class is (m_k + s_k) /
  (m + 1) if m_k of the m nearest examples are of it, and s_k is its share by
  `MeanLabel`: the shares of all examples count as one more neighbour.

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
    return _label_of(self.kind, examples, is_near)


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
  x, x_query = examples.x, examples.x_query
  seen = examples.seen[:, None] & ~jnp.isnan(x)
  # The largest number is the unit, so that no square overflows or vanishes.
  largest = jnp.max(jnp.abs(jnp.nan_to_num(x)), axis=0, where=seen, initial=0.0)
  unit = jnp.where(largest > 0, largest, 1)
  x, x_query = x / unit[None], x_query / unit
  count = jnp.maximum(jnp.sum(seen.astype(x.dtype), axis=0), 1)
  mean = jnp.sum(jnp.nan_to_num(x), axis=0, where=seen) / count
  squares = jnp.square(jnp.nan_to_num(x) - mean[None])
  std = jnp.sqrt(jnp.sum(squares, axis=0, where=seen) / count)
  varies = std > 1e-6  # The rounded mean of equal numbers may differ from them.
  scale = jnp.where(varies, 1 / jnp.where(varies, std, 1), 0)
  of_all = jnp.concatenate([x, x_query[None]])
  rows = (of_all - mean[None]) * scale[None]
  rows = jnp.where(jnp.isnan(rows), 0, rows)
  return rows[:-1], rows[-1]


def _label_of(
  kind: str, examples: Examples, is_near: Bool[Array, ' c'] | None = None
) -> Float[Array, '*k']:
  """Returns the mean number of examples, and the logits of their shares of classes.

  Args:
    kind: What labels are, one of `zoo.tasks.tabular.KINDS`.
    examples: The examples.
    is_near: Which examples count `[c]`. None counts all that are seen.
  """
  y = examples.zeroed().y
  counted = (examples.seen if is_near is None else is_near).astype(y.dtype)
  sums = jnp.tensordot(counted, y, axes=1)
  mean = sums / jnp.maximum(jnp.sum(counted), 1)
  if kind == 'numbers':
    return mean
  first = 0 if kind == 'classes' else 1  # The number comes before the classes.
  of_all = jnp.sum(y, axis=0)[first:]
  shares = smoothed(of_all, 1 / len(of_all))
  if is_near is not None:
    shares = smoothed(sums[first:], shares)
  return jnp.concatenate([mean[:first], jnp.log(shares)])
