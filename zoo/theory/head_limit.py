"""Bounds of the least risk of multi-head LSA with a given number of heads."""

from typing import NamedTuple

import numpy as np
import scipy.optimize
from jaxtyping import ArrayLike, Float

from zoo.core.errors import check_count, check_number, check_vector
from zoo.core.protocols import Task
from zoo.tasks.base import RANK_TOLERANCE
from zoo.tasks.linear_regression import is_scalar
from zoo.theory.isotropic import least_over_angles
from zoo.theory.moments import Moments, context_moments, task_moments
from zoo.theory.optimum import constant_estimate

_POLISHED = 10  # of the screened subspaces, those improved by a local search
_CHUNK = 2**18  # numbers in one array while subspaces are screened


class HeadLimit(NamedTuple):
  """Bounds of the least risk; equal if the infimum is known in closed form.

  Otherwise the infimum is between them. That it is the upper one is not proved.
  """

  lower: float  # proved up to rounding: no model with that many heads is below
  lowest_found: float  # models with that many heads come as near to it as wanted

  @property
  def upper(self) -> float:
    """`lowest_found`, which bounds the infimum from above, since models reach it."""
    return self.lowest_found

  @property
  def risk(self) -> float:
    """An older name of `lowest_found`: the infimum only if `lower` is the same."""
    return self.lowest_found


class Whitened(NamedTuple):
  """A task and a guess for whitened features, and labels minus w*·x scaled to E q = 1.

  Constant labels are not scaled.
  """

  context_length: float  # C
  prior: Float[np.ndarray, 'r r']  # Λ
  noise: float  # σ²
  deviation: Float[np.ndarray, ' r']  # δ = w* − g
  bias: float  # β
  unit: float  # the unit of risks in the original task

  @property
  def rank(self) -> int:
    """The rank r of the features."""
    return len(self.prior)

  @property
  def moments(self) -> Moments:
    """The moments of the task."""
    mean = np.zeros(self.rank)
    return Moments(self.context_length, mean, self.prior, None, self.noise)


class Conditions(NamedTuple):
  """The constraints on an update if a subspace is hidden from the heads' values.

  For the notation see docs/theory.md, section 5.
  """

  task: Whitened
  optimum: Float[np.ndarray, 'n e e']  # each coordinate's update with enough heads
  constant: Float[np.ndarray, 'e e']  # the best estimate of the constant 1
  variance_label: float  # D
  moment_inverse: Float[np.ndarray, 'r r']  # of M = E r rᵀ

  def invert(self, form: Float[np.ndarray, '*p e e']) -> Float[np.ndarray, '*p e e']:
    """Applies the inverse of the risk's quadratic form to symmetric matrices."""
    c, prior, noise, *_ = self.task
    r = self.task.rank
    features, label = form[..., :r, :r], form[..., r, r]
    slope = label - np.sum(features * prior, axis=(-1, -2))
    slope = slope / self.variance_label
    mean = c / 2 * features.trace(axis1=-2, axis2=-1) + noise * slope
    inverse = -mean[..., None, None] * self.constant
    inverse[..., :r, :r] += c / 2 * features - slope[..., None, None] * prior
    column = form[..., :r, r] @ self.moment_inverse / 2
    inverse[..., :r, r] += column
    inverse[..., r, :r] += column
    inverse[..., r, r] += slope
    return inverse

  def costs(self, hidden: Float[np.ndarray, 's e m']) -> Float[np.ndarray, ' s']:
    """The increase of the risk if the span of a matrix's columns is hidden."""
    values, multipliers = self._solve(hidden)
    return np.sum(values * multipliers, axis=(-1, -2))

  def cost_and_slope(
    self, hidden: Float[np.ndarray, 'e m']
  ) -> tuple[float, Float[np.ndarray, 'e m']]:
    """The cost of a subspace, and its gradient in the entries of the basis."""
    values, multipliers = self._solve(hidden)
    m = hidden.shape[1]
    one, two = np.triu_indices(m)
    weights = np.zeros((len(self.optimum), m, m))
    weights[:, one, two] += multipliers.T / 2
    weights[:, two, one] += multipliers.T / 2
    updates = self.optimum - self.invert(hidden @ weights @ hidden.T)
    slope = 4 * np.sum(updates @ hidden @ weights, axis=0)
    return float(np.sum(values * multipliers)), slope

  def _solve(
    self, hidden: Float[np.ndarray, '*s e m']
  ) -> tuple[Float[np.ndarray, '*s p n'], Float[np.ndarray, '*s p n']]:
    """The values `nᵀUn'` for pairs of hidden directions, and K⁻¹ times them."""
    one, two = np.triu_indices(hidden.shape[-1])
    rows = hidden.swapaxes(-1, -2)
    forms = rows[..., one, :, None] * rows[..., two, None, :]
    forms = (forms + forms.swapaxes(-1, -2)) / 2
    flat = (*forms.shape[:-2], -1)
    entries = forms.reshape(flat)
    values = entries @ self.optimum.reshape(len(self.optimum), -1).T
    gram = entries @ self.invert(forms).reshape(flat).swapaxes(-1, -2)  # K
    # Scaled to a unit diagonal, so that rows of different units are solved accurately.
    scale = 1 / np.sqrt(gram.diagonal(axis1=-2, axis2=-1))[..., None]
    scaled = scale * gram * scale.swapaxes(-1, -2)
    return values, scale * np.linalg.solve(scaled, scale * values)


def head_limited_risk(
  task: Task,
  num_heads: int,
  initial_guess: float | ArrayLike = 0.0,
  initial_bias: float = 0.0,
  num_starts: int = 2000,
) -> HeadLimit:
  """Bounds of the least exact risk of multi-head LSA with H heads.

  `initial_guess` g, a number or `[d]`, and `initial_bias` β are those of the model.
  The bounds are proved up to rounding. They are equal if H heads attain the infimum of
  any number of heads, and for every H if ΣΛ is a multiple of the identity. Otherwise
  the lower bound is that of docs/theory_heads.md, and `lowest_found`
  comes from a search over the subspaces that H value vectors can span: local searches
  improve the best of `num_starts` random subspaces and of those along axes. It takes
  O(d² (d + 1 − H)⁴) time per start. Raises UserError naming the argument that is wrong.
  """
  num_heads = check_count('num_heads', num_heads)
  num_starts = check_count('num_starts', num_starts)
  moments = task_moments(task)
  guess = check_vector('initial_guess', initial_guess, moments.prior_mean.size)
  bias = check_number('initial_bias', initial_bias)
  whitened = whiten(moments, moments.prior_mean - guess, bias)
  if _is_attained(whitened, num_heads):
    lower = found = _lower_bound(whitened, num_heads)
  elif is_scalar(whitened.prior):
    lower = found = _isotropic(whitened, num_heads)
  else:
    lower = _lower_bound(whitened, num_heads)
    found = max(lower, searched_risk(whitened, num_heads, num_starts))
  return HeadLimit(whitened.unit * lower, whitened.unit * found)


def _isotropic(whitened: Whitened, num_heads: int) -> float:
  """The infimum for Λ = aI, for a > 0 by that for Λ = I and labels in units of √a."""
  c, prior, noise, deviation, bias, _ = whitened
  variance = prior[0, 0]
  if variance == 0:
    return float((deviation @ deviation + bias**2) / (1 + num_heads * c / 2))
  distance, bias = np.linalg.norm(deviation) / variance**0.5, bias / variance**0.5
  return variance * least_over_angles(
    whitened.rank, c, num_heads, float(distance), bias, noise / variance
  )


def whiten(
  moments: Moments, deviation: Float[np.ndarray, ' d'], bias: float
) -> Whitened:
  """A task and a guess in the coordinates of docs/theory.md, section 5."""
  c, _, prior, features, noise = moments
  if features is not None:
    eigenvalues, vectors = np.linalg.eigh(features)
    seen = eigenvalues > RANK_TOLERANCE * eigenvalues[-1]
    root = vectors[:, seen] * np.sqrt(eigenvalues[seen])
    prior, deviation = root.T @ prior @ root, root.T @ deviation
  unit = float(np.trace(prior) + noise) or 1.0
  root = unit**0.5
  return Whitened(
    *(float(c), prior / unit, float(noise / unit)),
    *(deviation / root, bias / root, unit),
  )


def _lower_bound(whitened: Whitened, num_heads: int) -> float:
  """A lower bound of the risk with that many heads; for r + 1 heads it is the infimum.

  The bound takes the best step, and estimates the constant 1 with the k = r − H feature
  directions of largest prior variance hidden.
  """
  c, prior, noise, deviation, bias, _ = whitened
  context = context_moments(whitened.moments)
  step = np.linalg.lstsq(context.second_moment_r, prior)[0]
  optimal = np.trace(prior) - np.sum(step * prior)
  num_seen = min(num_heads, whitened.rank)
  num_hidden = whitened.rank - num_seen
  largest = np.linalg.eigvalsh(prior)[num_seen:].sum()
  signal = largest + noise
  variance = context.variance_label
  if num_hidden:
    variance += 2 / c * largest**2 / num_hidden
  ratio = num_seen * c / 2
  ratio += signal**2 / variance if variance > 0 else 0.0
  return float(optimal + (deviation @ deviation + bias**2) / (1 + ratio))


def _is_attained(whitened: Whitened, num_heads: int) -> bool:
  """Whether the lower bound is known to be the infimum (docs/theory.md, section 5)."""
  _, prior, noise, deviation, bias, _ = whitened
  rank = whitened.rank
  if num_heads > rank or not (bias or deviation.any()):
    return True
  if noise == 0 and num_heads == rank:
    return True
  if num_heads < rank or bias:
    return False
  # One direction must be hidden: (u; 1) with u a multiple of γ = Γ*⁻¹δ.
  moment = context_moments(whitened.moments).second_moment_r
  inverse = np.linalg.pinv(prior, rcond=RANK_TOLERANCE, hermitian=True)
  if np.abs(prior @ inverse @ deviation - deviation).max() > 1e-9:
    return False
  gamma = moment @ inverse @ deviation
  constant = constant_estimate(whitened.moments).update(np.eye(rank), prior)
  return bool(4 * constant[-1, -1] * gamma @ constant[:-1, :-1] @ gamma <= 1)


def conditions(whitened: Whitened) -> Conditions:
  """The `Conditions` for a task and a guess for which H heads are not enough."""
  context = context_moments(whitened.moments)
  r, prior = whitened.rank, whitened.prior
  estimate = constant_estimate(whitened.moments)
  constant = estimate.update(np.eye(r), prior)
  targets = np.append(whitened.deviation, -whitened.bias)
  optimum = targets[:, None, None] * constant
  inverse = np.linalg.inv(context.second_moment_r)
  optimum[:r, :r, r] = optimum[:r, r, :r] = prior @ inverse / 2
  return Conditions(whitened, optimum, constant, float(context.variance_label), inverse)


def searched_risk(whitened: Whitened, num_heads: int, num_starts: int) -> float:
  """The lowest risk found for any subspace that some heads cannot reach."""
  problem, enough = conditions(whitened), whitened.rank + 1
  num_hidden = enough - num_heads
  starts = _starts(problem, num_hidden, num_starts)
  num_pairs = num_hidden * (num_hidden + 1) // 2
  size = max(_CHUNK // (num_pairs * enough**2), 1)
  parts = [starts[i : i + size] for i in range(0, len(starts), size)]
  costs = np.concatenate([problem.costs(part) for part in parts])
  best = np.argsort(costs)[:_POLISHED]
  cost = min(costs.min(), *(_descend(problem, starts[i]) for i in best))
  return _lower_bound(whitened, enough) + float(cost)


def _starts(
  problem: Conditions, num_hidden: int, num_starts: int
) -> Float[np.ndarray, 'n e m']:
  """Orthonormal bases of subspaces along axes, and of random ones.

  Half of the random ones are moved towards the label's axis or away from it.
  """
  _, vectors = np.linalg.eigh(problem.task.prior)
  e = len(vectors) + 1
  axes = np.eye(e)
  axes[:-1, :-1] = vectors
  along_axes = [np.roll(axes, shift, axis=1)[:, -num_hidden:] for shift in range(e)]
  random = np.random.default_rng(0)
  starts = random.normal(size=(num_starts, e, num_hidden))
  half = num_starts // 2
  starts[:half, -1] *= 10 ** random.uniform(-2, 2, size=(half, 1))
  # In other bases the costs lose digits, and the lowest of many would be too low.
  return np.linalg.qr(np.concatenate([along_axes, starts]))[0]


def _descend(problem: Conditions, start: Float[np.ndarray, 'e m']) -> float:
  """The least cost that a local search over bases of subspaces reaches."""

  def function(entries: Float[np.ndarray, ' n']) -> tuple[float, np.ndarray]:
    cost, slope = problem.cost_and_slope(entries.reshape(start.shape))
    return cost, slope.ravel()

  # Another basis of the same span has the same cost, so that slopes are orthogonal to
  # such changes, and an orthonormal basis stays well-conditioned.
  found = scipy.optimize.minimize(
    function,
    start.ravel(),
    jac=True,
    method='L-BFGS-B',
    # A long memory: for large C the default of 10 takes three times as many steps.
    options={'ftol': 1e-15, 'gtol': 1e-9, 'maxiter': 2000, 'maxcor': 40},
  )
  return float(found.fun)
