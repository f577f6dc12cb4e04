"""Partitions of the examples of a prompt into classes, and how probable they are."""

from __future__ import annotations

import functools
import itertools
import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

MOST = 30_000  # partitions over which a predictor sums
# The logarithm of what cannot be. It is finite, so that a prompt that no partition
# explains has a prediction too, as if labels were wrong very rarely.
IMPOSSIBLE = -1e9


class Partitions(NamedTuple):
  """All partitions of N examples and a query, the last point, into blocks."""

  blocks: Bool[np.ndarray, 's n']  # the points of each block; the last has none
  rows: Int[np.ndarray, 'r m']  # the blocks of each partition, then the empty block
  # The block of the last example and that of the query, in each partition.
  holders: Int[np.ndarray, 'r 2']


def count(context_length: int, burstiness: int) -> int:
  """The number of partitions, for B > 0 of N examples into blocks of B.

  The query is in any block. For B = 0 blocks have any size, and it may be alone.
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
  """Whether there are few enough partitions to sum over."""
  if not burstiness and context_length > MOST.bit_length():  # the number is huge
    return False
  return count(context_length, burstiness) <= MOST


@functools.lru_cache(maxsize=8)
def partitions(context_length: int, burstiness: int) -> Partitions:
  """All partitions of a prompt, in a fixed order."""
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
  # The block of a row that has the point.
  holders = [
    np.take_along_axis(rows, np.argmax(blocks[rows, point], axis=1)[:, None], 1)
    for point in (n - 1, n)
  ]
  return Partitions(blocks, rows, np.concatenate(holders, axis=1))


def _equal(points: tuple[int, ...], size: int) -> list[list[tuple[int, ...]]]:
  """The partitions of points into blocks of one size."""
  if not points:
    return [[]]
  first, *rest = points
  return [
    [(first, *others), *part]
    for others in itertools.combinations(rest, size - 1)
    for part in _equal(tuple(p for p in rest if p not in others), size)
  ]


def _any(n: int) -> list[list[tuple[int, ...]]]:
  """All partitions of n points."""
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
  """The log probability of each partition for B = 0, where each point draws its class.

  A partition into blocks of sizes `s_1 … s_r` has `Σ Π_j law(k_j)^s_j`, the sum over
  different classes `k_1 … k_r`. (For B > 0 all partitions are equally likely.)
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
  """For each list of sizes, the sum over different classes for the blocks.

  Class after class: it takes one of the blocks, or none. All terms are positive.
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
