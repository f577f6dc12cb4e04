"""Training without noise: gradient flow and descent of weights on the exact risk."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, ArrayLike, Float, PyTree

from zoo.core.errors import (
  RunError,
  UserError,
  check_array,
  check_name,
  check_number,
  check_same,
  check_vector,
)
from zoo.core.learning_rule import AnyArray, LearningRule
from zoo.core.protocols import FollowsRule, Predictor, Task
from zoo.theory.optimum import optimal_rule
from zoo.theory.precision import double_precision, in_float64
from zoo.theory.risk import Moments, mean_square, population_risk, task_moments

# Each optimizer does this to the gradient before the learning rate multiplies it.
OPTIMIZERS = {'sgd': optax.identity, 'adam': optax.scale_by_adam}


Numbers = ArrayLike | Sequence[Any]


class Trajectory(NamedTuple):
  """What the weights of a model do in training on the exact risk, in float64.

  `gradient_flow` and `descent` return it, and `gradient_flows` returns several.

  Attributes:
    times: The n times of a flow; for `descent` the n numbers of steps.
    rules: The learning rule of the model at each time.
    risks: The exact risk at each time.
    gradient_norms: The Euclidean norm of the gradient over all weights, at each time.
    alignments: The cosine `E f f* / √(E f² E f*²)` of the predictions f and those of
      `optimal_rule`, f*, at each time. It is 0 if the model predicts 0.
    end: The model at the last time, with float64 weights. Call it inside
      `zoo.theory.precision.double_precision`.
  """

  times: Float[np.ndarray, ' n']
  rules: tuple[LearningRule, ...]
  risks: Float[np.ndarray, ' n']
  gradient_norms: Float[np.ndarray, ' n']
  alignments: Float[np.ndarray, ' n']
  end: Any

  @property
  def guesses(self) -> Float[np.ndarray, 'n d']:
    """The learned guesses `[n, d]`: the weights before any example is seen."""
    return np.stack([rule.init for rule in self.rules])


def gradient_flow(
  model: Predictor | nnx.Module,
  task: Task,
  times: Numbers,
  tolerance: float = 1e-10,
) -> Trajectory:
  """Solves the gradient flow `dθ/dt = −∂R/∂θ` of a model's weights θ.

  R is the exact risk. No prompts are sampled, so the trajectory has no noise.
  Everything is computed in float64.

  Args:
    model: A model of the linear family, or heads of `zoo.theory.dynamics`. All of its
      parameters train, from their values in the model, which does not change.
    task: A `linear_regression`.
    times: The times at which the weights are measured, ≥ 0 and not decreasing.
    tolerance: The relative error of a step of the solver, ≥ 1e-13. The absolute error
      is a hundredth of it. The solver is LSODA, of SciPy.

  Returns:
    The rules, risks, gradient norms and alignments at these times, and the last model.

  Raises:
    UserError: If the theory does not cover the task, if the model has no learning rule,
      no weights that train or another number of features, or if `times` or `tolerance`
      is out of its range.
    RunError: If the solver fails.

  Example:
    >>> task = zoo.tasks.LinearRegression(num_features=1, context_length=2)
    >>> heads = zoo.theory.dynamics.merged_heads(1, num_heads=1, scale=0.5)
    >>> flow = zoo.theory.gradient_flow(heads, task, [0.0, 100.0])
    >>> round(float(flow.risks[-1]), 4)
    0.5

  References:
    docs/dynamics.md.
  """
  tolerance = check_number('tolerance', tolerance, minimum=1e-13)
  at = increasing('times', times)
  moments = task_moments(task)
  with double_precision():
    subject, start = weights_of(model, moments)
    gradient = nnx.cached_partial(_gradient, subject)  # This splits the model once.

    def slope(point: Float[np.ndarray, ' p']) -> Float[np.ndarray, ' p']:
      return -np.asarray(gradient(point, moments))

    points = integrate(slope, start, at, tolerance)
    return _trajectory(subject, points, at, moments, optimal_rule(task))


def integrate(
  slope: Callable[[Float[np.ndarray, ' p']], Float[np.ndarray, ' p']],
  start: Float[np.ndarray, ' p'],
  times: Float[np.ndarray, ' n'],
  tolerance: float,
) -> Float[np.ndarray, 'n p']:
  """Returns the points of `dx/dt = slope(x)` at these times.

  Args:
    slope: The function that returns the derivative at a point.
    start: The point at the time 0, `[p]`.
    times: The times at which points are returned, `[n]`, ≥ 0 and not decreasing.
    tolerance: The relative error of a step of the solver. The absolute error is a
      hundredth of it.

  Returns:
    The points, `[n, p]`.

  Raises:
    RunError: If the solver fails.
  """
  import scipy.integrate  # It is slow to import, and rarely needed.

  if times[-1] == 0:  # The solver would never end.
    return np.tile(start, (len(times), 1))
  distinct, places = np.unique(times, return_inverse=True)
  solution = scipy.integrate.solve_ivp(
    lambda _, point: slope(point),
    (0.0, times[-1]),
    start,
    method='LSODA',
    t_eval=distinct,
    rtol=tolerance,
    atol=tolerance / 100,
  )
  if solution.status < 0 or not np.all(np.isfinite(solution.y)):
    raise RunError(f'the solver of the gradient flow failed: {solution.message}')
  return solution.y.T[places]


def gradient_flows(
  models: Sequence[Predictor | nnx.Module],
  task: Task,
  times: Numbers,
  tolerance: float = 1e-8,
) -> tuple[Trajectory, ...]:
  """Solves `gradient_flow` for each of several models, such as many seeds or scales.

  Models of one kind and of the same sizes share one compiled program.

  Args:
    models: The models.
    task: A `linear_regression`.
    times: The times at which the weights are measured, ≥ 0 and not decreasing.
    tolerance: The relative error of a step of the solver, ≥ 1e-13. The default is
      larger than that of `gradient_flow`.

  Returns:
    One trajectory for each model.

  Raises:
    UserError: If the theory does not cover the task, if a model has no learning rule,
      no weights that train or another number of features, or if `times` or `tolerance`
      is out of its range.
    RunError: If the solver fails.

  Example:
    >>> task = zoo.tasks.LinearRegression(num_features=1, context_length=2)
    >>> models = [
    ...   zoo.theory.dynamics.merged_heads(1, num_heads=1, scale=0.5, seed=seed)
    ...   for seed in (0, 1)
    ... ]
    >>> flows = zoo.theory.dynamics.gradient_flows(models, task, [0.0, 100.0])
    >>> [round(float(flow.risks[-1]), 3) for flow in flows]
    [0.5, 0.5]
  """
  with double_precision():
    copies = [in_float64(model) for model in models]
    return tuple(gradient_flow(copy, task, times, tolerance) for copy in copies)


def descent(
  model: Predictor | nnx.Module,
  task: Task,
  learning_rate: Numbers,
  steps: Numbers,
  optimizer: str = 'sgd',
) -> Trajectory:
  """Takes steps of gradient descent, or of Adam, on the exact risk.

  No prompts are sampled, so the trajectory has no noise. Everything is computed in
  float64.

  Args:
    model: A model of the linear family, or heads of `zoo.theory.dynamics`. All of its
      parameters train, from their values in the model, which does not change.
    task: A `linear_regression`.
    learning_rate: The learning rate, ≥ 0: one number for all steps, or one for each of
      the steps up to the last of `steps`.
    steps: The numbers of steps after which the weights are measured: integers ≥ 0 that
      do not decrease.
    optimizer: 'sgd', or 'adam' with the other parameters of Optax's defaults.

  Returns:
    The rules, risks, gradient norms and alignments after these steps, and the last
    model.

  Raises:
    UserError: If the theory does not cover the task, if the model has no learning rule,
      no weights that train or another number of features, or if another argument is out
      of its range.

  Example:
    >>> task = zoo.tasks.LinearRegression(num_features=1, context_length=2)
    >>> heads = zoo.theory.dynamics.merged_heads(1, num_heads=1, scale=0.5)
    >>> path = zoo.theory.dynamics.descent(heads, task, 0.1, [0, 200])
    >>> round(float(path.risks[-1]), 4)
    0.5

  References:
    docs/dynamics.md.
  """
  check_name('optimizer', optimizer, OPTIMIZERS)
  at = increasing('steps', steps)
  if not np.array_equal(at, np.round(at)):
    raise UserError(f'steps has {at[at != np.round(at)][0]:g}; all must be integers')
  rates = check_array('learning_rate', learning_rate, [(), (int(at[-1]),)])
  if np.any(rates < 0):
    raise UserError(f'learning_rate has {rates.min():g}; it must be ≥ 0')
  moments = task_moments(task)
  with double_precision():
    subject, start = weights_of(model, moments)
    carry: tuple[Any, PyTree] = start, OPTIMIZERS[optimizer]().init(start)
    points, done = [], 0
    for step in at.astype(int).tolist():
      carry = _steps(subject, optimizer, carry, moments, rates, done, step)
      points.append(np.asarray(carry[0]))
      done = step
    optimum = optimal_rule(task)
    return _trajectory(subject, np.stack(points), at, moments, optimum)


def weights_of(
  model: Predictor | nnx.Module, moments: Moments
) -> tuple[nnx.Module, Float[np.ndarray, ' p']]:
  """Returns a copy of a model in float64, and its weights.

  Use the copy inside `double_precision`.

  Raises:
    UserError: If the model has no learning rule or is not an NNX module, or if its rule
      is for another number of features.
  """
  follower = in_float64(model)
  if not isinstance(follower, FollowsRule):
    raise UserError(f'{type(model).__name__} has no learning rule, which a flow needs')
  if not isinstance(follower, nnx.Module):
    raise UserError(
      f'{type(model).__name__} has no weights that train; it must be an NNX module'
    )
  rule = nnx.eval_shape(lambda: follower.learning_rule())
  check_same('features', rule.num_features, moments.prior_mean.size)
  weights, _ = ravel_pytree(nnx.state(follower, nnx.Param))
  return follower, np.asarray(weights)


def at_weights(model: nnx.Module, point: Float[AnyArray, ' p']) -> Any:
  """Returns a model with the weights of a vector."""
  graph, weights, rest = nnx.split(model, nnx.Param, ...)
  _, unravel = ravel_pytree(weights)
  return nnx.merge(graph, unravel(jnp.asarray(point)), rest)


def risk_at(
  model: nnx.Module, point: Float[AnyArray, ' p'], moments: Moments
) -> Float[Array, '']:
  """Returns the exact risk as a function of the weights, for use under jit and grad."""
  return population_risk(at_weights(model, point).learning_rule(), moments)


slope_at = jax.grad(risk_at, argnums=1)
_gradient = nnx.jit(slope_at)


@nnx.jit(static_argnums=1)
def _steps(
  model: nnx.Module,
  name: str,
  carry: tuple[Float[AnyArray, ' p'], PyTree],
  moments: Moments,
  rates: Float[AnyArray, '*k'],
  first: int | Array,
  last: int | Array,
) -> tuple[Float[AnyArray, ' p'], PyTree]:
  """Returns weights and the optimizer's state after the steps `first` to `last` − 1."""
  optimizer = OPTIMIZERS[name]()

  def step(index: Array, carry: tuple[Any, PyTree]) -> tuple[Any, PyTree]:
    point, state = carry
    moves, state = optimizer.update(slope_at(model, point, moments), state)
    return point - (rates if rates.ndim == 0 else rates[index]) * moves, state

  return jax.lax.fori_loop(first, last, step, carry)


def _trajectory(
  model: nnx.Module,
  points: Float[np.ndarray, 'n p'],
  times: Float[np.ndarray, ' n'],
  moments: Moments,
  optimum: LearningRule,
) -> Trajectory:
  """Measures a model at the weights of each time."""
  # The points are measured one by one, so that any number of them uses one program.
  measured = [
    jax.device_get(_measures(model, point, moments, optimum)) for point in points
  ]
  rules, *numbers = zip(*measured, strict=True)
  end = at_weights(model, points[-1])
  return Trajectory(times, rules, *map(np.array, numbers), end=end)


@nnx.jit
def _measures(
  model: nnx.Module,
  point: Float[AnyArray, ' p'],
  moments: Moments,
  optimum: LearningRule,
) -> tuple[LearningRule, Array, Array, Array]:
  """Returns the rule, its risk, the norm of the gradient, and the alignment."""
  rule = at_weights(model, point).learning_rule()
  risk, slope = jax.value_and_grad(risk_at, argnums=1)(model, point, moments)
  size, wanted = sum(mean_square(rule, moments)), sum(mean_square(optimum, moments))
  product = sum(mean_square(rule + optimum, moments))
  product = (product - sum(mean_square(rule - optimum, moments))) / 4
  scale = jnp.sqrt(size * wanted)
  alignment = jnp.where(scale > 0, product / jnp.where(scale > 0, scale, 1), 0)
  return rule, risk, jnp.linalg.norm(slope), alignment


def increasing(name: str, values: Numbers) -> Float[np.ndarray, ' n']:
  """Returns times as an array; raises UserError unless they are ≥ 0 and do not fall."""
  at = check_vector(name, values, None)
  if at[0] < 0 or np.any(np.diff(at) < 0):
    raise UserError(f'{name} must be ≥ 0 and must not decrease')
  return at
