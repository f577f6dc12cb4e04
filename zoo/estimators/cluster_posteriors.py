"""Predictions of labels by sums over the partitions of a prompt into classes."""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float

from zoo.core import losses
from zoo.core.errors import UserError
from zoo.core.trees import Number, Vector
from zoo.estimators.baselines import Examples, OfClasses
from zoo.estimators.partitions import IMPOSSIBLE, Partitions, partitions


@struct.dataclass(eq=False, repr=False)
class ContextBayes(OfClasses):
  """The Bayes predictor for classes that are new in every prompt.

  It knows N, B and ε, that means are `~ N(0, I/D)`, and that all labels are equally
  probable. For B = 0 it also knows K and the probabilities of the classes. The density
  of a block of s points that have one label is `1/L` times the density of
  `N(0, (ε² I + 1 1ᵀ)/(D (1 + ε²)))` for each feature. The latter is, up to a constant
  for each point,
  `−2 log = D ((s − 1) log ε² + log(ε² + s)) + D (1 + ε²) M` with
  `M = Σ_i |x_i − x̄|²/ε² + s |x̄|²/(ε² + s)`.

  Args:
    context_length: Number of examples N.
    burstiness: Number B of examples of each class in a context, or 0.
    within: Scale ε of the points of a class around its mean.
    prior: Log probability of each partition, or a number if all are equally probable.
  """

  # Eight examples without bursts have 21,147 partitions.
  one_by_one = True

  context_length: int = struct.field(pytree_node=False)
  burstiness: int = struct.field(pytree_node=False)
  within: Number
  prior: Vector = 0.0

  def predict(self, examples: Examples) -> Float[Array, ' k']:
    table = partitions(self.context_length, self.burstiness)
    points = points_of(examples, self.context_length)
    blocks = jnp.asarray(table.blocks, points.x.dtype) * points.present[None]
    # `counts` says how often each label occurs in each block.
    counts = blocks @ points.y
    most = jnp.max(counts, axis=1)
    wrong = jnp.sum(counts, axis=1) - most
    densities = self._log_densities(points.x, blocks) + IMPOSSIBLE * wrong
    densities -= jnp.where(most > 0, math.log(counts.shape[1]), 0)
    # If no label of a block is known, it has all labels with equal probability.
    shares = (counts == most[:, None]).astype(counts.dtype)
    shares = shares / jnp.sum(shares, axis=1, keepdims=True)
    return predict_labels(table, densities, shares, points.is_last, self.prior)

  def _log_densities(
    self, x: Float[Array, 'n d'], blocks: Float[Array, 's n']
  ) -> Float[Array, ' s']:
    d, variance = x.shape[1], jnp.asarray(self.within, x.dtype) ** 2
    sizes = jnp.sum(blocks, axis=1)
    some = jnp.maximum(sizes, 1)
    # The scatter comes from differences of points, since ε may be small.
    squares = jnp.sum(jnp.square(x[:, None] - x[None]), axis=-1)
    scatter = jnp.sum(sums_over(blocks, squares) * blocks, axis=1) / (2 * some)
    sums = jnp.sum(jnp.square(sums_over(blocks, x)), axis=1)
    misfit = scatter / variance + sums / (some * (variance + some))
    log_det = (some - 1) * jnp.log(variance) + jnp.log(variance + some)
    # The log determinant of one point then is 0.
    log_det -= jnp.log1p(variance) * some
    density = -d * (log_det + (1 + variance) * misfit) / 2
    return jnp.where(sizes > 0, density, 0)


class Points(NamedTuple):
  """The N examples and the query of a prompt, of which some may be absent.

  Attributes:
    x: Features of the points.
    y: Labels of the points, one-hot; 0 for the query.
    present: 1 for points that are present, else 0.
    is_last: Whether all N examples are seen, so that the query is the last point.
  """

  x: Float[Array, 'n d']
  y: Float[Array, 'n k']
  present: Float[Array, ' n']
  is_last: Bool[Array, '']


def points_of(examples: Examples, context_length: int) -> Points:
  """Returns the examples and the query as points.

  The query is the last point or, if not all N examples are seen, stands in the place of
  example N. The order of examples says nothing, so any example that is not seen may be
  the next one.

  Raises:
    UserError: If the prompt has more than `context_length` examples.
  """
  x, y, seen, x_query = examples.zeroed()
  missing = context_length - len(x)
  if missing < 0:
    raise UserError(
      f'the prompt has {len(x)} examples, and the predictor is for {context_length}'
    )
  x, y = (jnp.pad(a, ((0, missing + 1), (0, 0))) for a in (x, y))
  seen = jnp.pad(seen, (0, missing + 1))
  is_last = jnp.sum(seen) == context_length
  place = jnp.where(is_last, context_length, context_length - 1)
  x, present = x.at[place].set(x_query), seen.at[place].set(True)
  return Points(x, y, present.astype(x.dtype), is_last)


def predict_labels(
  table: Partitions,
  densities: Float[Array, ' s'],
  shares: Float[Array, 's k'],
  is_last: Bool[Array, ''],
  prior: Vector = 0.0,
) -> Float[Array, ' k']:
  """Returns the log probabilities of the labels of the query.

  Args:
    table: The partitions of the prompt.
    densities: Log density of each block.
    shares: Probabilities of the labels of each block.
    is_last: Whether all N examples are seen.
    prior: Log probability of each partition, or a number if all are equally probable.
  """
  of_block = block_of_query(table, densities, is_last, prior)
  return losses.log_probability(of_block @ shares)


def block_of_query(
  table: Partitions,
  densities: Float[Array, ' s'],
  is_last: Bool[Array, ''],
  prior: Vector = 0.0,
) -> Float[Array, ' s']:
  """Returns the probability that the query is in each block.

  Args:
    table: The partitions of the prompt.
    densities: Log density of each block.
    is_last: Whether all N examples are seen.
    prior: Log probability of each partition, or a number if all are equally probable.
  """
  scores = jnp.sum(densities[table.rows], axis=1) + jnp.asarray(prior, densities.dtype)
  holders = jnp.where(is_last, table.holders[:, 1], table.holders[:, 0])
  return jnp.zeros_like(densities).at[holders].add(jax.nn.softmax(scores))


def sums_over(
  blocks: Float[Array, 's n'], values: Float[Array, 'n k']
) -> Float[Array, 's k']:
  """Returns the sum of the values of the points of each block."""
  # Sums are in the thousands, and posteriors depend on differences of a few units.
  return jnp.matmul(blocks, values, precision='highest')
