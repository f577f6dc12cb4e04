"""Two layers of linear attention that commute with rotations of the features.

Every head is `P = diag(b I, c)`, `A = diag(a I, α)` in coordinates
`[Σ^-½ x; y − w*·x]`; docs/theory_depth.md.
"""

import functools
import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import ArrayLike, Float

from zoo.core.errors import check_array, check_number
from zoo.core.learning_rule import AnyArray
from zoo.core.protocols import Task
from zoo.tasks import LinearRegression
from zoo.tasks.linear_regression import require_covered
from zoo.theory.deep.gd_plus_plus import gd_plus_plus_optimum
from zoo.theory.deep.trace_moments import prior_variance, trace_moment
from zoo.theory.search import least_squares

# The sorted powers j in a product of forms `yᵀ Kʲ y / C`, with `K = XXᵀ/C`.
_Forms = tuple[int, ...]
# `Sᵏ⁻¹ r` times such a product, or for k = 0 the product alone.
_Term = tuple[int, _Forms]
_Sum = dict[_Term, Any]  # the coefficient of each term
_NUM_STARTS = 20  # of the search


class InvariantNetwork(NamedTuple):
  """The sums over the heads of each of two layers, and the readout."""

  first: Float[np.ndarray, '2 2']  # [[u, v], [w, z]]
  second: Float[np.ndarray, ' 2']  # [w, z]
  readout: float  # ρ


class InvariantOptimum(NamedTuple):
  """A lower bound of the least risk, computed in float64, and the lowest risk found."""

  lower: float  # no sum of the terms that occur has a lower risk, up to rounding
  upper: float  # the lowest found by a search, at `weights`
  weights: InvariantNetwork


def invariant_risk(
  task: Task,
  first: ArrayLike | Sequence[Sequence[float]],
  second: ArrayLike | Sequence[float],
  readout: float = 1.0,
) -> float:
  """The exact risk of two layers that commute with rotations, from the prior mean.

  With `G = [[S, r], [rᵀ, q]]` and `first = [[u, v], [w, z]]` the first layer is

      T = I + [[u S, v r], [w rᵀ, z q]],

  which two heads can realise; more heads realise nothing else. The second layer has the
  same form with `T G Tᵀ` for G; since only the query's label entry is read, times
  `readout`, `second` is the layer's `[w, z]` alone. With v = z = 0 this is a network of
  the GD++ family. Raises UserError naming the argument that is wrong, and unless ΣΛ is
  a positive multiple of the identity.
  """
  task = require_covered(task)
  first = check_array('first', first, [(2, 2)])
  second = check_array('second', second, [(2,)])
  readout = check_number('readout', readout)
  variance, moments = float(prior_variance(task)), _Moments(task)
  numbers = [*first.ravel().tolist(), *second.tolist(), readout]
  learned = _learned(numbers)
  signal = sum(x * moments.with_truth(term) for term, x in learned.items())
  square = sum(
    x * y * moments.product(left, right)
    for (left, x), (right, y) in itertools.product(learned.items(), repeat=2)
  )
  return task.num_features * variance - 2 * signal + square


def invariant_optimum(task: Task) -> InvariantOptimum:
  """Bounds of the least `invariant_risk`: one certified in float64, one from a search.

  The lower bound is the least risk of any linear combination of the 14 terms that occur
  in the predictions of such networks; it is computed by a Cholesky decomposition in
  float64, whose rounding errors are not bounded. The upper bound comes from local
  searches near the best network of the GD++ family; it is not proved to be the infimum.
  Raises UserError unless ΣΛ is a positive multiple of the identity.
  """
  task = require_covered(task)
  moments = _Moments(task)
  terms = sorted(_learned(range(1, 8)))
  targets = np.array([moments.with_truth(term) for term in terms])
  gram = np.array([[moments.product(left, right) for right in terms] for left in terms])

  # The squares of the residuals below sum to the risk above the bound.
  scale = np.sqrt(np.diag(gram))
  root = np.linalg.cholesky(gram / np.outer(scale, scale))
  best = np.linalg.solve(root, targets / scale)
  lower = task.num_features * float(prior_variance(task)) - float(best @ best)

  def residuals(point: Float[AnyArray, ' p']) -> Float[AnyArray, ' r']:
    learned, xp = _learned([*point]), point.__array_namespace__()
    return (xp.stack([learned[term] for term in terms]) * scale) @ root - best

  ends = least_squares(residuals, [*_starts(task)])
  point = min(ends, key=lambda end: np.sum(np.square(residuals(end))))
  weights = InvariantNetwork(point[:4].reshape(2, 2), point[4:6], float(point[6]))
  return InvariantOptimum(lower, invariant_risk(task, *weights), weights)


def _starts(task: LinearRegression) -> Iterator[Float[np.ndarray, ' p']]:
  """Points near the best network of the GD++ family, for whitened features."""
  d, variance = task.num_features, float(prior_variance(task))
  prior, noise = variance * np.eye(d), task.noise_std
  whitened = LinearRegression(
    d, task.context_length, prior_covariance=prior, noise_std=noise
  )
  steps, preconditions, readout = gd_plus_plus_optimum(whitened, 2).weights
  centre = np.array([preconditions[0], 0, steps[0], 0, steps[1], 0, readout])
  random = np.random.default_rng(0)
  for _ in range(_NUM_STARTS):
    # S is of order 1, and r rᵀ and q are of the order of the prior variance.
    away = [0, 1e-3, 0, 1e-3, 0, 1e-3, 0] * random.normal(size=7) / variance
    yield centre * (1 + 0.05 * random.normal(size=7)) + away


def _learned(weights: Sequence[Any]) -> _Sum:
  """The weights that a network learns in context, minus w*: a vector.

  `ρ [w r + w' (I + uS) r' + z' w q' r]` with w' and z' of the second layer, and r' and
  q' the entries of `T G Tᵀ`.
  """
  u, v, w, z, second_w, second_z, readout = weights
  unit, q, r, s_r = {(0, ()): 1}, {(0, (0,)): 1}, {(1, ()): 1}, {(2, ()): 1}

  def moved(vector: _Sum) -> _Sum:
    """`(I + uS)` times a vector."""
    return _add(
      (1, vector), (u, {(k + 1, forms): x for (k, forms), x in vector.items()})
    )

  label, square = _add((1, unit), (z, q)), _times(r, r)
  next_r = _add(
    (w, moved(s_r)),
    (v * w, _times(square, r)),
    (1, _times(label, _add((1, moved(r)), (v, _times(q, r))))),
  )
  next_q = _add(
    (w * w, _times(r, s_r)),
    (2 * w, _times(label, square)),
    (1, _times(label, _times(label, q))),
  )
  return _add(
    (readout * w, r),
    (readout * second_w, moved(next_r)),
    (readout * second_z * w, _times(next_q, r)),
  )


def _add(*parts: tuple[Any, _Sum]) -> _Sum:
  total = defaultdict(int)
  for factor, part in parts:
    for term, x in part.items():
      total[term] += factor * x
  return dict(total)


def _times(left: _Sum, right: _Sum) -> _Sum:
  """The product of two sums; of vectors, `Sⁱr · Sʲr = C yᵀ Kⁱ⁺ʲ⁺¹ y / C²`."""
  total = defaultdict(int)
  for (first, x), (second, y) in itertools.product(left.items(), right.items()):
    (i, forms), (j, others) = first, second
    power, joined = i + j, forms + others
    if i and j:
      power, joined = 0, (*joined, i + j - 1)
    total[power, tuple(sorted(joined))] += x * y
  return dict(total)


class _Moments:
  """Expectations of products of vectors, with one another and with the truth ŵ − w*.

  Given X, the labels are `N(0, CM)` with `M = aK + σ²/C` and a the prior variance, and
  the truth has the mean `a Xᵀ (CM)⁻¹ y`. The expectation of a product of quadratic
  forms is a sum over their partitions into blocks, of products of the blocks'
  cumulants: `2ᵐ⁻¹ (m − 1)! tr (product of M Kʲ)` for a block of m forms. All matrices
  are functions of K, and all sums are of positive numbers.
  """

  def __init__(self, task: LinearRegression):
    self.sizes = task.num_features, task.context_length
    self.variance = float(prior_variance(task))
    self.noise = task.noise_std**2 / task.context_length
    self.in_traces = functools.cache(self._in_traces)

  def product(self, left: _Term, right: _Term) -> float:
    """`E u·v`."""
    ((_, forms),) = _times({left: 1}, {right: 1})
    return self._expected(forms, False)

  def with_truth(self, term: _Term) -> float:
    """`E u·(ŵ − w*)` for a term u; its `Sᵏ⁻¹r` gives the form `a yᵀ Kᵏ (CM)⁻¹ y`."""
    power, forms = term
    return self.variance * self._expected((power, *forms), True)

  def _expected(self, powers: _Forms, inverse: bool) -> float:
    """The mean of a product of forms `yᵀKʲy/C`, the first with (CM)⁻¹ if `inverse`."""
    d, c = self.sizes
    total = 0.0
    for orders, factor in self.in_traces(powers, inverse).items():
      # `tr K⁰ = C`, and all others are `tr Sʲ`.
      positive = tuple(sorted((order for order in orders if order), reverse=True))
      zeros = len(orders) - len(positive)
      moment = trace_moment(d, c, positive) / c ** sum(positive)
      total += factor * c**zeros * moment
    return total

  def _in_traces(self, powers: _Forms, inverse: bool) -> dict[_Forms, float]:
    """That mean given X: the coefficients of products `Π tr Kʲ`.

    The blocks that the first form may be in are taken out one by one.
    """
    if not powers:
      return {(): 1.0}
    total, (first, *rest) = defaultdict(float), powers
    for size in range(len(rest) + 1):
      for joined in itertools.combinations(range(len(rest)), size):
        power = first + sum(rest[i] for i in joined)
        left = tuple(rest[i] for i in range(len(rest)) if i not in joined)
        n = size if inverse else size + 1  # Mⁿ is a sum of powers of K
        for i in range(n + 1):
          factor = 2**size * math.factorial(size) * math.comb(n, i)
          factor *= self.variance**i * self.noise ** (n - i)
          for orders, x in self.in_traces(left, False).items():
            total[tuple(sorted((*orders, power + i)))] += factor * x
    return {orders: x for orders, x in total.items() if x}
