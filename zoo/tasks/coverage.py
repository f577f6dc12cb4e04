"""The tasks that the exact formulas cover: for risks, best step sizes, penalties."""

from typing import TypeGuard

import numpy as np

from zoo.errors import UserError
from zoo.tasks.linear_regression import LinearRegression
from zoo.tasks.task_pool import TaskPool


def covers(task: object) -> TypeGuard[LinearRegression]:
  """Whether exact theory covers a task: linear regression that no subclass changes.

  A subclass may sample differently, so it is covered only if its own body, not that of
  a parent class, sets `exact_theory = True`.
  """
  return isinstance(task, LinearRegression) and _samples_as(LinearRegression, task)


def covers_pool(task: object) -> TypeGuard[TaskPool]:
  """Whether a task is a pool of tasks that no subclass changes; see `covers`."""
  return isinstance(task, TaskPool) and _samples_as(TaskPool, task)


def _samples_as(kind: type, task: object) -> bool:
  return type(task) is kind or type(task).__dict__.get('exact_theory') is True


def require_covered(task: object) -> LinearRegression:
  """Returns the task if exact theory covers it; raises UserError otherwise."""
  if covers(task):
    return task
  hint = ''
  if isinstance(task, LinearRegression):
    hint = ' and those of its subclasses that set exact_theory = True'
  raise UserError(
    f'the task is of type {type(task).__name__}; exact theory covers '
    f'LinearRegression{hint}'
  )


def require_isotropic(task: object) -> LinearRegression | TaskPool:
  """Returns the task if its weights are `N(w*, I)` or a pool, its features `N(0, I)`.

  Raises UserError otherwise.
  """
  if covers_pool(task):
    return task
  task = require_covered(task)
  for name in ('prior_covariance', 'feature_covariance'):
    covariance = getattr(task, name)
    if covariance is not None and np.any(covariance != np.eye(task.num_features)):
      raise UserError(f'{name} is not the identity; with other labels it must be')
  return task
