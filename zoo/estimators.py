"""Estimators for linear regression: called like a model, but not trained.

A function makes each from a task, for which it gets the best parameters, or from given
parameters. All hold float64 and compute in the precision of the prompt.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import ArrayLike, Float

from zoo.core.errors import (
  UserError,
  check_array,
  check_count,
  check_number,
  check_vector,
)
from zoo.core.protocols import Task
from zoo.tasks.linear_regression import Estimator as Estimator
from zoo.tasks.linear_regression import GDBeta as GDBeta
from zoo.tasks.linear_regression import GradientDescent as GradientDescent
from zoo.tasks.linear_regression import LinearRegression, require_covered
from zoo.tasks.linear_regression import Ridge as Ridge
from zoo.tasks.linear_regression import bayes as bayes
from zoo.tasks.linear_regression import best_penalty as best_penalty
from zoo.tasks.linear_regression import best_step_matrix as best_step_matrix
from zoo.theory.schedules import MAX_STEPS
from zoo.theory.schedules import best_schedule as best_schedule
from zoo.theory.schedules import best_step_size as best_step_size
from zoo.theory.schedules import polynomial_optimum as polynomial_optimum


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
    step_size = best_step_size(_given('step_size', task), num_steps)
  return GradientDescent(start, check_vector('step_size', step_size, num_steps))


def gd_beta(
  task_or_start: Task | ArrayLike, step_matrix: ArrayLike | None = None
) -> GDBeta:
  """GD-β from a start `[d]`, or from the prior mean of a task.

  `step_matrix` defaults to `best_step_matrix` of the task. Raises UserError naming the
  argument that is wrong.
  """
  start, task = _start(task_or_start)
  if step_matrix is None:
    step_matrix = best_step_matrix(_given('step_matrix', task))
  return GDBeta(start, check_array('step_matrix', step_matrix, [(start.size,) * 2]))


def prior_mean(task: Task) -> GradientDescent:
  """Predicts with the prior mean, whatever the context: zero steps of descent.

  Raises UserError unless the task is a LinearRegression.
  """
  return GradientDescent(require_covered(task).mean_weights(), np.zeros(0))


def ridge(task_or_start: Task | ArrayLike, penalty: float | None = None) -> Ridge:
  """Ridge regression towards a start `[d]`, or towards the prior mean of a task.

  `penalty` is λ in `Σ_i (w·x_i − y_i)² + λ|w − start|²`; it defaults to `best_penalty`
  of the task. Raises UserError naming the argument that is wrong.
  """
  start, task = _start(task_or_start)
  if penalty is None:
    penalty = best_penalty(_given('penalty', task))
  penalty = check_number('penalty', penalty, minimum=0.0)
  return Ridge(start, penalty, np.eye(start.size))


def ols(task_or_start: Task | ArrayLike) -> Ridge:
  """Least squares; of several solutions, the weights nearest to the start.

  The start is `[d]`, or the prior mean of a task. With fewer than d examples the
  weights keep the start in the directions that no example has, so that without examples
  the prior mean predicts. A start of zeros gives the usual pseudo-inverse.
  """
  return ridge(task_or_start, 0.0)


def _given(name: str, task: LinearRegression | None) -> LinearRegression:
  """The task, for which an argument has a best value; raises UserError for None."""
  if task is None:
    raise UserError(
      f'{name} is None; it must be given with a start, and may be None with a task'
    )
  return task


def _start(
  task_or_start: Task | ArrayLike,
) -> tuple[Float[np.ndarray, ' d'], LinearRegression | None]:
  """The start, for a task its prior mean, and the task if one is given."""
  if isinstance(task_or_start, Task):
    task = require_covered(task_or_start)
    return task.mean_weights(), task
  shape = np.shape(task_or_start)
  if len(shape) != 1:
    raise UserError(f'the start has shape {shape}; it must be a task or a vector [d]')
  return check_vector('the start', task_or_start, shape[0]), None
