"""Estimators for linear regression: called like a model, but not trained.

A function makes each from a task, for which it gets the best parameters, or from given
parameters. All hold float64 and compute in the precision of the prompt.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from zoo.errors import (
  UserError,
  check_count,
  check_matrix,
  check_number,
  check_vector,
)
from zoo.estimators import regression
from zoo.estimators.baseline import at_every_length, zeroed
from zoo.estimators.tuning import (
  MAX_STEPS,
  best_penalty,
  best_step_matrix,
  best_step_size,
)
from zoo.learning_rule import LearningRule
from zoo.prompt import Prompt
from zoo.protocols import Predictor, Task
from zoo.tasks import LinearRegression
from zoo.tasks.base import attribute_values, shown
from zoo.tasks.coverage import covers


class Estimator:
  """Predicts `w·x_q` from weights `w` that it fits to the context.

  Without examples the weights are the start. Equal estimators share compiled programs.
  """

  def __repr__(self) -> str:
    """The class and its fields, with the shapes of arrays, on one line."""
    fields = ', '.join(f'{name}={shown(value)}' for name, value in vars(self).items())
    return f'{type(self).__name__}({fields})'

  def weights(self, prompt: Prompt) -> Float[Array, 'b d']:
    """The weights fitted to each prompt's context."""
    c = prompt.x.shape[1]
    return self._fit(prompt, c, self._parameter(c))

  def _parameter(self, count: int) -> Float[np.ndarray, '*n']:
    """The parameter of the fit to `count` examples; 0 for a fit that has none."""
    return np.zeros(())

  def _fit(
    self, prompt: Prompt, count: int | Array, parameter: np.ndarray | Array
  ) -> Float[Array, 'b d']:
    """The weights fitted to `count` examples; all other examples and labels are 0."""
    raise NotImplementedError

  def __call__(self, prompt: Prompt) -> Float[Array, ' b']:
    """The prediction for each prompt's query."""
    return jnp.einsum('bd,bd->b', self.weights(prompt), prompt.x_query)

  def predictions(self, prompt: Prompt) -> Float[Array, 'b t']:
    """The prediction for each example from those before it, that for the query last."""
    lengths = range(prompt.x.shape[1] + 1)
    table = jnp.asarray(np.stack([self._parameter(k) for k in lengths]), prompt.x.dtype)

    def predict(x: Array, y: Array, seen: Array, x_query: Array) -> Array:
      count = jnp.sum(seen)
      x, y = jax.vmap(zeroed, (0, 0, None))(x, y, seen)
      part = Prompt(x=x, y=y, x_query=x_query, y_query=prompt.y_query)
      return jnp.einsum('bd,bd->b', self._fit(part, count, table[count]), x_query)

    return at_every_length(prompt, predict)

  def __eq__(self, other: object) -> bool:
    """Whether both have the same class and parameters."""
    if type(self) is not type(other):
      return NotImplemented
    return attribute_values(vars(self)) == attribute_values(vars(other))

  def __hash__(self) -> int:
    return hash(attribute_values(vars(self)))


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class GradientDescent(Estimator):
  """Steps of gradient descent on the context's loss `Σ_i (w·x_i − y_i)² / (2C)`."""

  start: Float[np.ndarray, ' d']
  step_sizes: Float[np.ndarray, ' k']
  # At other context lengths the step size is the best for one step on this task.
  tuned_for: LinearRegression | None = None

  def _parameter(self, count: int) -> Float[np.ndarray, ' k']:
    task = _of_length(self.tuned_for, count)
    return self.step_sizes if task is None else np.array([best_step_size(task)])

  def _fit(
    self, prompt: Prompt, count: int | Array, parameter: np.ndarray | Array
  ) -> Float[Array, 'b d']:
    weights_bd = _rows(self.start, prompt)
    for step_size in jnp.asarray(parameter, weights_bd.dtype):
      weights_bd = weights_bd - step_size * _gradient(weights_bd, prompt, count)
    return weights_bd

  def learning_rule(self) -> LearningRule:
    """This estimator as a learning rule; raises UserError for two steps or more."""
    if self.step_sizes.size > 1:
      raise UserError(
        f'{self.step_sizes.size} steps of gradient descent are no learning rule; only '
        'zero or one step is affine in the second moment G'
      )
    return LearningRule.gradient_descent(self.start, self.step_sizes.sum())


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class GDBeta(Estimator):
  """One step of gradient descent whose step size is a matrix (arXiv 2402.14951)."""

  start: Float[np.ndarray, ' d']
  step_matrix: Float[np.ndarray, 'd d']
  # At other context lengths the step matrix is the best for this task.
  tuned_for: LinearRegression | None = None

  def _parameter(self, count: int) -> Float[np.ndarray, 'd d']:
    task = _of_length(self.tuned_for, count)
    return self.step_matrix if task is None else best_step_matrix(task)

  def _fit(
    self, prompt: Prompt, count: int | Array, parameter: np.ndarray | Array
  ) -> Float[Array, 'b d']:
    weights_bd = _rows(self.start, prompt)
    step_matrix = jnp.asarray(parameter, weights_bd.dtype)
    return weights_bd - _gradient(weights_bd, prompt, count) @ step_matrix.T

  def learning_rule(self) -> LearningRule:
    """This estimator as a learning rule."""
    return LearningRule.gd_beta(self.start, self.step_matrix)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Ridge(Estimator):
  """Minimises `Σ_i (w·x_i − y_i)² + penalty (w − start)ᵀ K⁻¹ (w − start)`.

  `K = root rootᵀ` may be singular, and `w` then stays in `start` plus its range. A
  penalty of 0 is the limit from above: the least-squares solution nearest to `start`.
  """

  start: Float[np.ndarray, ' d']
  penalty: float
  root: Float[np.ndarray, 'd d']

  def _fit(
    self, prompt: Prompt, count: int | Array, parameter: np.ndarray | Array
  ) -> Float[Array, 'b d']:
    start_bd = _rows(self.start, prompt)
    root = jnp.asarray(self.root, start_bd.dtype)
    # Not by the normal equations: they would square the condition number.
    u, s, vt = jnp.linalg.svd(prompt.x @ root, full_matrices=False)
    # Below this a singular value is rounding error, as usual for a pseudo-inverse.
    noise_floor = s[:, :1] * jnp.finfo(s.dtype).eps * max(prompt.x.shape[1:])
    inverse = jnp.where(s > noise_floor, s / (s * s + self.penalty), 0)
    coefficients = jnp.einsum('bck,bc->bk', u, _residual(start_bd, prompt)) * inverse
    return start_bd + jnp.einsum('bk,bkd->bd', coefficients, vt) @ root.T


def gradient_descent(
  task_or_start: Task | ArrayLike,
  step_size: float | ArrayLike | None = None,
  num_steps: int = 1,
) -> GradientDescent:
  """Gradient descent from a start `[d]`, or from the prior mean of a task.

  `step_size` is one number for all steps, or one for each, `[num_steps]`; it defaults
  to `best_step_size` of the task. Raises UserError naming the argument that is wrong.
  """
  num_steps = check_count('num_steps', num_steps, maximum=MAX_STEPS)
  start, task = _start(task_or_start)
  if step_size is None:
    if task is None:
      raise UserError(
        'step_size is None; it must be given with a start, and may be None with a task'
      )
    step_size = best_step_size(task, num_steps)
  return GradientDescent(start, check_vector('step_size', step_size, num_steps))


def gd_beta(
  task_or_start: Task | ArrayLike, step_matrix: ArrayLike | None = None
) -> GDBeta:
  """GD-β from a start `[d]`, or from the prior mean of a task.

  `step_matrix` defaults to `best_step_matrix` of the task. Raises UserError naming the
  argument that is wrong.
  """
  start, task = _start(task_or_start)
  if step_matrix is not None:
    step_matrix = check_matrix('step_matrix', step_matrix, start.size, start.size)
  elif task is not None:
    step_matrix = best_step_matrix(task)
  else:
    raise UserError(
      'step_matrix is None; it must be given with a start, and may be None with a task'
    )
  return GDBeta(start, step_matrix)


def prior_mean(task: Task) -> GradientDescent:
  """Predicts with the prior mean, whatever the context: zero steps of descent.

  Raises UserError unless the task is a LinearRegression.
  """
  return GradientDescent(_regression(task).prior_mean, np.zeros(0))


def ridge(task_or_start: Task | ArrayLike, penalty: float | None = None) -> Ridge:
  """Ridge regression towards a start `[d]`, or towards the prior mean of a task.

  `penalty` is λ in `Σ_i (w·x_i − y_i)² + λ|w − start|²`; it defaults to `best_penalty`
  of the task. Raises UserError naming the argument that is wrong.
  """
  start, task = _start(task_or_start)
  if penalty is None:
    if task is None:
      raise UserError(
        'penalty is None; it must be given with a start, and may be None with a task'
      )
    penalty = best_penalty(task)
  penalty = check_number('penalty', penalty, minimum=0.0)
  return Ridge(start, penalty, np.eye(start.size))


def ols(task_or_start: Task | ArrayLike) -> Ridge:
  """Least squares; of several solutions, the weights nearest to the start.

  The start is `[d]`, or the prior mean of a task. With fewer than d examples the
  weights keep the start in the directions that no example has, so that without examples
  the prior mean predicts. A start of zeros gives the usual pseudo-inverse.
  """
  return ridge(task_or_start, 0.0)


def bayes(task: Task) -> Ridge:
  """The posterior mean, the estimator of least risk.

  The penalty is the noise variance, and the norm that of the prior. Raises UserError
  unless the task is a LinearRegression.
  """
  task = _regression(task)
  root = np.eye(task.num_features)
  if task.prior_covariance is not None:
    eigenvalues, vectors = np.linalg.eigh(task.prior_covariance)
    root = vectors * np.sqrt(eigenvalues.clip(0))
  return Ridge(task.prior_mean, task.noise_std**2, root)


def baselines(task: LinearRegression) -> dict[str, Predictor]:
  """The baselines of linear regression; `gd` and `gd_beta` are tuned for each length.

  A task that exact theory does not cover has only the baselines that need no tuning.
  `ridge` is missing where no best penalty is known.
  """
  found: dict[str, Predictor] = {}
  if covers(task):
    found['gd'] = dataclasses.replace(gradient_descent(task), tuned_for=task)
    found['gd_beta'] = dataclasses.replace(gd_beta(task), tuned_for=task)
    with contextlib.suppress(UserError):
      found['ridge'] = ridge(task)
  found['ols'] = ols(task)
  if covers(task):
    found['bayes'] = bayes(task)
  return found | {
    'averaging': regression.Averaging(),
    'nearest_neighbours': regression.NearestNeighbours(),
    'zero': regression.Zero(),
  }


def _of_length(task: LinearRegression | None, count: int) -> LinearRegression | None:
  """The task with `count` examples; None if `count` is 0, or already its own."""
  if task is None or count in (0, task.context_length):
    return None
  task = copy.copy(task)
  task.context_length = count
  return task


def _start(
  task_or_start: Task | ArrayLike,
) -> tuple[Float[np.ndarray, ' d'], LinearRegression | None]:
  """The start, for a task its prior mean, and the task if one is given."""
  if isinstance(task_or_start, Task):
    task = _regression(task_or_start)
    return task.prior_mean, task
  shape = np.shape(task_or_start)
  if len(shape) != 1:
    raise UserError(f'the start has shape {shape}; it must be a task or a vector [d]')
  return check_vector('the start', task_or_start, shape[0]), None


def _regression(task: Task) -> LinearRegression:
  if not isinstance(task, LinearRegression):
    raise UserError(
      f'the task is of type {type(task).__name__}; this estimator needs a '
      'LinearRegression'
    )
  return task


def _rows(start: Float[np.ndarray, ' d'], prompt: Prompt) -> Float[Array, 'b d']:
  """The start, repeated for each prompt in the prompts' precision."""
  prompt.check_features('estimator', start.size)
  shape = prompt.x.shape[0], start.size
  return jnp.broadcast_to(jnp.asarray(start, prompt.x.dtype), shape)


def _residual(weights_bd: Float[Array, 'b d'], prompt: Prompt) -> Float[Array, 'b c']:
  return prompt.y - jnp.einsum('bcd,bd->bc', prompt.x, weights_bd)


def _gradient(
  weights_bd: Float[Array, 'b d'], prompt: Prompt, count: int | Array
) -> Float[Array, 'b d']:
  """The gradient of `Σ_i (w·x_i − y_i)² / (2 count)`, 0 without examples."""
  residual_bc = _residual(weights_bd, prompt)
  count = jnp.maximum(count, 1).astype(weights_bd.dtype)
  return -jnp.einsum('bcd,bc->bd', prompt.x, residual_bc) / count
