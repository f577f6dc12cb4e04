"""A lower bound of the risk of linear transformers with any weights.

All arithmetic is in fractions, so the result is exact for the task's float parameters.
"""

import functools
from collections.abc import Iterator
from fractions import Fraction

import numpy as np

from zoo.core.errors import UserError, check_count
from zoo.core.protocols import Task
from zoo.estimators.linear_prior import second_moments
from zoo.tasks import LinearRegression
from zoo.tasks.linear_regression import require_covered

_Traces = tuple[int, ...]  # The powers t in Π tr Wᵗ, the largest first, are in it.


def lower_bound(task: Task, degree: int) -> Fraction:
  """Returns the least risk of predictions whose weights are a polynomial in G.

  L layers of linear attention with any weights, any number of heads and any affine
  guess have at most the degree `(3^L − 1)/2` (`deep.degree`), so none has a lower risk.
  The best polynomial is a sum of the terms `Sᵏ r Π_j tr S^(t_j)` with `k + 1 + Σ_j t_j
  ≤ degree`. The time is seconds up to degree 6.

  Args:
    task: A `linear_regression` for which ΣΛ is a positive multiple of the identity.
    degree: The degree in G, ≥ 1.

  Returns:
    The risk, as a fraction.

  Raises:
    UserError: If the theory does not cover the task or its covariances, or `degree` is
      out of its range.

  Example:
    >>> task = zoo.tasks.LinearRegression(num_features=2, context_length=3)
    >>> print(zoo.theory.deep.lower_bound(task, zoo.theory.deep.degree(2)))
    2/5

  References:
    docs/theory_depth.md.
  """
  degree = check_count('degree', degree)
  task = require_covered(task)
  d, c = task.num_features, task.context_length
  variance = prior_variance(task)
  noise = Fraction(task.noise_std) ** 2
  terms = [
    (power, traces)
    for order in range(degree)
    for power in range(order + 1)
    for traces in _partitions(order - power)
  ]

  # The terms use W = XᵀX, whose moments are integers; factors 1/C go to coefficients.
  def target(term: tuple[int, _Traces]) -> Fraction:
    power, traces = term
    return variance * trace_moment(d, c, _sorted(power + 1, *traces))

  def product(left: tuple[int, _Traces], right: tuple[int, _Traces]) -> Fraction:
    power, traces = left[0] + right[0], left[1] + right[1]
    signal = variance * trace_moment(d, c, _sorted(power + 2, *traces))
    return signal + noise * trace_moment(d, c, _sorted(power + 1, *traces))

  targets = [target(term) for term in terms]
  gram = [[product(left, right) for right in terms] for left in terms]
  return d * variance - _explained(gram, targets)


@functools.cache
def trace_moment(num_features: int, context_length: int, traces: _Traces) -> int:
  """Returns `E Π_i tr W^(t_i)` for `W = XᵀX` with X standard normal.

  X has the shape `[context_length, num_features]`. Integration by parts in one factor
  of `tr Wᵏ`, with k the largest power and F the other traces, gives

      E tr Wᵏ F = (C + k − 1) E tr Wᵏ⁻¹ F + Σ_{j<k−1} E tr Wʲ⁺¹ tr W^(k−2−j) F
                  + Σ_i 2 t_i E tr W^(k + t_i − 1) F / tr W^(t_i).
  """
  if not traces:
    return 1
  largest, *others = traces
  if largest == 0:
    return num_features ** len(traces)
  d, c = num_features, context_length
  total = (c + largest - 1) * trace_moment(d, c, _sorted(largest - 1, *others))
  for j in range(largest - 1):
    total += trace_moment(d, c, _sorted(j + 1, largest - 2 - j, *others))
  for i, power in enumerate(others):
    rest = others[:i] + others[i + 1 :]
    total += 2 * power * trace_moment(d, c, _sorted(largest + power - 1, *rest))
  return total


def _sorted(*powers: int) -> _Traces:
  return tuple(sorted(powers, reverse=True))


def _partitions(order: int, largest: int | None = None) -> Iterator[_Traces]:
  """Yields the partitions of a number into parts, the largest first."""
  if order == 0:
    yield ()
    return
  for part in range(min(order, largest or order), 0, -1):
    for rest in _partitions(order - part, part):
      yield (part, *rest)


def _explained(gram: list[list[Fraction]], targets: list[Fraction]) -> Fraction:
  """Returns `tᵀ G⁺ t` by elimination, skipping linearly dependent terms."""
  rows = [[*row, target] for row, target in zip(gram, targets, strict=True)]
  explained = Fraction(0)
  for i, row in enumerate(rows):
    if row[i] == 0:  # With few features the traces of powers are dependent.
      continue
    explained += row[-1] ** 2 / row[i]
    for other in rows[i + 1 :]:
      ratio = other[i] / row[i]
      if ratio:
        other[:] = [x - ratio * y for x, y in zip(other, row, strict=True)]
  return explained


def prior_variance(task: LinearRegression) -> Fraction:
  """Returns the variance a of ŵ along each whitened feature, `ΣΛ = aI`.

  Raises:
    UserError: If ΣΛ is not a positive multiple of the identity.
  """
  prior, features = second_moments(task)
  product = features @ prior
  variance, identity = product[0, 0], np.eye(len(product))
  # The product of rounded covariances has rounding errors.
  if variance <= 0 or np.abs(product - variance * identity).max() > 1e-12 * variance:
    raise UserError(
      'the product of feature_covariance and prior_covariance is not a positive '
      'multiple of the identity; only then is the bound for linear transformers known'
    )
  return Fraction(float(variance))
