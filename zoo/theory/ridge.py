"""Risks of ridge regression and of the posterior mean, between certified bounds."""

import math
from typing import NamedTuple

import numpy as np

from zoo.core.errors import UserError, check_object
from zoo.core.matrices import scales_and_axes
from zoo.core.protocols import Task
from zoo.estimators.linear import Ridge, bayes
from zoo.estimators.linear_prior import second_moments
from zoo.tasks import LinearRegression
from zoo.tasks.linear_regression import require_covered
from zoo.theory import wishart

# These numbers of quadrature points are tried in turn, until the bounds agree.
_NUM_POINTS = 8, 16, 32, 64
_AGREE = 1e-12


class RiskBounds(NamedTuple):
  """Proved bounds of a risk, up to rounding; equal if the risk has a closed form.

  Attributes:
    lower: The lower bound.
    upper: The upper bound.
  """

  lower: float
  upper: float


class _Seen(NamedTuple):
  """A task as an estimator sees it.

  Attributes:
    features: r, the number of features that the estimator sees.
    scales: The least and the largest standard deviation of these features.
    spread: ν, the risk of the start.
  """

  features: int
  scales: tuple[float, float]
  spread: float


def bayes_risk(task: Task) -> RiskBounds:
  """Returns bounds of the least risk of any predictor, that of the posterior mean.

  The bounds are equal without noise.

  Args:
    task: A `linear_regression`. With noise, or with fewer examples than ΣΛ has nonzero
      eigenvalues, these eigenvalues must be equal.

  Returns:
    The lower and the upper bound.

  Raises:
    UserError: If the theory does not cover the task, or such eigenvalues of ΣΛ differ.

  Example:
    >>> task = zoo.tasks.LinearRegression(
    ...   num_features=2, context_length=3, noise_std=0.5
    ... )
    >>> bounds = zoo.theory.bayes_risk(task)
    >>> round(bounds.lower, 5), round(bounds.upper, 5)
    (0.40303, 0.40309)

  References:
    docs/theory_one_layer.md, section 6.
  """
  return ridge_risk(bayes(task), task)


def ridge_risk(estimator: Ridge, task: Task) -> RiskBounds:
  """Returns bounds of the risk of ridge regression, least squares or Bayes.

  The risk is the average, over the eigenvalues s of S = XᵀX/C, of

      (ν λ² + b s)/(s + λ)² = b/(s + λ) + λ (νλ − b)/(s + λ)².

  Here the rows of X are the features of the C examples, in units in which their
  variance is 1; `λ = penalty/C` in these units; ν is the risk of the start; r is the
  number of features that the estimator sees; σ is the standard deviation of the noise;
  and `b = σ² r/C`. The derivatives of both terms alternate in sign, so a Gauss rule and
  a Gauss–Radau rule with a point at 0 bound each term from its two sides.

  Args:
    estimator: Ridge regression, least squares or the posterior mean, as
      `zoo.estimators.ridge`, `ols` and `bayes` make them. With a penalty > 0, the
      features that it sees must have equal variances.
    task: A `linear_regression`.

  Returns:
    The lower and the upper bound. They are equal without a penalty.

  Raises:
    UserError: If the theory does not cover the task; if the estimator is no `Ridge`,
      uses squares of features, has a penalty and sees unequal variances, or cannot
      reach every ŵ from its start; or for least squares with fewer examples than
      features, if their variances differ.

  Example:
    >>> task = zoo.tasks.LinearRegression(
    ...   num_features=2, context_length=3, noise_std=0.5
    ... )
    >>> bounds = zoo.theory.ridge_risk(zoo.estimators.ridge(task, penalty=0.5), task)
    >>> round(bounds.lower, 5), round(bounds.upper, 5)
    (0.43776, 0.43777)

  References:
    docs/theory_one_layer.md, section 6. Golub & Meurant, Matrices, Moments and
    Quadrature, section 6.
  """
  needs = 'it must be one of zoo.estimators, such as ridge, ols or bayes makes'
  check_object('a ridge regression', estimator, Ridge, needs)
  task = require_covered(task)
  seen = _as_seen(estimator, task)
  if estimator.penalty == 0 or seen.features == 0:
    risk = _least_squares_risk(seen, task)
    return RiskBounds(risk, risk)
  smallest, largest = seen.scales
  if smallest < (1 - 1e-12) * largest:
    raise UserError(
      f'the features that the estimator sees have variances from {smallest**2:g} to '
      f'{largest**2:g}; with a penalty > 0 its risk is known only if they are equal, '
      'for the posterior mean the eigenvalues of ΣΛ'
    )
  bounds = RiskBounds(-math.inf, math.inf)
  for num_points in _NUM_POINTS:
    bounds = _quadrature(estimator.penalty / largest**2, seen, task, num_points)
    if bounds.upper - bounds.lower <= _AGREE * bounds.upper:
      break
  return bounds


def _quadrature(
  penalty: float, seen: _Seen, task: LinearRegression, num_points: int
) -> RiskBounds:
  r, c = seen.features, task.context_length
  # XᵀX and XXᵀ share their nonzero eigenvalues; the number of zeros is known.
  few, many = min(r, c), max(r, c)
  shrinkage = penalty / c
  noise = task.noise_std**2 * r / c
  rules = (
    wishart.spectrum(few, many, num_points),
    wishart.spectrum_with_zero(few, many, num_points),
  )
  means = []
  for points, weights in rules:
    inverse = 1 / (points * many / c + shrinkage)
    # It is multiplied in this order because the square of a large λ overflows.
    squares = weights @ (shrinkage * inverse * inverse)
    rest = (seen.spread * shrinkage - noise) * squares
    means.append((noise * (weights @ inverse), rest))
  (low, gauss), (high, radau) = means
  unseen = (1 - few / r) * seen.spread
  lower = unseen + few / r * (low + min(gauss, radau))
  upper = unseen + few / r * (high + max(gauss, radau))
  # Bounds that agree up to rounding may be in the wrong order.
  return RiskBounds(max(float(min(lower, upper)), 0.0), float(max(lower, upper)))


def _as_seen(estimator: Ridge, task: LinearRegression) -> _Seen:
  """Returns the features `rootᵀ x` that an estimator sees, and its start's risk."""
  if estimator.squares:
    raise UserError(
      'squares is True; the exact risk of ridge regression on squares is not known'
    )
  start = np.zeros(task.num_features) if estimator.start is None else estimator.start
  deviation, features = second_moments(task, start)
  standard, axes = scales_and_axes(features)
  feature_root = standard[:, None] * axes.T
  own = feature_root if estimator.root is None else feature_root @ estimator.root
  seen, scales, _ = np.linalg.svd(own)
  rank = int(np.sum(scales > 1e-12 * scales[0]))
  spread = feature_root @ deviation @ feature_root.T
  unseen = np.trace(seen[:, rank:].T @ spread @ seen[:, rank:])
  if unseen > 1e-12 * np.trace(spread):
    raise UserError(
      'prior_covariance is singular and the start is not the prior mean; least squares '
      'that cannot reach every ŵ has no closed form'
    )
  least = float(scales[rank - 1]) if rank else 0.0
  return _Seen(rank, (least, float(scales[0])), float(np.trace(spread)))


def _least_squares_risk(seen: _Seen, task: LinearRegression) -> float:
  """Returns the risk of least squares, with the solution nearest to a start.

  With C ≥ r it recovers ŵ up to noise, whose mean effect follows from the inverse
  Wishart distribution: `σ² r/(C − r − 1)`. With C < r it recovers the projection on C
  directions. These are uniformly distributed if all r features have the same variance,
  so that a fraction `1 − C/r` of the prior's spread remains.

  Raises:
    UserError: If C < r and the features have different variances.
  """
  rank, (smallest, largest), spread = seen
  c = task.context_length
  noise = task.noise_std**2
  if rank == 0:
    return spread
  if c < rank and smallest < (1 - 1e-12) * largest:
    raise UserError(
      f'context_length is {c}, less than the rank {rank} of the features, whose '
      'variances differ; least squares then has no closed form'
    )
  unseen = max(1 - c / rank, 0.0) * spread
  if noise == 0:
    return unseen
  freedom = abs(c - rank) - 1
  return unseen + noise * min(c, rank) / freedom if freedom > 0 else math.inf
