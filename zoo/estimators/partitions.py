"""Partitions of the examples of a prompt into classes, and how probable they are."""

from __future__ import annotations

import functools
import itertools
import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

# A predictor sums over at most this many partitions.
MOST = 30_000
# An impossible event has this log probability. It is finite, so that a prompt that no
# partition explains has a prediction, too, as if labels were wrong very rarely.
IMPOSSIBLE = -1e9


class Partitions(NamedTuple):
  """All partitions of N examples and a query, the last point, into blocks.

  Attributes:
    blocks: Whether each point is in each block. The last block has no points.
    rows: Numbers of the blocks of each partition, filled up with the last block.
    holders: Number of the block of the last example, and of the query, in each
      partition.
  """

  blocks: Bool[np.ndarray, 's n']
  rows: Int[np.ndarray, 'r m']
  holders: Int[np.ndarray, 'r 2']


def count(context_length: int, burstiness: int) -> int:
  """Returns the number of partitions of a prompt.

  For B > 0 the examples are in blocks of B, and the query is in any of these. For B = 0
  blocks have any size, and the query may be alone.

  Args:
    context_length: Number of examples N.
    burstiness: Number B of examples of a block, which divides N, or 0.
  """
  n, b = context_length, burstiness
  if b:
    return (
      math.factorial(n) // math.factorial(b) ** (n // b) // math.factorial(n // b - 1)
    )
  bell = [1]
  for k in range(n + 1):
    bell.append(sum(math.comb(k, j) * bell[j] for j in range(k + 1)))
  return bell[-1]


def is_small(context_length: int, burstiness: int) -> bool:
  """Returns whether there are few enough partitions to sum over them."""
  # The number of partitions is too large to compute.
  if not burstiness and context_length > MOST.bit_length():
    return False
  return count(context_length, burstiness) <= MOST


@functools.lru_cache(maxsize=8)
def partitions(context_length: int, burstiness: int) -> Partitions:
  """Returns all partitions of a prompt, in a fixed order."""
  n = context_length
  if burstiness:
    parts = [
      [block + (n,) * (i == joined) for i, block in enumerate(part)]
      for part in _equal(tuple(range(n)), burstiness)
      for joined in range(n // burstiness)
    ]
  else:
    parts = _any(n + 1)
  distinct = sorted({block for part in parts for block in part})
  index = {block: i for i, block in enumerate(distinct)}
  blocks = np.zeros((len(distinct) + 1, n + 1), bool)
  for i, block in enumerate(distinct):
    blocks[i, list(block)] = True
  rows = np.full((len(parts), max(map(len, parts))), len(distinct), np.int32)
  for row, part in zip(rows, parts, strict=True):
    row[: len(part)] = [index[block] for block in part]
  # In each row, one block has the point n − 1, and one has the point n.
  holders = [
    np.take_along_axis(rows, np.argmax(blocks[rows, point], axis=1)[:, None], 1)
    for point in (n - 1, n)
  ]
  return Partitions(blocks, rows, np.concatenate(holders, axis=1))


def _equal(points: tuple[int, ...], size: int) -> list[list[tuple[int, ...]]]:
  """Returns the partitions of points into blocks of one size."""
  if not points:
    return [[]]
  first, *rest = points
  return [
    [(first, *others), *part]
    for others in itertools.combinations(rest, size - 1)
    for part in _equal(tuple(p for p in rest if p not in others), size)
  ]


def _any(n: int) -> list[list[tuple[int, ...]]]:
  """Returns all partitions of n points."""
  parts: list[list[tuple[int, ...]]] = [[]]
  for point in range(n):
    parts = [
      [*part[:i], (*block, point), *part[i + 1 :]]
      for part in parts
      for i, block in enumerate([*part, ()])
    ]
  return parts


def log_prior(
  context_length: int, law: Float[np.ndarray, ' m']
) -> Float[np.ndarray, ' r']:
  """Returns the log probability of each partition if B = 0: points draw their classes.

  A partition into blocks of sizes `s_1 … s_r` has the probability `Σ Π_j law(k_j)^s_j`,
  a sum over different classes `k_1 … k_r`. (For B > 0 all partitions are equally
  probable.)

  Args:
    context_length: Number of examples N.
    law: Probability of each class.
  """
  table = partitions(context_length, 0)
  sizes = np.sort(table.blocks.sum(1)[table.rows], axis=1)[:, ::-1]
  kinds, kind_of = np.unique(sizes, axis=0, return_inverse=True)
  weights = _sum_over_classes(kinds, law)
  possible = weights > 0
  logs = np.log(np.where(possible, weights, 1))
  return np.where(possible, logs, IMPOSSIBLE)[kind_of.ravel()]


def _sum_over_classes(
  kinds: Int[np.ndarray, 'p m'], law: Float[np.ndarray, ' m2']
) -> Float[np.ndarray, ' p']:
  """Returns, for each list of sizes, the sum over different classes for the blocks.

  Classes are added one after the other; each takes one of the blocks, or none. All
  terms are positive.

  Returns:
    A sum for each row of `kinds`, `[p]`.
  """
  length = kinds.shape[1]
  subsets = np.arange(2**length)
  sums = np.zeros((len(kinds), 2**length))
  sums[:, 0] = 1
  for probability in law:
    powers = probability**kinds
    before = sums.copy()
    for j in range(length):
      having = subsets[subsets >> j & 1 == 1]
      sums[:, having] += powers[:, j, None] * before[:, having ^ (1 << j)]
  full = 2 ** np.sum(kinds > 0, axis=1) - 1
  return sums[np.arange(len(kinds)), full]
