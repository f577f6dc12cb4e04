"""Bounds of the least risk of multi-head LSA with a given number of heads."""

from typing import NamedTuple

import numpy as np
from jaxtyping import ArrayLike, Float

from zoo.core.errors import check_count, check_number, check_vector
from zoo.core.learning_rule import symmetric
from zoo.core.matrices import RANK_TOLERANCE, is_scalar, symmetric_root
from zoo.core.protocols import Task
from zoo.theory.isotropic import least_over_angles
from zoo.theory.optimum import constant_estimate
from zoo.theory.risk import Moments, context_moments, task_moments
from zoo.theory.search import checked_lower

_POLISHED = 10  # Local searches improve so many of the screened subspaces.
_CHUNK = 2**18  # One array has so many numbers while subspaces are screened.
_FLAT = 1e-11  # Directions with smaller relative singular values do not matter.


class HeadLimit(NamedTuple):
  """Bounds of the least risk of multi-head LSA with a given number of heads.

  They are equal if the infimum is known in closed form. Otherwise the infimum lies
  between them. That it is the upper one is not proved.

  Attributes:
    lower: The lower bound: no model with that many heads has a lower risk, up to
      rounding.
    lowest_found: The upper bound: models with that many heads come as near to it as
      wanted.
  """

  lower: float
  lowest_found: float


class Whitened(NamedTuple):
  """A task and a guess, for features of covariance I and labels minus w*·x.

  The labels are also scaled, so that their mean square q is 1; constant labels are not.

  Attributes:
    moments: The moments of the task, with w* = 0 and Σ = I, which is given as None.
    deviation: `δ = w* − g`, in the new coordinates.
    bias: β, in units of the scaled labels.
    unit: The unit of risks, in the original task.
  """

  moments: Moments
  deviation: Float[np.ndarray, ' r']
  bias: float
  unit: float

  @property
  def rank(self) -> int:
    """The rank r of the features."""
    return self.deviation.size


def head_limited_risk(
  task: Task,
  num_heads: int,
  initial_guess: float | ArrayLike = 0.0,
  initial_bias: float = 0.0,
  num_starts: int = 2000,
) -> HeadLimit:
  """Returns bounds of the least exact risk of multi-head LSA with H heads.

  The bounds are equal if H heads reach the infimum over any number of heads, and for
  every H if ΣΛ is a multiple of the identity. In other cases a search over the
  subspaces that H value vectors can span gives the upper bound: local searches improve
  the best of `num_starts` random subspaces and of those along axes. The search takes
  O(H d⁵) time for each start. Both bounds are proved up to rounding.

  Args:
    task: A `linear_regression`.
    num_heads: H ≥ 1.
    initial_guess: The model's fixed guess g of the query's label, as weights of
      `g·x_q`: a number for all features, or `[d]`.
    initial_bias: The fixed offset β of the guess `g·x_q + β`.
    num_starts: The number of random subspaces, ≥ 1.

  Returns:
    The lower bound, and the lowest risk that was found.

  Raises:
    UserError: If the theory does not cover the task, or an argument is out of its
      range.
    RuntimeError: If the search ends below the lower bound, which a mistake in this
      library would cause.

  Example:
    >>> task = zoo.tasks.LinearRegression(
    ...   num_features=2, context_length=3, prior_mean=1.0
    ... )
    >>> [round(float(zoo.theory.head_limited_risk(task, h).lower), 4) for h in (1, 2)]
    [1.9033, 1.5]

  References:
    docs/theory_heads.md.
  """
  num_heads = check_count('num_heads', num_heads)
  num_starts = check_count('num_starts', num_starts)
  moments = task_moments(task)
  guess = check_vector('initial_guess', initial_guess, moments.prior_mean.size)
  bias = check_number('initial_bias', initial_bias)
  whitened = whiten(moments, moments.prior_mean - guess, bias)
  if _is_attained(whitened, num_heads):
    lower = lowest = _lower_bound(whitened, num_heads)
  elif is_scalar(whitened.moments.prior_covariance):
    lower = lowest = _isotropic(whitened, num_heads)
  else:
    lower = _lower_bound(whitened, num_heads)
    lowest = searched_risk(whitened, num_heads, num_starts)
    lower = checked_lower(lower, lowest, scale=1.0)
  return HeadLimit(float(whitened.unit * lower), float(whitened.unit * lowest))


def _isotropic(whitened: Whitened, num_heads: int) -> float:
  """Returns the infimum for Λ = aI.

  For a > 0 it follows from the infimum for Λ = I, with labels in units of √a.
  """
  (c, _, prior, _, noise), deviation, bias, _ = whitened
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
  """Returns a task and a guess in the coordinates of docs/theory_heads.md."""
  c, _, prior, features, noise = moments
  if features is not None:
    eigenvalues, vectors = np.linalg.eigh(features)
    seen = eigenvalues > RANK_TOLERANCE * eigenvalues[-1]
    root = vectors[:, seen] * np.sqrt(eigenvalues[seen])
    prior, deviation = root.T @ prior @ root, root.T @ deviation
  unit = float(np.trace(prior) + noise) or 1.0
  root = unit**0.5
  scaled = Moments(
    float(c), np.zeros(len(prior)), prior / unit, None, float(noise / unit)
  )
  return Whitened(scaled, deviation / root, bias / root, unit)


def _lower_bound(whitened: Whitened, num_heads: int) -> float:
  """Returns a lower bound of the risk with that many heads.

  The bound takes the best step, and estimates the constant 1 with the k = r − H feature
  directions of largest prior variance hidden. For r + 1 heads it is the infimum.
  """
  (c, _, prior, _, noise), deviation, bias, _ = whitened
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
  """Says whether the lower bound is known to be the infimum (docs/theory_heads.md)."""
  (_, _, prior, _, noise), deviation, bias, _ = whitened
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
  constant = constant_estimate(whitened.moments)
  return bool(4 * constant[-1, -1] * gamma @ constant[:-1, :-1] @ gamma <= 1)


class _Squares(NamedTuple):
  """The risk as a sum of squares, `rest + Σ_i |⟨rows, U_i⟩ − targets_i|²`.

  The notation is that of docs/theory_one_layer.md, section 2, and docs/theory_heads.md.
  The last U is the bias's V.
  """

  rows: Float[np.ndarray, 'm e e']
  targets: Float[np.ndarray, 'm e']
  rest: float

  def least(
    self, values: Float[np.ndarray, '*s e h']
  ) -> tuple[Float[np.ndarray, '*s'], Float[np.ndarray, '*s e h']]:
    """Returns the least risk of heads with these values, and its gradient in them.

    With values b_h and queries a_ih these heads make `U_i = sym Σ_h b_h a_ihᵀ`.
    """
    design = self.rows @ values[..., None, :, :]  # [*s, m, e, h]
    flat = design.reshape(*design.shape[:-2], -1)
    # The pseudoinverse is needed since some queries change no U.
    queries = np.linalg.pinv(flat, rcond=_FLAT) @ self.targets
    left = self.targets - flat @ queries
    queries = queries.reshape(*values.shape, -1)
    slope = np.einsum(
      '...mn,mef,...fhn->...eh', left, self.rows, queries, optimize=True
    )
    return np.asarray(self.rest + np.sum(left**2, axis=(-1, -2))), -2 * slope


def _squares(whitened: Whitened) -> _Squares:
  c, _, prior, *_ = whitened.moments
  r, context = whitened.rank, context_moments(whitened.moments)
  row, column = np.triu_indices(r)
  rows = np.zeros((2 + r + row.size, r + 1, r + 1))
  targets = np.zeros((len(rows), r + 1))
  mean, label, odd, even = np.split(rows, [1, 2, 2 + r])
  # The target of the mean of ⟨U, G⟩ is what the guess lacks.
  mean[0] = np.diag(np.append(np.ones(r), context.mean_q))
  targets[0] = np.append(whitened.deviation, -whitened.bias)
  # The rest of the even part is noise: D s² + (2/C) |P + sΛ|².
  label[0, r, r] = context.variance_label**0.5
  scale = np.sqrt(np.where(row == column, 2, 4) / c)
  even[np.arange(row.size), row, column] = scale
  even[:, r, r] = scale * prior[row, column]
  # The target of the odd part, 2ρ·r, is ε.
  root = symmetric_root(context.second_moment_r)
  odd[:, :r, r] = odd[:, r, :r] = root
  targets[2 : 2 + r, :r] = np.linalg.solve(root, prior)
  rest = float(np.trace(prior) - np.sum(targets[2 : 2 + r] ** 2))
  return _Squares(symmetric(rows), targets, rest)


def searched_risk(whitened: Whitened, num_heads: int, num_starts: int) -> float:
  """Returns the lowest risk found for any subspace that values of heads span."""
  problem = _squares(whitened)
  starts = _starts(whitened, num_heads, num_starts)
  size = max(_CHUNK // (problem.rows[..., 0].size * num_heads), 1)
  parts = [starts[i : i + size] for i in range(0, len(starts), size)]
  risks = np.concatenate([problem.least(part)[0] for part in parts])
  best = np.argsort(risks)[:_POLISHED]
  return float(min(risks.min(), min(_descend(problem, starts[i]) for i in best)))


def _starts(
  whitened: Whitened, num_heads: int, num_starts: int
) -> Float[np.ndarray, 'n e h']:
  """Returns orthonormal bases of subspaces along axes, and of random ones.

  For half of the random subspaces the complement is moved towards the label's axis, or
  away from it.
  """
  _, vectors = np.linalg.eigh(whitened.moments.prior_covariance)
  e = whitened.rank + 1
  axes = np.eye(e)
  axes[:-1, :-1] = vectors
  num_hidden = e - num_heads
  along_axes = [np.roll(axes, shift, axis=1)[:, -num_hidden:] for shift in range(e)]
  random = np.random.default_rng(0)
  hidden = random.normal(size=(num_starts, e, num_hidden))
  half = num_starts // 2
  hidden[:half, -1] *= 10 ** random.uniform(-2, 2, size=(half, 1))
  # In other bases the risks lose digits, and the lowest of many would be too low.
  bases = np.linalg.qr(np.concatenate([along_axes, hidden]), mode='complete')[0]
  return bases[..., num_hidden:]


def _descend(problem: _Squares, start: Float[np.ndarray, 'e h']) -> float:
  """Returns the least risk that a local search over bases of subspaces reaches."""
  import scipy.optimize  # It is slow to import, and rarely needed.

  def function(entries: Float[np.ndarray, ' n']) -> tuple[float, np.ndarray]:
    risk, slope = problem.least(entries.reshape(start.shape))
    return float(risk), slope.ravel()

  # Another basis of the same span has the same risk, so that slopes are orthogonal to
  # such changes, and an orthonormal basis stays well-conditioned.
  end = scipy.optimize.minimize(
    function,
    start.ravel(),
    jac=True,
    method='L-BFGS-B',
    # A long memory: for large C the default of 10 takes three times as many steps.
    options={'ftol': 1e-15, 'gtol': 1e-9, 'maxiter': 2000, 'maxcor': 40},
  )
  return float(end.fun)
