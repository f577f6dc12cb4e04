"""How low the risk of multi-head LSA can be with a given number of heads."""

from typing import NamedTuple

import numpy as np
import scipy.optimize
from jaxtyping import ArrayLike, Float

from zoo.errors import check_count, check_number, check_vector
from zoo.protocols import Task
from zoo.theory.moments import Moments, context_moments, task_moments
from zoo.theory.optimum import RANK_TOLERANCE, constant_estimate

_POLISHED = 10  # of the subspaces that are screened
_CHUNK = 2**22  # numbers that one array holds while subspaces are screened


class HeadLimit(NamedTuple):
  """Bounds of an infimum, which are equal where it is known in closed form."""

  lower: float  # proved: no model with so many heads has a lower risk
  upper: float  # the lowest risk found; some model with so many heads has it

  @property
  def risk(self) -> float:
    """The infimum itself where the bounds are equal, and the upper one elsewhere."""
    return self.upper


class Setting(NamedTuple):
  """A task and a guess, features whitened, labels less w*·x in units in which E q = 1.

  Labels that do not vary at all keep their unit.
  """

  context_length: float  # C
  prior: Float[np.ndarray, 'r r']  # Λ
  noise: float  # σ²
  deviation: Float[np.ndarray, ' r']  # δ = w* − g
  bias: float  # β
  unit: float  # of risks

  @property
  def moments(self) -> Moments:
    """The moments of the task."""
    mean = np.zeros(len(self.prior))
    return Moments(self.context_length, mean, self.prior, None, self.noise)


class Conditions(NamedTuple):
  """What an update has to satisfy if the heads' values cannot see a subspace.

  The notation is that of docs/theory.md, section 5.
  """

  optimum: Float[np.ndarray, 'n e e']  # each coordinate's update with heads enough
  constant: Float[np.ndarray, 'e e']  # the best estimate of the constant 1
  context_length: float
  prior: Float[np.ndarray, 'r r']
  noise: float
  variance_label: float
  moment_inverse: Float[np.ndarray, 'r r']  # of E r rᵀ

  def invert(self, form: Float[np.ndarray, '*p e e']) -> Float[np.ndarray, '*p e e']:
    """Symmetric matrices under the inverse of the risk's quadratic form."""
    r = len(self.prior)
    features, label = form[..., :r, :r], form[..., r, r]
    slope = label - np.sum(features * self.prior, axis=(-1, -2))
    slope = slope / self.variance_label
    mean = self.context_length / 2 * features.trace(axis1=-2, axis2=-1)
    mean = mean + self.noise * slope
    inverse = -mean[..., None, None] * self.constant
    inverse[..., :r, :r] += self.context_length / 2 * features
    inverse[..., :r, :r] -= slope[..., None, None] * self.prior
    column = form[..., :r, r] @ self.moment_inverse / 2
    inverse[..., :r, r] += column
    inverse[..., r, :r] += column
    inverse[..., r, r] += slope
    return inverse

  def costs(self, hidden: Float[np.ndarray, 's e m']) -> Float[np.ndarray, ' s']:
    """What the risk gains if values cannot see the span of the columns of a matrix."""
    _, _, values, multipliers = self._solve(hidden)
    return np.sum(values * multipliers, axis=(-1, -2))

  def cost_and_slope(
    self, hidden: Float[np.ndarray, 'e m']
  ) -> tuple[float, Float[np.ndarray, 'e m']]:
    """The cost of a subspace, and its gradient in the entries of the basis."""
    images, (one, two), values, multipliers = self._solve(hidden)
    updates = self.optimum - np.tensordot(multipliers.T, images, 1)
    m = hidden.shape[1]
    weights = np.zeros((len(updates), m, m))
    weights[:, one, two] += multipliers.T / 2
    weights[:, two, one] += multipliers.T / 2
    slope = 4 * np.sum(updates @ hidden @ weights, axis=0)
    return float(np.sum(values * multipliers)), slope

  def _solve(self, hidden: Float[np.ndarray, '*s e m']) -> tuple:
    """The pairs of hidden directions n, n', their values `nᵀUn'` and what undoes them.

    To make the values 0 takes the multiples `K⁻¹ values` of the images of the pairs
    under the inverse form, K being their Gram matrix.
    """
    columns = hidden.swapaxes(-1, -2)
    one, two = np.triu_indices(columns.shape[-2])
    pairs = columns[..., one, :, None] * columns[..., two, None, :]
    pairs = (pairs + pairs.swapaxes(-1, -2)) / 2
    images = self.invert(pairs)
    flat = pairs.reshape(*pairs.shape[:-2], -1)
    gram = flat @ images.reshape(flat.shape).swapaxes(-1, -2)
    values = flat @ self.optimum.reshape(len(self.optimum), -1).T
    # Scaled to a diagonal of ones, so that rows of other units are solved as well.
    scale = 1 / np.sqrt(gram.diagonal(axis1=-2, axis2=-1))[..., None]
    scaled = scale * gram * scale.swapaxes(-1, -2)
    multipliers = scale * np.linalg.solve(scaled, scale * values)
    return images, (one, two), values, multipliers


def head_limited_risk(
  task: Task,
  num_heads: int,
  initial_guess: float | ArrayLike = 0.0,
  initial_bias: float = 0.0,
  num_starts: int = 2000,
) -> HeadLimit:
  """The infimum of the exact risk over multi-head LSA with H heads, or bounds of it.

  `initial_guess` g, a number or `[d]`, and `initial_bias` β are those of the model.
  Where H heads reach what all heads reach, or where g = w* and β = 0, both bounds are
  the closed form. Elsewhere the lower one is that of docs/theory.md, section 5, and the
  upper one the end of a search over the subspaces that H value vectors may span: of
  `num_starts` random ones, and those along axes, the best are improved by local
  searches. Raises UserError naming the argument that is wrong.
  """
  num_heads = check_count('num_heads', num_heads)
  num_starts = check_count('num_starts', num_starts)
  moments = task_moments(task)
  guess = check_vector('initial_guess', initial_guess, moments.prior_mean.size)
  bias = check_number('initial_bias', initial_bias)
  setting = whiten(moments, moments.prior_mean - guess, bias)
  lower = _lower_bound(setting, num_heads)
  if _is_attained(setting, num_heads):
    return HeadLimit(setting.unit * lower, setting.unit * lower)
  hidden = len(setting.prior) + 1 - num_heads
  cost = _search(conditions(setting), hidden, num_starts)
  upper = _lower_bound(setting, len(setting.prior) + 1) + cost
  return HeadLimit(setting.unit * lower, setting.unit * max(lower, upper))


def whiten(
  moments: Moments, deviation: Float[np.ndarray, ' d'], bias: float
) -> Setting:
  """A task and a guess in the coordinates in which heads are counted."""
  c, _, prior, features, noise = moments
  if features is not None:
    eigenvalues, vectors = np.linalg.eigh(features)
    seen = eigenvalues > RANK_TOLERANCE * eigenvalues[-1]
    root = vectors[:, seen] * np.sqrt(eigenvalues[seen])
    prior, deviation = root.T @ prior @ root, root.T @ deviation
  unit = float(np.trace(prior) + noise) or 1.0
  root = unit**0.5
  return Setting(
    *(float(c), prior / unit, float(noise / unit)),
    *(deviation / root, bias / root, unit),
  )


def _lower_bound(setting: Setting, num_heads: int) -> float:
  """A risk below which no model with so many heads is; with r + 1 heads the infimum.

  The best step is free, and the constant 1 is to be estimated where k = r − H feature
  directions are hidden, those of the largest prior variance.
  """
  c, prior, noise, deviation, bias, _ = setting
  context = context_moments(setting.moments)
  step = np.linalg.lstsq(context.second_moment_r, prior)[0]
  optimal = np.trace(prior) - np.sum(step * prior)
  num_hidden = max(len(prior) - num_heads, 0)
  largest = np.linalg.eigvalsh(prior)[len(prior) - num_hidden :].sum()
  signal = largest + noise
  variance = context.variance_label
  if num_hidden:
    variance += 2 / c * largest**2 / num_hidden
  ratio = (len(prior) - num_hidden) * c / 2
  ratio += signal**2 / variance if variance > 0 else 0.0
  return float(optimal + (deviation @ deviation + bias**2) / (1 + ratio))


def _is_attained(setting: Setting, num_heads: int) -> bool:
  """Whether the infimum is known to be the lower bound (docs/theory.md, section 5)."""
  _, prior, noise, deviation, bias, _ = setting
  rank = len(prior)
  if num_heads > rank or not (bias or deviation.any()):
    return True
  if noise == 0 and (num_heads == rank or not prior.any()):
    return True
  if num_heads < rank or bias:
    return False
  # One direction is to be hidden: (uᵀ, 1) with u a multiple of γ = Γ*⁻¹δ.
  moment = context_moments(setting.moments).second_moment_r
  inverse = np.linalg.pinv(prior, rcond=RANK_TOLERANCE, hermitian=True)
  if np.abs(prior @ inverse @ deviation - deviation).max() > 1e-9:
    return False
  gamma = moment @ inverse @ deviation
  constant = constant_estimate(setting.moments).update(np.eye(rank), prior)
  return bool(4 * constant[-1, -1] * gamma @ constant[:-1, :-1] @ gamma <= 1)


def conditions(setting: Setting) -> Conditions:
  """The conditions under which heads, fewer than enough, minimise the risk."""
  c, prior, noise, deviation, bias, _ = setting
  context = context_moments(setting.moments)
  r = len(prior)
  constant = constant_estimate(setting.moments).update(np.eye(r), prior)
  optimum = np.append(deviation, -bias)[:, None, None] * constant
  inverse = np.linalg.inv(context.second_moment_r)
  optimum[:r, :r, r] = optimum[:r, r, :r] = prior @ inverse / 2
  return Conditions(
    *(optimum, constant, c, prior, noise),
    *(float(context.variance_label), inverse),
  )


def _search(problem: Conditions, num_hidden: int, num_starts: int) -> float:
  """The lowest cost found of hiding a subspace of some dimension."""
  starts = _starts(problem, num_hidden, num_starts)
  e = len(problem.constant)
  size = max(_CHUNK // (num_hidden * (num_hidden + 1) // 2 * e * e), 1)
  parts = [starts[i : i + size] for i in range(0, len(starts), size)]
  costs = np.concatenate([problem.costs(part) for part in parts])
  best = np.argsort(costs)[:_POLISHED]
  return float(min(costs.min(), *(_descend(problem, starts[i]) for i in best)))


def _starts(
  problem: Conditions, num_hidden: int, num_starts: int
) -> Float[np.ndarray, 'n e m']:
  """Bases of subspaces: those along axes, and random ones.

  Half of the random ones lie nearer to, or further from, the label's axis.
  """
  _, vectors = np.linalg.eigh(problem.prior)
  e = len(vectors) + 1
  axes = np.eye(e)
  axes[:-1, :-1] = vectors
  along_axes = [np.roll(axes, shift, axis=1)[:, -num_hidden:] for shift in range(e)]
  random = np.random.default_rng(0)
  starts = random.normal(size=(num_starts, e, num_hidden))
  half = num_starts // 2
  starts[:half, -1] *= 10 ** random.uniform(-2, 2, size=(half, 1))
  return np.concatenate([along_axes, starts])


def _descend(problem: Conditions, start: Float[np.ndarray, 'e m']) -> float:
  """The cost at the end of a local search over subspaces.

  Near an orthonormal basis Q of a subspace, with complement Q', the subspaces are those
  spanned by `Q + Q'Z`. The entries of Z stay within ±1, where this basis is
  well-conditioned; a search that ends at this bound goes on from the new basis.
  """
  m = start.shape[1]
  lowest = np.inf
  while True:
    q, _ = np.linalg.qr(start, mode='complete')
    basis, complement = q[:, :m], q[:, m:]

    def function(
      z: Float[np.ndarray, ' n'], basis=basis, complement=complement
    ) -> tuple[float, Float[np.ndarray, ' n']]:
      cost, slope = problem.cost_and_slope(basis + complement @ z.reshape(-1, m))
      return cost, (complement.T @ slope).ravel()

    found = scipy.optimize.minimize(
      function,
      np.zeros(complement.shape[1] * m),
      jac=True,
      method='L-BFGS-B',
      bounds=scipy.optimize.Bounds(-1, 1),
      # A long memory: with C large the default of 10 takes three times the steps.
      options={'ftol': 1e-15, 'gtol': 1e-9, 'maxiter': 2000, 'maxcor': 40},
    )
    cost = float(found.fun)
    if np.abs(found.x).max() < 1 or cost > lowest * (1 - 1e-12):
      return min(cost, lowest)
    start, lowest = basis + complement @ found.x.reshape(-1, m), cost
