"""The weights of the mixtures of predictors that are nearest to a model."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from jaxtyping import Float

from zoo.core.losses import ROUNDING
from zoo.probing.nearest.context import distances

# A mixture must be nearer than a single predictor by this share of rounding.
_TIE = 0.01
_CONVERGED = 1e-16  # Newton's method stops if a step can gain less than this, in nats.
_NUM_STEPS = 100  # Newton's method takes at most this many steps, and usually a dozen.
_NUM_HALVES = 40  # A step is halved at most this many times.
_LEAST_PRIOR = 1e-3  # The search over priors starts from at least this prior.
_LOG_POWERS = -2.0, 0.0, 2.0, 4.0  # The search over powers starts from each of these.
_BOUND = 30.0  # The logarithms that are searched have at most this size.


def nearest(
  own: Float[np.ndarray, 'p t k'], others: Float[np.ndarray, 'm p t k'], squares: bool
) -> Float[np.ndarray, ' m']:
  """Returns the w ≥ 0, Σ w = 1 with the least mean distance of `w·others` from `own`.

  The distance is the square or, if not `squares`, KL(own ‖ w·others). A single
  predictor that is as near, up to rounding, is preferred, because w is not unique if
  some predictors are mixtures of others.
  """
  m = len(others)
  columns, targets = others.reshape(m, -1).T, own.reshape(-1)
  if squares:
    weights = _least_norm(targets[:, None] - columns)
  else:
    weights = _least_divergence(targets / own[..., 0].size, columns)
  alone = [float(distances(own, other, squares).mean()) for other in others]
  mixed = float(distances(own, np.tensordot(weights, others, 1), squares).mean())
  if min(alone) <= mixed + _TIE * rounding(squares, own):
    return np.eye(m)[int(np.argmin(alone))]
  return weights


def _least_divergence(
  targets: Float[np.ndarray, ' n'], columns: Float[np.ndarray, 'n m']
) -> Float[np.ndarray, ' m']:
  """Returns the w ≥ 0, Σ w = 1 with the greatest `targets · log(columns w)`.

  Since the Hessian times w is minus the gradient, each step of Newton's method is a
  least-squares problem.
  """
  m = columns.shape[1]
  weights = np.full(m, 1 / m)
  for _ in range(_NUM_STEPS):
    mixed = columns @ weights
    scaled = columns * (np.sqrt(targets) / mixed)[:, None]
    step = _least_norm(scaled - 2 * (scaled @ weights)[:, None]) - weights
    along = (columns @ step) / mixed
    slope = -float(targets @ along)
    if -slope < _CONVERGED:
      break
    size = 1.0
    for _ in range(_NUM_HALVES):
      # At the edge of the simplex the logarithm is that of 0.
      with np.errstate(divide='ignore'):
        gain = float(targets @ np.log1p(size * along))
      if gain >= -size * slope / 4:
        break
      size /= 2
    weights = weights + size * step
  return weights


def _least_norm(columns: Float[np.ndarray, 'n m']) -> Float[np.ndarray, ' m']:
  """Returns the w ≥ 0, Σ w = 1 with the least |columns w|.

  It is proportional to the u ≥ 0 with the least |columns u|² + (1 − Σ u)².
  """
  from scipy.optimize import nnls  # It is slow to import.

  m = columns.shape[1]
  triangle: Any = np.linalg.qr(columns, mode='r')
  scale = float(np.linalg.norm(triangle)) / m**0.5 or 1.0
  system = np.concatenate([triangle / scale, np.ones((1, m))])
  solution, _ = nnls(system, np.append(np.zeros(len(triangle)), 1.0))
  return solution / solution.sum()


def nearest_by_likelihood(
  own: Float[np.ndarray, 'p t k'],
  others: Float[np.ndarray, 'm p t k'],
  log_likelihoods: Float[np.ndarray, 'm p t'],
  squares: bool,
) -> tuple[Float[np.ndarray, ' m'], float]:
  """Returns the prior and the power whose `prior · likelihood^power` is nearest.

  The search starts at the best mixture of power 0, with several powers near the one at
  which the log likelihoods of predictors differ by about 1. A result is taken only if
  it is nearer than that mixture.
  """
  from scipy.optimize import minimize  # It is slow to import.

  prior, power = nearest(own, others, squares), 0.0
  least = float(distances(own, np.tensordot(prior, others, 1), squares).mean())
  log_likelihoods = log_likelihoods - log_likelihoods.max(axis=0)
  scale = -float(np.mean(log_likelihoods))
  if not (least > rounding(squares, own) and scale > 0):
    return prior, power
  unit = least

  def distance(
    logits: Float[np.ndarray, ' n'],
  ) -> tuple[float, Float[np.ndarray, ' n']]:
    power = np.exp(logits[-1]) / scale
    weights = softmax(logits[:-1, None, None] + power * log_likelihoods)
    mixed = np.einsum('mpt,mptk->ptk', weights, others)
    by_mixed = 2 * (mixed - own) if squares else -own / mixed
    along = np.einsum('mptk,ptk->mpt', others, by_mixed)
    by_logit = weights * (along - np.sum(weights * along, axis=0))
    slopes = np.append(
      by_logit.sum(axis=(1, 2)), power * np.sum(by_logit * log_likelihoods)
    )
    value = float(distances(own, mixed, squares).mean())
    return value / unit, slopes / (unit * own[..., 0].size)

  start = np.log(np.maximum(prior, _LEAST_PRIOR))
  for log_power in _LOG_POWERS:
    first = np.append(start, log_power)
    bounds = [(-_BOUND, _BOUND)] * len(first)
    options = {'maxiter': 300, 'ftol': 1e-12, 'gtol': 1e-9}
    end = minimize(
      distance, first, jac=True, method='L-BFGS-B', bounds=bounds, options=options
    )
    if end.fun * unit < least:
      least = float(end.fun) * unit
      prior, power = softmax(end.x[:-1]), float(np.exp(end.x[-1]) / scale)
  return prior, power


def likelihood_stderrs(
  prior: Float[np.ndarray, ' m'],
  power: float,
  own: Float[np.ndarray, 'p t k'],
  others: Float[np.ndarray, 'm p t k'],
  log_likelihoods: Float[np.ndarray, 'm p t'],
  squares: bool,
) -> tuple[Float[np.ndarray, ' m'], float]:
  """Returns the standard errors over prompts of a fitted prior and of the power.

  They are those of the sandwich formula, as in `simplex_stderrs`, for a prior and a
  power that are fitted together and may be negative. The error of the power is NaN if
  the distance does not bend along it.
  """
  from scipy.optimize import approx_fprime  # It is slow to import.

  m, log_likelihoods = len(prior), log_likelihoods - log_likelihoods.max(axis=0)

  def slopes(values: Float[np.ndarray, ' n']) -> Float[np.ndarray, 'p n']:
    """Returns the slopes of the distance of each prompt, in the prior and the power."""
    likelihoods = np.exp(values[m] * log_likelihoods)
    likelihoods /= np.einsum('m,mpt->pt', values[:m], likelihoods)
    weights = values[:m, None, None] * likelihoods
    mixed = np.einsum('mpt,mptk->ptk', weights, others)
    by_mixed = 2 * (mixed - own) if squares else -own / mixed
    along = np.einsum('mptk,ptk->mpt', others, by_mixed)
    along -= np.sum(weights * along, axis=0)
    by_power = np.sum(weights * along * log_likelihoods, axis=0)
    by_all = np.concatenate([likelihoods * along, by_power[None]])
    return by_all.mean(axis=2).T

  found = np.append(prior, power)
  gradients = slopes(found)
  hessian: Any = approx_fprime(found, lambda values: slopes(values).mean(axis=0))
  hessian = (hessian + hessian.T) / 2
  known_to = rounding(squares, own)
  prior_stderrs = np.full(m, np.nan)
  if m > 1:
    # What remains of a slope and a curvature in the prior, if the power follows it.
    follows = hessian[:m, m] / hessian[m, m] if hessian[m, m] > 0 else np.zeros(m)
    rest = hessian[:m, :m] - np.outer(follows, hessian[m, :m])
    left = gradients[:, :m] - gradients[:, m:] * follows
    prior_stderrs = simplex_stderrs(prior, left, rest, known_to)
  free = np.flatnonzero(prior > 0)
  # The same for the power, if the prior follows it in directions of the sum 0.
  basis = np.eye(m)[:, free] - prior[:, None]
  inverse = np.linalg.pinv(basis.T @ hessian[:m, :m] @ basis, hermitian=True)
  follows = basis @ inverse @ basis.T @ hessian[:m, m]
  curvature = hessian[m, m] - follows @ hessian[:m, m]
  if not curvature > 0:
    return prior_stderrs, float('nan')
  left = (gradients[:, m] - gradients[:, :m] @ follows) / curvature
  variance = left.var(ddof=1) / len(own) + 2 * known_to / curvature
  return prior_stderrs, float(np.sqrt(variance))


def groups_within(
  limit: float, others: Float[np.ndarray, 'm p t k'], squares: bool
) -> list[list[int]]:
  """Returns groups of predictors that are near each other.

  Each predictor joins the first group whose first member is near enough, or begins a
  new group. It is near enough if the mean squared difference, or the mean of both
  divergences, is at most the limit or rounding.
  """
  groups: list[list[int]] = []
  for j, other in enumerate(others):
    for group in groups:
      first = others[group[0]]
      apart = float(distances(other, first, squares).mean())
      if not squares:
        apart = (apart + float(distances(first, other, squares).mean())) / 2
      if apart <= max(limit, rounding(squares, other, first)):
        group.append(j)
        break
    else:
      groups.append([j])
  return groups


def rounding(squares: bool, *predictions: Float[np.ndarray, 'p t k']) -> float:
  """Returns the distance that is rounding.

  In nats it does not depend on the predictions.
  """
  sizes = [float(np.mean(values**2)) for values in predictions]
  return ROUNDING * (max(sizes) if squares else 1.0)


def softmax(logits: Float[np.ndarray, 'm ...']) -> Float[np.ndarray, 'm ...']:
  """Returns weights along the first axis that sum to 1."""
  weights = np.exp(logits - logits.max(axis=0))
  return weights / weights.sum(axis=0)


# A weight between 0 and 1 has at most this standard error: half of its range.
_MOST_STDERR = 0.5
# A curvature below this share of the largest is rounding.
_FLAT = 1e-12


def simplex_stderrs(
  weights: Float[np.ndarray, ' m'],
  gradients: Float[np.ndarray, 'p m'],
  hessian: Float[np.ndarray, 'm m'],
  rounding: float = 0.0,
) -> Float[np.ndarray, ' m']:
  """Returns the standard errors of weights on a simplex that minimise a mean loss.

  The weights are ≥ 0 and their sum is 1. The errors are those of weights that may be
  negative, among the weights that are not 0, by the sandwich formula `Z A⁻¹ B A⁻¹
  Zᵀ/p`: A is the curvature along directions Z of the sum 0, and B is the covariance of
  the gradients of prompts along them (Huber, 1967; White, Econometrica 48, 1980). A
  weight that is 0 has the error that it would have if it were free, too. If only one
  weight is not 0, it has the largest error of the others.

  Args:
    weights: The weights at the minimum, m ≥ 2.
    gradients: The gradient of each prompt's loss by the weights, at the minimum.
    hessian: The Hessian of the mean loss.
    rounding: The error of the mean loss. Weights that change the loss by less cannot be
      told apart, so that no standard error is 0.

  Returns:
    A standard error for each weight, at most ½; NaN for fewer than two prompts.
  """
  m = len(weights)
  if len(gradients) < 2:
    return np.full(m, math.nan)
  _, _, unknown = _directions(hessian)
  positive = weights > 0
  stderrs = np.zeros(m)
  for j in range(m):
    free = np.flatnonzero(positive | (np.arange(m) == j))
    if len(free) > 1:
      of_free = _sandwich(gradients[:, free], hessian[np.ix_(free, free)], rounding)
      stderrs[j] = of_free[free == j].item()
  stderrs = np.where(stderrs > 0, stderrs, stderrs.max())
  return np.where(unknown, _MOST_STDERR, np.minimum(stderrs, _MOST_STDERR))


def _sandwich(
  gradients: Float[np.ndarray, 'p m'],
  hessian: Float[np.ndarray, 'm m'],
  rounding: float,
) -> Float[np.ndarray, ' m']:
  """Returns the standard errors of weights with the sum 1 that may be negative."""
  count = len(gradients)
  directions, curvatures, _ = _directions(hessian)
  along = directions / curvatures
  scores = (gradients - gradients.mean(axis=0)) @ along
  variances = np.square(scores @ directions.T).sum(axis=0) / (count - 1) / count
  # The loss rises by ½ δᵀ A δ.
  return np.sqrt(variances + 2 * rounding * np.sum(along * directions, axis=1))


def _directions(
  hessian: Float[np.ndarray, 'm m'],
) -> tuple[Float[np.ndarray, 'm k'], Float[np.ndarray, ' k'], np.ndarray]:
  """Returns orthonormal directions of the sum 0 with their curvatures.

  Directions without curvature are left out. The last result `[m]` says which weights
  change along them.
  """
  m = len(hessian)
  basis = np.linalg.qr(np.eye(m) - 1 / m)[0][:, : m - 1]
  values, vectors = np.linalg.eigh(basis.T @ hessian @ basis)
  directions = basis @ vectors
  flat = values <= _FLAT * max(float(values.max()), np.finfo(float).tiny)
  unknown = np.abs(directions[:, flat]).max(axis=1, initial=0) > math.sqrt(_FLAT)
  return directions[:, ~flat], values[~flat], unknown
