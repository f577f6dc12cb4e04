"""Risks of ridge regression and of the posterior mean, between certified bounds."""

import math
from typing import NamedTuple

import numpy as np

from zoo.core.errors import UserError
from zoo.core.matrices import scales_and_axes
from zoo.core.protocols import Task
from zoo.estimators.linear import Ridge, bayes
from zoo.estimators.linear_prior import second_moments
from zoo.tasks import LinearRegression
from zoo.tasks.linear_regression import require_covered
from zoo.theory import wishart

# Numbers of quadrature points, tried until the bounds agree.
_NUM_POINTS = 8, 16, 32, 64
_AGREE = 1e-12


class RiskBounds(NamedTuple):
  """Proved bounds of a risk, up to rounding; equal if the risk has a closed form."""

  lower: float
  upper: float


class _Seen(NamedTuple):
  """A task as an estimator sees it."""

  features: int  # r
  scales: tuple[float, float]  # the least and the largest standard deviation
  spread: float  # ν, the risk of the start


def bayes_risk(task: Task) -> RiskBounds:
  """Bounds of the least risk of any predictor, which is that of the posterior mean.

  The bounds are equal without noise. Raises UserError for a task that exact theory does
  not cover, and if the nonzero eigenvalues of ΣΛ differ while there is noise or the
  context is shorter than their number.
  """
  return ridge_risk(bayes(task), task)


def ridge_risk(estimator: Ridge, task: Task) -> RiskBounds:
  """Bounds of the risk of ridge regression, least squares or the posterior mean.

  With `λ = penalty/C`, in units in which the features have variance 1, and
  `b = σ² r/C`, the risk is the average over the spectrum of S of

      (ν λ² + b s)/(s + λ)² = b/(s + λ) + λ (νλ − b)/(s + λ)².

  The derivatives of both terms alternate in sign, so a Gauss rule and a Gauss–Radau
  rule with a point at 0 bound each term. Raises UserError naming the property of the
  estimator or task that is not covered.
  """
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
  rest = shrinkage * (seen.spread * shrinkage - noise)
  rules = (
    wishart.spectrum(few, many, num_points),
    wishart.spectrum_with_zero(few, many, num_points),
  )
  means = []
  for points, weights in rules:
    inverse = 1 / (points * many / c + shrinkage)
    means.append((noise * (weights @ inverse), rest * (weights @ inverse**2)))
  (low, gauss), (high, radau) = means
  unseen = (1 - few / r) * seen.spread
  lower = unseen + few / r * (low + min(gauss, radau))
  upper = unseen + few / r * (high + max(gauss, radau))
  # Bounds that agree up to rounding may be in the wrong order.
  return RiskBounds(float(min(lower, upper)), float(max(lower, upper)))


def _as_seen(estimator: Ridge, task: LinearRegression) -> _Seen:
  """The features `rootᵀ x` of an estimator, and the distance of its start from ŵ."""
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
  """The risk of least squares, with the solution nearest to a start.

  With C ≥ r it recovers ŵ up to noise, whose mean effect follows from the inverse
  Wishart distribution: `σ² r/(C − r − 1)`. With C < r it recovers the projection on C
  directions; they are uniformly distributed if all r features have the same variance,
  so a fraction `1 − C/r` of the prior's spread remains.
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
