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

# What each does to the gradient before it is multiplied by the learning rate.
OPTIMIZERS = {'sgd': optax.identity, 'adam': optax.scale_by_adam}


Numbers = ArrayLike | Sequence[Any]


class Trajectory(NamedTuple):
  """Training on the exact risk: what the weights do at each of n times, in float64."""

  times: Float[np.ndarray, ' n']  # of a flow, or numbers of steps
  rules: tuple[LearningRule, ...]
  risks: Float[np.ndarray, ' n']
  gradient_norms: Float[np.ndarray, ' n']  # Euclidean, over all weights
  # The correlation of the predictions with those of `optimal_rule`; 0 for f = 0.
  alignments: Float[np.ndarray, ' n']
  end: Any  # the model at the last time; use it inside `double_precision`

  @property
  def guesses(self) -> Float[np.ndarray, 'n d']:
    """The weights before any example is seen: the learned guess."""
    return np.stack([rule.init for rule in self.rules])


def gradient_flow(
  model: Predictor | nnx.Module,
  task: Task,
  times: Numbers,
  tolerance: float = 1e-10,
) -> Trajectory:
  """The weights of a model on the flow `dθ/dt = −∂R/∂θ` of the exact risk R.

  `model` is any model of the linear family, or heads of `theory.dynamics`; all of its
  parameters train, from their values in the model. `times` are ≥ 0 and do not decrease.
  `tolerance` is the relative error of a step of the solver, LSODA of SciPy, and a
  hundred times its absolute error. Everything is computed in float64.

  Raises UserError for a task that exact theory does not cover, a model without a
  learning rule, or other times, and RunError if the solver fails.
  """
  tolerance = check_number('tolerance', tolerance, minimum=1e-13)
  at = increasing('times', times)
  moments = task_moments(task)
  with double_precision():
    subject, start = weights_of(model, moments)
    gradient = nnx.cached_partial(_gradient, subject)  # splits the model once

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
  """The points of `dx/dt = slope(x)` at these times; RunError if the solver fails."""
  import scipy.integrate  # slow to import, and rarely needed

  solution = scipy.integrate.solve_ivp(
    lambda _, point: slope(point),
    (0.0, max(times[-1], np.finfo(float).tiny)),
    start,
    method='LSODA',
    t_eval=times,
    rtol=tolerance,
    atol=tolerance / 100,
  )
  if solution.status < 0 or not np.all(np.isfinite(solution.y)):
    raise RunError(f'the solver of the gradient flow failed: {solution.message}')
  return solution.y.T


def gradient_flows(
  models: Sequence[Predictor | nnx.Module],
  task: Task,
  times: Numbers,
  tolerance: float = 1e-8,
) -> tuple[Trajectory, ...]:
  """`gradient_flow` of each of several models, such as for many seeds or scales.

  Models of one kind and of the same sizes share one compiled program.
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
  """As `gradient_flow`, by steps of gradient descent, or of another optimizer, on R.

  `steps` are numbers of steps ≥ 0 that do not decrease, after which the weights are
  measured. `learning_rate` is one number for all steps or one for each of the steps,
  ≥ 0. `optimizer` is 'sgd' or 'adam', with the other parameters as in Optax. Raises
  UserError as `gradient_flow` does, and for an argument that is wrong.
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
  """A copy of a model in float64, and its weights; use it inside `double_precision`.

  Raises UserError if it has no learning rule, or one for other numbers of features, and
  for what is no NNX module.
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
  """A model with the weights of a vector."""
  graph, weights, rest = nnx.split(model, nnx.Param, ...)
  _, unravel = ravel_pytree(weights)
  return nnx.merge(graph, unravel(jnp.asarray(point)), rest)


def risk_at(
  model: nnx.Module, point: Float[AnyArray, ' p'], moments: Moments
) -> Float[Array, '']:
  """The exact risk as a function of the weights, for use under jit and grad."""
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
  """Weights and the optimizer's state after the steps `first` to `last` − 1."""
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
  """What the weights do."""
  # One by one: a program for each number would be more.
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
  """The rule, its risk, the norm of the gradient, and the alignment."""
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
