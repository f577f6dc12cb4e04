"""Training without noise: gradient flow and descent of weights on the exact risk."""

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import scipy.integrate
from flax import nnx
from jax.experimental.ode import odeint
from jaxtyping import Array, ArrayLike, Float, PyTree

from zoo.core.errors import RunError, UserError, check_array, check_name, check_number
from zoo.core.learning_rule import LearningRule
from zoo.core.protocols import Predictor, Task
from zoo.theory.exact import require_rule
from zoo.theory.moments import Moments, task_moments
from zoo.theory.optimum import optimal_rule
from zoo.theory.precision import double_precision, in_float64
from zoo.theory.risk import mean_square, population_risk

# What each does to the gradient before it is multiplied by the learning rate.
OPTIMIZERS = {'sgd': optax.identity, 'adam': optax.scale_by_adam}


Numbers = ArrayLike | Sequence[Any]


class Trajectory(NamedTuple):
  """Training on the exact risk: what the weights do at each of n times, in float64."""

  times: Float[np.ndarray, ' n']  # of a flow, or numbers of steps
  risks: Float[np.ndarray, ' n']
  rules: tuple[LearningRule, ...]
  gradient_norms: Float[np.ndarray, ' n']  # Euclidean, over all weights
  # The correlation of the predictions with those of `optimal_rule`; 0 for f = 0.
  alignments: Float[np.ndarray, ' n']
  end: Any  # the model at the last time; use it inside `double_precision`

  @property
  def guesses(self) -> Float[np.ndarray, 'n d']:
    """The weights before any example is seen: the learned guess."""
    return np.stack([rule.init for rule in self.rules])


class Subject(NamedTuple):
  """A model as arrays, of which `weights` train, and what makes it of them."""

  graph: Any  # of an NNX module; None if the weights are the model
  weights: PyTree
  rest: PyTree

  def with_weights(self, weights: PyTree) -> Any:
    """The model with other weights."""
    if self.graph is None:
      return weights
    return nnx.merge(self.graph, weights, self.rest)


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
    subject = subject_of(model, moments)
    like = jax.tree.map(np.asarray, subject.weights)

    def slope(point: Float[np.ndarray, ' p']) -> Float[np.ndarray, ' p']:
      weights = unpacked(point, like)
      return -packed(_gradient(subject.graph, weights, subject.rest, moments))

    points = unpacked(integrate(slope, packed(like), at, tolerance), like)
    return _trajectory(subject, points, at, task, moments)


def integrate(
  slope: Callable[[Float[np.ndarray, ' p']], Float[np.ndarray, ' p']],
  start: Float[np.ndarray, ' p'],
  times: Float[np.ndarray, ' n'],
  tolerance: float,
) -> Float[np.ndarray, 'n p']:
  """The points of `dx/dt = slope(x)` at these times; RunError if the solver fails."""
  found = scipy.integrate.solve_ivp(
    lambda _, point: slope(point),
    (0.0, max(times[-1], np.finfo(float).tiny)),
    start,
    method='LSODA',
    t_eval=times,
    rtol=tolerance,
    atol=tolerance / 100,
  )
  if found.status < 0 or not np.all(np.isfinite(found.y)):
    raise RunError(f'the solver of the gradient flow failed: {found.message}')
  return found.y.T


def gradient_flows(
  models: Sequence[Predictor | nnx.Module],
  task: Task,
  times: Numbers,
  tolerance: float = 1e-8,
) -> tuple[Trajectory, ...]:
  """`gradient_flow` of models that differ in their numbers, as one program.

  For many seeds or initial scales. Each model has steps of its own, of the explicit
  method of Dormand and Prince, whose number grows with the time and the largest
  eigenvalue of the Hessian: for times far beyond the end of learning `gradient_flow` is
  faster. Raises UserError as `gradient_flow` does, and for models that differ in more.
  """
  tolerance = check_number('tolerance', tolerance, minimum=1e-13)
  at = increasing('times', times)
  moments = task_moments(task)
  with double_precision():
    subjects = [subject_of(model, moments) for model in models]
    leaves = [jax.tree.leaves(one[1:]) for one in subjects]
    kinds = [
      (type(model), [leaf.shape for leaf in found])
      for model, found in zip(models, leaves, strict=True)
    ]
    if not kinds or any(kind != kinds[0] for kind in kinds):
      raise UserError('the models must be of one kind and of the same sizes')
    graph, *arrays = subjects[0]
    stacked = [np.stack(found) for found in zip(*leaves, strict=True)]
    weights, rest = jax.tree.unflatten(jax.tree.structure(arrays), stacked)
    points = _integrated((graph, tolerance), weights, rest, moments, at)
    each = jax.device_get((points, rest))
    trajectories = []
    for i in range(len(subjects)):
      points, rest = jax.tree.map(operator.itemgetter(i), each)
      one = Subject(graph, None, rest)
      trajectories.append(_trajectory(one, points, at, task, moments))
    return tuple(trajectories)


@functools.partial(jax.jit, static_argnums=0)
def _integrated(
  static: tuple[Any, float],
  weights: PyTree,
  rest: PyTree,
  moments: Moments,
  times: Float[Array, ' n'],
) -> PyTree:
  """The weights of each model at each of the times."""
  graph, tolerance = static

  def flow(weights: PyTree, rest: PyTree) -> PyTree:
    def slope(weights: PyTree, time: Array) -> PyTree:
      del time  # the flow does not depend on it
      found = jax.grad(risk_of_weights, argnums=1)(graph, weights, rest, moments)
      return jax.tree.map(jnp.negative, found)

    # The solver needs times that differ from that of the start.
    later = jnp.maximum(times, np.finfo(float).tiny)
    from_start = jnp.concatenate([jnp.zeros(1), later])
    found = odeint(slope, weights, from_start, rtol=tolerance, atol=tolerance / 100)
    return jax.tree.map(lambda leaf: leaf[1:], found)

  return jax.vmap(flow)(weights, rest)


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
    subject = subject_of(model, moments)
    weights = jax.tree.map(jnp.asarray, subject.weights)
    carry, points, done = (weights, OPTIMIZERS[optimizer]().init(weights)), [], 0
    for step in at.astype(int).tolist():
      carry = _steps(
        (subject.graph, optimizer), carry, subject.rest, moments, rates, done, step
      )
      points.append(carry[0])
      done = step
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *points)
    return _trajectory(subject, stacked, at, task, moments)


def subject_of(model: Predictor | nnx.Module, moments: Moments) -> Subject:
  """A model's arrays in float64; use it inside `double_precision`.

  Raises UserError if it has no learning rule, or one for other numbers of features.
  """
  follower = require_rule(in_float64(model))
  if isinstance(follower, nnx.Module):
    subject = Subject(*nnx.split(follower, nnx.Param, ...))
  else:
    subject = Subject(
      None, jax.tree.map(lambda leaf: np.asarray(leaf, float), follower), None
    )
  rule = jax.eval_shape(
    lambda weights: subject.with_weights(weights).learning_rule(), subject.weights
  )
  if rule.init.shape[0] != moments.prior_mean.size:
    raise UserError(
      f'the model has {rule.init.shape[0]} features; the task has '
      f'{moments.prior_mean.size}'
    )
  return subject


def packed(weights: PyTree) -> Float[np.ndarray, ' p']:
  """All weights as one vector, on the host."""
  return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(weights)])


def unpacked(point: Float[np.ndarray, '*n p'], like: PyTree) -> PyTree:
  """The weights of a vector, or of each of several."""
  leaves, tree = jax.tree.flatten(like)
  parts = np.split(point, np.cumsum([leaf.size for leaf in leaves])[:-1], axis=-1)
  shaped = [
    part.reshape(*point.shape[:-1], *leaf.shape)
    for part, leaf in zip(parts, leaves, strict=True)
  ]
  return jax.tree.unflatten(tree, shaped)


def risk_of_weights(
  graph: Any, weights: PyTree, rest: PyTree, moments: Moments
) -> Float[Array, '']:
  """The exact risk as a function of weights, for use under jit and grad."""
  model = Subject(graph, weights, rest).with_weights(weights)
  return population_risk(model.learning_rule(), moments)


_gradient = jax.jit(jax.grad(risk_of_weights, argnums=1), static_argnums=0)


@functools.partial(jax.jit, static_argnums=0)
def _steps(
  static: tuple[Any, str],
  carry: tuple[PyTree, PyTree],
  rest: PyTree,
  moments: Moments,
  rates: Float[Array, '*k'],
  first: int | Array,
  last: int | Array,
) -> tuple[PyTree, PyTree]:
  """Weights and the optimizer's state after the steps `first` to `last` − 1."""
  graph, name = static
  optimizer = OPTIMIZERS[name]()
  slope = jax.grad(risk_of_weights, argnums=1)

  def step(index: Array, carry: tuple[PyTree, PyTree]) -> tuple[PyTree, PyTree]:
    weights, state = carry
    moves, state = optimizer.update(slope(graph, weights, rest, moments), state)
    rate = rates if rates.ndim == 0 else rates[index]
    return jax.tree.map(lambda w, move: w - rate * move, weights, moves), state

  return jax.lax.fori_loop(first, last, step, carry)


def _trajectory(
  subject: Subject,
  points: PyTree,
  times: Float[np.ndarray, ' n'],
  task: Task,
  moments: Moments,
) -> Trajectory:
  """What the weights do; `points` are stacked along their first axes."""
  (graph, _, rest), optimum, measured = subject, optimal_rule(task), []
  for i in range(times.size):  # one by one: a program for each number would be more
    weights = jax.tree.map(operator.itemgetter(i), points)
    measured.append(jax.device_get(_measures(graph, weights, rest, moments, optimum)))
  rules, risks, norms, alignments = zip(*measured, strict=True)
  return Trajectory(
    times=times,
    risks=np.array(risks),
    rules=tuple(rules),
    gradient_norms=np.array(norms),
    alignments=np.array(alignments),
    end=subject.with_weights(jax.tree.map(lambda leaf: jnp.asarray(leaf[-1]), points)),
  )


@functools.partial(jax.jit, static_argnums=0)
def _measures(
  graph: Any, weights: PyTree, rest: PyTree, moments: Moments, optimum: LearningRule
) -> tuple[LearningRule, Array, Array, Array]:
  """The rule, its risk, the norm of the gradient, and the alignment."""
  rule = Subject(graph, weights, rest).with_weights(weights).learning_rule()
  risk, slope = jax.value_and_grad(risk_of_weights, argnums=1)(
    graph, weights, rest, moments
  )
  size, wanted = sum(mean_square(rule, moments)), sum(mean_square(optimum, moments))
  product = sum(mean_square(rule + optimum, moments))
  product = (product - sum(mean_square(rule - optimum, moments))) / 4
  scale = jnp.sqrt(size * wanted)
  alignment = jnp.where(scale > 0, product / jnp.where(scale > 0, scale, 1), 0)
  return rule, risk, optax.tree.norm(slope), alignment


def increasing(name: str, values: Numbers) -> Float[np.ndarray, ' n']:
  """Returns times as an array; raises UserError unless they are ≥ 0 and do not fall."""
  try:
    at = np.asarray(values, float)
  except (TypeError, ValueError):
    at = np.zeros(())
  if at.ndim != 1 or not at.size or not np.all(np.isfinite(at)):
    raise UserError(f'{name} is {values!r}; it must be a list of finite numbers')
  if at[0] < 0 or np.any(np.diff(at) < 0):
    raise UserError(f'{name} must be ≥ 0 and must not decrease')
  return at
