"""Estimators of linear regression with few weights that are not 0."""

from __future__ import annotations

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from zoo.core.distributions import GaussianMixture
from zoo.core.prompt import Prompt
from zoo.core.trees import Number
from zoo.estimators.baselines import Baseline, Describing, Examples
from zoo.estimators.posteriors import Posterior, log_density_of_features, log_norm


@struct.dataclass(eq=False, repr=False)
class SparseBayes(Posterior, Describing):
  """The posterior mean if `num_nonzero` random weights are N(0, 1) and the others 0.

  This is exact: the mean over all supports S (sets of coordinates) of the posterior
  mean given S, weighted by the evidence `N(y; 0, X_S X_Sᵀ + σ² I)`. Without noise, more
  examples than `num_nonzero` leave only the support that fits them, and prompts have no
  density. With at most `num_nonzero` examples, every support fits; the posterior mean
  given S is then the solution of least norm.

  Args:
    num_features: Number of features d.
    num_nonzero: Number of weights that are not 0.
    noise_std: Standard deviation σ of the noise: 0, or at least 1e-5, below which
      rounding errors of float32 decide between supports.
  """

  # Each prompt needs thousands of fits.
  one_by_one = True

  num_features: int = struct.field(pytree_node=False)
  num_nonzero: int = struct.field(pytree_node=False)
  noise_std: Number = 0.0

  def weigh(self, examples: Examples) -> tuple[Float[Array, ''], Float[Array, '']]:
    density, log_evidence, prediction, _ = self._of_supports(examples)
    return density, jnp.dot(jax.nn.softmax(log_evidence), prediction)

  def describe(self, examples: Examples) -> GaussianMixture:
    """Returns the distribution of the observed label of the query.

    It has a component for each support, by the posterior of its weights.
    """
    _, log_evidence, prediction, std = self._of_supports(examples)
    return GaussianMixture(log_evidence, prediction, std)

  def belief(self, prompt: Prompt) -> Float[Array, 'b t d']:
    """Returns the probability that each weight is not 0, after each example."""
    supports = _supports(self.num_features, self.num_nonzero)
    members = np.zeros((len(supports), self.num_features))
    np.put_along_axis(members, supports, 1.0, axis=1)

    def of_one(examples: Examples) -> Float[Array, ' d']:
      posterior = jax.nn.softmax(self._of_supports(examples)[1])
      members_of = jnp.asarray(members, posterior.dtype)
      return jnp.matmul(posterior, members_of, precision='highest')

    return self._everywhere(of_one, prompt)

  def _of_supports(
    self, examples: Examples
  ) -> tuple[
    Float[Array, ''], Float[Array, ' n'], Float[Array, ' n'], Float[Array, ' n']
  ]:
    """Returns the log density; by support, the evidence, and mean and std of labels."""
    x, y, _, x_query = examples.zeroed()
    std = jnp.asarray(self.noise_std, x.dtype)
    noiseless, overdetermined = std == 0, examples.num_seen > self.num_nonzero
    std = jnp.where(noiseless, float(jnp.finfo(x.dtype).eps), std).astype(x.dtype)
    supports = _supports(self.num_features, self.num_nonzero)
    misfit, log_det, prediction, spread = _ridge(x, y, std, x_query, supports)
    log_evidence = -misfit / (2 * std * std) - log_det
    # Without noise, a wrong support fits all examples with probability 0. The misfit of
    # the true support is a rounding error, so it is the smallest one.
    fits = jnp.where(misfit == jnp.min(misfit), 0, -jnp.inf).astype(x.dtype)
    log_evidence = jnp.where(noiseless & overdetermined, fits, log_evidence)
    # The density is N(y; 0, X_S X_Sᵀ + σ²), whose determinant is |A| σ^(2(k − s)).
    density = jax.scipy.special.logsumexp(log_evidence) - math.log(len(supports))
    density += self.num_nonzero * jnp.log(std) - log_norm(std, examples)
    density += log_density_of_features(examples)
    of_label = std * jnp.sqrt(1 + spread)
    # Without noise every support fits as few examples as it has weights, or fewer.
    interpolating = noiseless & ~overdetermined
    few_evidence, few_prediction, few_std = _interpolation(
      x, y, examples.seen, x_query, supports
    )
    log_evidence = jnp.where(interpolating, few_evidence, log_evidence)
    prediction = jnp.where(interpolating, few_prediction, prediction)
    of_label = jnp.where(interpolating, few_std, jnp.where(noiseless, 0, of_label))
    return density, log_evidence, prediction, of_label


@functools.lru_cache(maxsize=8)
def _supports(num_features: int, num_nonzero: int) -> Int[np.ndarray, 'n s']:
  every = itertools.combinations(range(num_features), num_nonzero)
  return np.array(list(every), np.int32)


def _ridge(
  x: Float[Array, 'c d'],
  y: Float[Array, ' c'],
  std: Float[Array, ''],
  x_query: Float[Array, ' d'],
  supports: Int[np.ndarray, 'n s'],
) -> tuple[
  Float[Array, ' n'], Float[Array, ' n'], Float[Array, ' n'], Float[Array, ' n']
]:
  """Returns the least loss, ½ log|A|, w·x_q and x_qᵀA⁻¹x_q for each support.

  They are those of ridge regression with `A = XᵀX + std² I`. It is computed as least
  squares on `[X; std I]` by modified Gram–Schmidt, with the labels as one more column.
  This is backward stable: however badly conditioned X is, the loss is off only by the
  rounding of y (Björck, Numerical Methods for Least Squares Problems, 2.4).
  """
  n, s = supports.shape
  # Supports are the last axis, since there are many. The shape is [c + s, n].
  penalties = jnp.broadcast_to(std * jnp.eye(s, dtype=x.dtype)[:, :, None], (s, s, n))
  columns = [jnp.concatenate([x[:, supports[:, j]], penalties[j]]) for j in range(s)]
  residual = jnp.broadcast_to(jnp.pad(y, (0, s))[:, None], (len(y) + s, n))
  # Removing each direction from the query amounts to back substitution.
  query = [x_query[supports[:, j]] for j in range(s)]
  log_det = prediction = spread = jnp.zeros(n, x.dtype)
  for j in range(s):
    norm = jnp.sqrt(jnp.sum(columns[j] * columns[j], axis=0))
    direction = columns[j] / norm[None]
    log_det = log_det + jnp.log(norm)
    label = jnp.sum(direction * residual, axis=0)
    residual = residual - label[None] * direction
    along = query[j] / norm
    prediction = prediction + label * along
    spread = spread + along * along
    for i in range(j + 1, s):
      product = jnp.sum(direction * columns[i], axis=0)
      columns[i] = columns[i] - product[None] * direction
      query[i] = query[i] - product * along
  return jnp.sum(residual * residual, axis=0), log_det, prediction, spread


def _interpolation(
  x: Float[Array, 'c d'],
  y: Float[Array, ' c'],
  seen: Bool[Array, ' c'],
  x_query: Float[Array, ' d'],
  supports: Int[np.ndarray, 'n s'],
) -> tuple[Float[Array, ' n'], Float[Array, ' n'], Float[Array, ' n']]:
  """Returns log N(y; 0, X_S X_Sᵀ) up to a constant, and mean and std of w·x_q.

  They are those of weights w ~ N(0, I) on each support that fit the examples without
  noise, of which at most s are seen. With X_S = L Q, where L is a lower triangle and
  the rows of Q are orthonormal, and with L a = y, the weights of least norm are Qᵀ a,
  the log density is −|a|²/2 − log|L|, and the label of the query varies by the part of
  its features that is orthogonal to Q. Q comes from modified Gram–Schmidt.

  An example whose features depend on those of earlier ones adds no row to Q. A support
  on which it contradicts their labels is impossible.
  """
  n, s = supports.shape
  rows = [x[i][supports.T] for i in range(min(len(x), s))]  # [s, n] for each example
  labels = [jnp.broadcast_to(label, n) for label in y]
  # Of features, what is left of 32 roundings of them counts as 0. Of labels it is 1000
  # roundings, so that examples that hardly differ do not contradict each other.
  eps = float(jnp.finfo(x.dtype).eps)
  least = [(32 * eps) ** 2 * jnp.sum(row * row, axis=0) for row in rows]
  least_label = 1000 * eps * jnp.max(jnp.abs(y), initial=0)
  query = x_query[supports.T]
  log_evidence = prediction = rank = jnp.zeros(n, x.dtype)
  for i, row in enumerate(rows):
    square = jnp.sum(row * row, axis=0)
    is_new = square > least[i]  # An example that is not seen is 0.
    norm = jnp.sqrt(jnp.where(is_new, square, 1))
    direction = jnp.where(is_new, row, 0) / norm[None]
    coordinate = jnp.where(is_new, labels[i], 0) / norm
    contradicts = ~is_new & seen[i] & (jnp.abs(labels[i]) > least_label)
    gain = -coordinate * coordinate / 2 - jnp.log(norm)
    log_evidence = log_evidence + jnp.where(contradicts, -jnp.inf, gain)
    along = jnp.sum(direction * query, axis=0)
    query = query - along[None] * direction
    prediction = prediction + coordinate * along
    rank = rank + is_new.astype(x.dtype)
    for j in range(i + 1, len(rows)):
      along = jnp.sum(direction * rows[j], axis=0)
      rows[j] = rows[j] - along[None] * direction
      labels[j] = labels[j] - along * coordinate
  # If no support is possible, all are as likely as each other.
  log_evidence = jnp.where(jnp.all(jnp.isinf(log_evidence)), 0, log_evidence)
  # As many independent examples as weights determine the label; what is left of the
  # query is rounding.
  left = jnp.where(rank < s, jnp.sum(query * query, axis=0), 0)
  std = jnp.where(left > 0, jnp.sqrt(jnp.where(left > 0, left, 1)), 0)
  return log_evidence, prediction, std


@struct.dataclass(eq=False, repr=False)
class Lasso(Baseline):
  """Least squares with an L1 penalty, by FISTA.

  It minimises `L(w) = |y − Xw|² / (2k) + penalty |w|_1` over k examples (Tibshirani
  1996). It stops when L is known to be within `tolerance |y|² / k` of its least value.
  The method is accelerated proximal gradients (Beck & Teboulle 2009) with restarts
  (O'Donoghue & Candès 2015).

  Args:
    penalty: The penalty. The default is the best one of those in Garg et al. (arXiv
      2208.01066) from 10 examples on.
    tolerance: When to stop, see above.
    max_steps: Number of steps after which it stops in any case.
  """

  penalty: Number = 0.01
  tolerance: Number = 1e-5
  max_steps: int = struct.field(pytree_node=False, default=2000)

  def predict(self, examples: Examples) -> Float[Array, '']:
    return jnp.dot(examples.x_query, self.weights(examples))

  def weights(self, examples: Examples) -> Float[Array, ' d']:
    """Returns the weights that are fitted to the seen examples; without any, 0."""
    x, y, *_ = examples.zeroed()
    d, count = x.shape[1], jnp.maximum(examples.num_seen, 1)
    gram, moment = x.T @ x / count, y @ x / count
    power = jnp.dot(y, y) / count
    # Without examples the weights stay 0, whatever the step size.
    step_size = 1 / jnp.maximum(jnp.linalg.eigvalsh(gram)[-1], 1e-30)

    def duality_gap(w: Array) -> Array:
      """Returns an upper bound on L(w) minus its minimum (Kim et al. 2007, eq. 10)."""
      slopes = moment - gram @ w
      misfit = power - jnp.dot(w, moment + slopes)  # |y − Xw|² / k
      scale = jnp.minimum(1, self.penalty / jnp.maximum(jnp.abs(slopes).max(), 1e-30))
      dual = scale * (power - jnp.dot(w, moment)) - scale * scale * misfit / 2
      return misfit / 2 + self.penalty * jnp.abs(w).sum() - dual

    def step(state: tuple[Array, ...]) -> tuple[Array, ...]:
      index, w, ahead, momentum, _ = state
      new = ahead + step_size * (moment - gram @ ahead)
      new = jnp.sign(new) * jnp.maximum(jnp.abs(new) - step_size * self.penalty, 0)
      uphill = jnp.dot(ahead - new, new - w) > 0
      momentum = jnp.where(uphill, 1, momentum)
      more = (1 + jnp.sqrt(1 + 4 * momentum * momentum)) / 2
      ahead = new + (momentum - 1) / more * (new - w)
      return index + 1, new, ahead, more, duality_gap(new)

    def unfinished(state: tuple[Array, ...]) -> Array:
      return (state[0] < self.max_steps) & (state[-1] > self.tolerance * power)

    w, unit = jnp.zeros(d, x.dtype), jnp.ones((), x.dtype)
    start = jnp.zeros((), int), w, w, unit, unit * jnp.inf
    return jax.lax.while_loop(unfinished, step, start)[1]
