"""The best schedules of gradient descent on linear regression."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import ArrayLike, Complex, Float

from zoo.core.errors import check_count
from zoo.core.learning_rule import AnyArray
from zoo.estimators.linear import MAX_STEPS
from zoo.estimators.linear_prior import (
  best_first_step,
  feature_variance,
  second_moments,
)
from zoo.tasks.linear_regression import LinearRegression
from zoo.theory import wishart
from zoo.theory.search import least_squares, lowest_point

# Numbers whose squares sum to the risk of a schedule.
Residuals = Callable[[Float[AnyArray, ' k']], Float[AnyArray, ' r']]
_NUM_STARTS = 12  # random starts of the search for a schedule without closed form


def best_step_size(
  task: LinearRegression, num_steps: int = 1, start: ArrayLike | None = None
) -> float:
  """The constant step size of least risk; `start` defaults to the prior mean.

  For one step there is a closed form on every task. Raises UserError for more steps
  unless the feature covariance is a multiple of the identity.
  """
  num_steps = check_count('num_steps', num_steps, maximum=MAX_STEPS)
  if num_steps == 1:
    return best_first_step(task, start)

  residuals = _residuals(task, num_steps, start)

  def risk(step_size: float) -> float:
    return float(np.sum(np.square(residuals(np.full(num_steps, step_size)))))

  # By Jensen's inequality any step beyond twice the inverse feature variance is worse
  # than no step. Without noise the risk is convex in between; with noise it may have
  # several valleys, and a grid picks the lowest.
  return lowest_point(risk, np.linspace(0, 2 / feature_variance(task), 201))


class PolynomialOptimum(NamedTuple):
  """The best predictor that is a polynomial of given degree in S, and its risk."""

  risk: float
  roots: Complex[np.ndarray, ' k']  # of P; none if the start is known to be right
  # A schedule that attains the risk; None if P has complex roots.
  steps: Float[np.ndarray, ' k'] | None
  coefficients: Float[np.ndarray, ' k']  # of Q, from that of S⁰ upwards


def polynomial_optimum(
  task: LinearRegression, degree: int, start: ArrayLike | None = None
) -> PolynomialOptimum:
  """The least risk of weights `w_0 + Q(S) Xᵀ(y − X w_0)/C`, Q of degree k − 1.

  With k the `degree`, `P(s) = 1 − s Q(s)` and p_k the k-th orthogonal polynomial of the
  spectrum of S weighted by the eigenvalue, it is

      P(s) = (λ + s R(s)) / (s + λ),   R(s) = p_k(s) / p_k(−λ),   λ = σ² d / (C tr N)

  with N as in `second_moments` (docs/theory.md, section 6). k steps of gradient descent
  give such weights with `P(s) = Π_j (1 − step_j s)`, so that no schedule has a lower
  risk, and the inverse roots of P attain it if all of them are real. Raises UserError
  unless the feature covariance is a multiple of the identity.
  """
  degree = check_count('degree', degree)
  variance = feature_variance(task)
  deviation = float(np.trace(second_moments(task, start)[0]))
  if deviation == 0:  # the start is known to be right
    nothing = np.zeros(degree)
    return PolynomialOptimum(0.0, np.zeros(0, complex), nothing, nothing)
  d, c = task.num_features, task.context_length
  penalty = task.noise_std**2 * d / (c * deviation * variance)
  diagonal, off_diagonal = wishart.jacobi(d, c, degree + 1, power=1)
  points, weights = wishart.spectrum(d, c, degree + 1)
  values = wishart.polynomials(diagonal, off_diagonal, np.append(points, -penalty))
  last = values[-1, -1]
  residual = (penalty + points * values[-1, :-1] / last) / (points + penalty)
  # The zeros of λ p_k(−λ) + s p_k(s); P has all of them but −λ.
  matrix = np.diag(diagonal) + np.diag(off_diagonal, 1) + np.diag(off_diagonal, -1)
  matrix[-1] = 0
  matrix[-1, 0] = -penalty * last
  roots = np.linalg.eigvals(matrix).astype(complex)
  roots = variance * np.delete(roots, np.argmin(np.abs(roots + penalty)))
  risk = variance * deviation * float(weights @ residual)
  steps = np.sort(np.real(1 / roots))
  # A double root is computed as a pair that rounding has made complex.
  attained = gradient_descent_risk(task, steps, start) <= risk * (1 + 1e-12)
  # Π_j (1 − step_j s), and Q = (1 − P)/s.
  coefficients = -np.real(np.poly(1 / roots))[1:]
  return PolynomialOptimum(risk, roots, steps if attained else None, coefficients)


def best_schedule(
  task: LinearRegression, num_steps: int, start: ArrayLike | None = None
) -> Float[np.ndarray, ' k']:
  """The step sizes of least risk, one per step; `start` defaults to the prior mean.

  Their order does not matter. They are the steps of `polynomial_optimum` if it has any,
  as it does without noise, and then no other schedule has a lower risk. Otherwise they
  are the best of many local searches: no worse than the best constant step or the best
  schedule of fewer steps, and above the risk of `polynomial_optimum`, which no schedule
  attains. Raises UserError unless the feature covariance is a multiple of the identity.
  """
  num_steps = check_count('num_steps', num_steps, maximum=MAX_STEPS)
  optimum = polynomial_optimum(task, num_steps, start)
  if optimum.steps is not None:
    return optimum.steps
  constant = np.full(num_steps, best_step_size(task, num_steps, start))
  scale = np.abs(1 / optimum.roots)
  starts = [constant, scale]
  if num_steps > 1:
    starts.append(np.append(best_schedule(task, num_steps - 1, start), 0.0))
  random = np.random.default_rng(0)
  starts.extend(
    random.choice(scale, num_steps) * np.exp(random.normal(size=num_steps))
    for _ in range(_NUM_STARTS)
  )
  residuals = _residuals(task, num_steps, start)
  ends = [np.sort(steps) for steps in least_squares(residuals, starts)]
  return min([constant, *ends], key=lambda steps: np.sum(np.square(residuals(steps))))


def gradient_descent_risk(
  task: LinearRegression, step_sizes: Float[np.ndarray, ' k'], start: ArrayLike | None
) -> float:
  """The exact risk of steps of gradient descent; `start` defaults to the prior mean.

  Raises UserError unless the feature covariance is a multiple of the identity.
  """
  residuals = _residuals(task, step_sizes.size, start)
  return float(np.sum(np.square(residuals(step_sizes))))


def _residuals(
  task: LinearRegression, num_steps: int, start: ArrayLike | None
) -> Residuals:
  """The residuals of schedules of some steps, in NumPy or JAX as these.

  With `P(s) = Π_j (1 − η_j s)` and `Q(s) = (1 − P(s)) / s` the weights are off by
  `P(S)(start − ŵ) + Q(S) Xᵀn/C`. A rotation of the features does not change the law of
  S, so only the trace of N matters, and the risk is an average over the spectrum of S.
  """
  variance = feature_variance(task)
  deviation, _ = second_moments(task, start)
  d, c = task.num_features, task.context_length
  points, weights = wishart.spectrum(d, c, num_steps + 1)
  points = variance * points
  prior = np.sqrt(variance * np.trace(deviation) * weights)
  noise = np.sqrt(variance * task.noise_std**2 * d / c * points * weights)

  first = np.ones((len(points), 1))

  def residuals(steps: AnyArray) -> AnyArray:
    xp = steps.__array_namespace__()
    factors = 1 - points[:, None] * steps[None]
    before = xp.cumprod(xp.concatenate([first, factors], axis=1), axis=1)
    learned = (before[:, :-1] @ steps[:, None])[:, 0]
    return xp.concatenate([prior * before[:, -1], noise * learned])

  return residuals
