"""The best schedules of gradient descent on linear regression."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import ArrayLike, Complex, Float

from zoo.core.errors import UserError, check_count
from zoo.core.learning_rule import AnyArray
from zoo.estimators.linear_prior import (
  best_first_step,
  feature_variance,
  second_moments,
)
from zoo.tasks.linear_regression import LinearRegression
from zoo.theory import wishart
from zoo.theory.search import least_squares, lowest_point

# A function from a schedule to numbers whose squares sum to its risk.
Residuals = Callable[[Float[AnyArray, ' k']], Float[AnyArray, ' r']]
# A search for a schedule without closed form has so many random starts.
_NUM_STARTS = 12
# The time of the spectrum for k steps grows like k^2.6: 128 steps take half a minute.
_MAX_STEPS = 128


def best_step_size(
  task: LinearRegression, num_steps: int = 1, start: ArrayLike | None = None
) -> float:
  """Returns the constant step size of gradient descent that has the least risk.

  For one step there is a closed form on every task; for more steps a search finds the
  size.

  Args:
    task: A `linear_regression`. For more than one step its feature covariance must be a
      multiple of the identity.
    num_steps: The number of steps, from 1 to 128.
    start: The weights at which descent begins: a number for all features, or `[d]`.
      None means the prior mean.

  Returns:
    The step size, for the loss `Σ_i (w·x_i − y_i)² / (2C)`.

  Raises:
    UserError: If the theory does not cover the task, or an argument is out of its
      range.

  Example:
    >>> task = zoo.tasks.LinearRegression(num_features=2, context_length=3)
    >>> round(zoo.theory.best_step_size(task), 6)
    0.5
  """
  num_steps = check_count('num_steps', num_steps, maximum=_MAX_STEPS)
  if num_steps == 1:
    return best_first_step(task, start)

  residuals = _residuals(task, num_steps, start)

  def risk(step_size: float) -> float:
    return float(np.sum(np.square(residuals(np.full(num_steps, step_size)))))

  # By Jensen's inequality any step beyond twice the inverse feature variance is worse
  # than no step. Below it the risk is convex without noise. With noise it may have
  # several valleys, so that a search begins at the lowest point of a grid. The step is
  # sought in the unit in which the feature variance is 1.
  variance = feature_variance(task)
  found = lowest_point(lambda size: risk(size / variance), np.linspace(0, 2, 201))
  return found / variance


class PolynomialOptimum(NamedTuple):
  """The best predictor that is a polynomial of given degree in S, and its risk.

  Attributes:
    risk: The least risk.
    roots: The roots of P (see `polynomial_optimum`). The array is empty if the start is
      known to be right.
    steps: A schedule of step sizes that attains the risk. None if P has complex roots.
    coefficients: The coefficients of Q, from that of S⁰ upwards.
  """

  risk: float
  roots: Complex[np.ndarray, ' k']
  steps: Float[np.ndarray, ' k'] | None
  coefficients: Float[np.ndarray, ' k']


def polynomial_optimum(
  task: LinearRegression, degree: int, start: ArrayLike | None = None
) -> PolynomialOptimum:
  """Finds the polynomial of given degree in `S = XᵀX/C` that predicts best.

  The rows of X are the features of C examples, y are their labels, w_0 is a start, and
  ŵ are the weights from which the prompt was drawn. The predictor has the weights
  `w_0 + Q(S) Xᵀ(y − X w_0)/C`, where Q is a polynomial of the degree k − 1. Let
  `P(s) = 1 − s Q(s)` and `N = E (ŵ − w_0)(ŵ − w_0)ᵀ`. Let p_k be the k-th of the
  polynomials that are orthogonal under the average `E tr S f(S)`, in which each
  eigenvalue of S has a weight of its own size. The best P is

      P(s) = (λ + s R(s)) / (s + λ),   R(s) = p_k(s) / p_k(−λ),   λ = σ² d / (C tr N).

  k steps of gradient descent give such weights, with `P(s) = Π_j (1 − step_j s)`. So no
  schedule has a lower risk, and the inverse roots of P attain it if all of them are
  real.

  Args:
    task: A `linear_regression` whose feature covariance is a multiple of the identity.
    degree: k, from 1 to 128.
    start: w_0: a number for all features, or `[d]`. None means the prior mean.

  Returns:
    The risk, the roots of P, the schedule if there is one, and the coefficients of Q.

  Raises:
    UserError: If the theory does not cover the task or its feature covariance, or an
      argument is out of its range.

  Example:
    >>> task = zoo.tasks.LinearRegression(num_features=2, context_length=3)
    >>> best = zoo.theory.polynomial_optimum(task, degree=2)
    >>> round(best.risk, 4), best.steps.round(4).tolist()
    (0.6839, [0.2493, 0.8152])

  References:
    docs/theory_one_layer.md, section 6.
  """
  degree = check_count('degree', degree, maximum=_MAX_STEPS)
  variance = feature_variance(task)
  deviation = float(np.trace(second_moments(task, start)[0]))
  if deviation == 0:  # The start is known to be right.
    nothing = np.zeros(degree)
    return PolynomialOptimum(0.0, np.zeros(0, complex), nothing, nothing)
  d, c = task.num_features, task.context_length
  penalty = task.noise_std**2 * d / (c * deviation * variance)
  diagonal, off_diagonal = wishart.jacobi(d, c, degree + 1, power=1)
  last = wishart.polynomials(diagonal, off_diagonal, np.array([-penalty]))[-1, -1]
  # The eigenvalues are the zeros of λ p_k(−λ) + s p_k(s); P has all of them but −λ.
  matrix = np.diag(diagonal) + np.diag(off_diagonal, 1) + np.diag(off_diagonal, -1)
  matrix[-1] = 0
  matrix[-1, 0] = -penalty * last
  roots = np.linalg.eigvals(matrix).astype(complex)
  roots = variance * np.delete(roots, np.argmin(np.abs(roots + penalty)))
  if task.noise_std == 0:  # P is an orthogonal polynomial, whose roots are real.
    roots = np.real(roots).astype(complex)
  residuals = _residuals(task, degree, start)

  def risk_of(steps: AnyArray) -> float:
    # This is a sum of squares, so that even a tiny risk has many digits.
    return float(np.sum(np.square(np.abs(residuals(steps)))))

  risk, steps = risk_of(1 / roots), np.sort(np.real(1 / roots))
  # A double root is computed as a pair that rounding has made complex.
  attained = risk_of(steps) <= risk * (1 + 1e-12)
  # P is Π_j (1 − step_j s), and Q = (1 − P)/s.
  coefficients = -np.real(np.poly(1 / roots))[1:]
  return PolynomialOptimum(risk, roots, steps if attained else None, coefficients)


def best_schedule(
  task: LinearRegression, num_steps: int, start: ArrayLike | None = None
) -> Float[np.ndarray, ' k']:
  """Returns the step sizes of gradient descent, one for each step, of least risk.

  They are the `steps` of `polynomial_optimum` if it has any, which is always so without
  noise; then no other schedule has a lower risk. Otherwise they are the best of many
  local searches: no worse than the best constant step or the best schedule of fewer
  steps, and above the risk of `polynomial_optimum`, which no schedule attains.

  Args:
    task: A `linear_regression` whose feature covariance is a multiple of the identity.
    num_steps: The number of steps k, from 1 to 128.
    start: The weights at which descent begins: a number for all features, or `[d]`.
      None means the prior mean.

  Returns:
    The step sizes `[k]`, whose order does not matter.

  Raises:
    UserError: If the theory does not cover the task or its feature covariance, or an
      argument is out of its range.

  Example:
    >>> task = zoo.tasks.LinearRegression(num_features=2, context_length=3)
    >>> zoo.theory.best_schedule(task, num_steps=2).round(4).tolist()
    [0.2493, 0.8152]
  """
  num_steps = check_count('num_steps', num_steps, maximum=_MAX_STEPS)
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
  """Returns the exact risk of gradient descent with given step sizes.

  `start` defaults to the prior mean. Raises UserError unless the feature covariance is
  a multiple of the identity.
  """
  residuals = _residuals(task, step_sizes.size, start)
  return float(np.sum(np.square(residuals(step_sizes))))


def _residuals(
  task: LinearRegression, num_steps: int, start: ArrayLike | None
) -> Residuals:
  """Returns the residuals of a schedule, as a function of its steps.

  The residuals are in NumPy or JAX like the steps. With `P(s) = Π_j (1 − η_j s)` and
  `Q(s) = (1 − P(s)) / s` the weights are off by `P(S)(start − ŵ) + Q(S) Xᵀn/C`. A
  rotation of the features does not change the law of S, so only the trace of N matters,
  and the risk is an average over the spectrum of S.

  Raises:
    UserError: If there are more than `_MAX_STEPS` steps.
  """
  if num_steps > _MAX_STEPS:
    raise UserError(
      f'the exact risk of gradient descent is computed for at most {_MAX_STEPS} steps; '
      f'there are {num_steps}'
    )
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
