"""Predictors of labels ±1 from features ±1, as logits."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float

from zoo.core import losses
from zoo.estimators.baselines import Baseline, Examples, OfSigns


@struct.dataclass(eq=False, repr=False)
class Elimination(Baseline):
  """Valiant's algorithm: the conjunction of all literals that all positives satisfy.

  If the conjunction holds at the query, the label is certainly +1. Otherwise the
  literal that the query violates may belong to an irrelevant feature, which survives m
  positive examples with probability `2^−m`. The logit is then
  `−1 − max(0, m log 2 − log d)`.
  """

  def predict(self, examples: Examples) -> Float[Array, '']:
    x, y, seen, x_query = examples
    positive = seen & (y > 0)
    # A literal that the query violates remains if no positive example violates it.
    against = jnp.all((x != x_query[None]) | ~positive[:, None], axis=0)
    count = jnp.sum(positive).astype(x.dtype)
    doubt = jnp.maximum(0, count * math.log(2) - math.log(x.shape[1]))
    certain = losses.logit(jnp.ones((), x.dtype))
    return jnp.where(jnp.any(against), -1 - doubt, certain)


@struct.dataclass(eq=False, repr=False)
class ParityBayes(OfSigns):
  """The Bayes predictor of the task 'parity', by elimination over GF(2).

  An example is a linear equation in d bits, which say which features are relevant. If
  the features of the query are a sum modulo 2 of those of seen examples, its label is
  the sum of their labels. Otherwise it is a fair coin.
  """

  def predict(self, examples: Examples) -> Float[Array, '']:
    x, y, seen, x_query = examples
    d = x.shape[1]
    rows = jnp.append(x, y[:, None], axis=1) > 0
    rows = jnp.where(seen[:, None], rows, False).astype(jnp.int32)

    # Row j of the reduced echelon form has its first 1 in column j, or is 0.
    def reduce(form: Any, row: Any) -> Array:
      return (row + row[:d] @ form) % 2

    def insert(form: Any, row: Any) -> tuple[Array, None]:
      row = reduce(form, row)
      pivot = jnp.argmax(row[:d])
      # The row is 0 if no feature is left in it.
      row = row * row[pivot]
      changed = form[:, pivot] + (jnp.arange(d) == pivot).astype(jnp.int32)
      return (form + changed[:, None] * row[None]) % 2, None

    form, _ = jax.lax.scan(insert, jnp.zeros((d, d + 1), jnp.int32), rows)
    query = jnp.append(x_query > 0, False).astype(jnp.int32)
    query = reduce(form, query)
    label = query[d].astype(x.dtype)
    return losses.logit(jnp.where(jnp.any(query[:d] > 0), 0.5, label))


@struct.dataclass(eq=False, repr=False)
class NeighbourBayes(OfSigns):
  """The Bayes predictor of the task 'nearest_neighbour'.

  After `num_random` examples, and for copies of an example, the label is that of the
  nearest example; the first one counts if several are equally near. Otherwise it is a
  fair coin.

  Args:
    num_random: Number of examples whose labels are random.
  """

  num_random: int = struct.field(pytree_node=False)

  def predict(self, examples: Examples) -> Float[Array, '']:
    x, y, seen, x_query = examples
    agreement = jnp.where(seen, jnp.sum(x * x_query[None], axis=1), -jnp.inf)
    # This entry is chosen before the first example.
    agreement, y = jnp.append(agreement, -jnp.inf), jnp.append(y, 0)
    nearest = jnp.argmax(agreement)
    certain = (jnp.sum(seen) >= self.num_random) | (agreement[nearest] == x.shape[1])
    return losses.logit(jnp.where(certain, (1 + y[nearest]) / 2, 0.5))


@struct.dataclass(eq=False, repr=False)
class NaiveBayes(Baseline):
  """The logit `2 a·x_q` with `a = Σ_i y_i x_i / (k + d)` over k examples.

  The vector a has correlations of features and labels, shrunk by the d in the
  denominator, which matters most after few examples. To first order in a, this is the
  logit of naive Bayes for features ±1 whose means given the label are `±a_j`.
  """

  def predict(self, examples: Examples) -> Float[Array, '']:
    x, y, _, x_query = examples.zeroed()
    return 2 * jnp.dot(x_query, y @ x) / (examples.num_seen + x.shape[1])
