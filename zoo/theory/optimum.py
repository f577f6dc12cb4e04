"""The global optimum of the exact risk over all learning rules."""

import dataclasses

import numpy as np
from jaxtyping import ArrayLike, Float

from zoo.core.errors import check_number, check_vector
from zoo.core.learning_rule import LearningRule
from zoo.core.matrices import RANK_TOLERANCE
from zoo.core.protocols import Task
from zoo.estimators.linear_prior import best_step_matrix
from zoo.tasks.linear_regression import require_covered
from zoo.tasks.task_pool import TaskPool
from zoo.theory.quadratic_risk import best_rule, pool_risk
from zoo.theory.risk import Moments, context_moments, task_moments


def optimal_rule(
  task: Task,
  initial_guess: float | ArrayLike | None = None,
  initial_bias: float = 0.0,
) -> LearningRule:
  """The rule of least risk on a task; its leaves are float64 on the host.

  The optimal rule is GD-β from the prior mean; if all covariances are multiples of the
  identity this is one step of gradient descent. With `initial_guess` g, a number or
  `[d]`, and `initial_bias` β, it is the optimum of multi-head LSA with this fixed guess
  and enough heads: the same step, plus a correction of the guess by an estimate of the
  constant 1 from the context (docs/theory.md, section 4). The guess None is free, as in
  yq-LSA. On a `task_pool` the rule solves a linear system.

  Raises UserError naming the argument that is wrong.
  """
  if type(task) is TaskPool:
    return _pool_optimum(task, initial_guess, initial_bias)
  task = require_covered(task)
  mean, d = task.mean_weights(), task.num_features
  guess = mean if initial_guess is None else initial_guess
  guess = check_vector('initial_guess', guess, d)
  bias = check_number('initial_bias', initial_bias)
  # For labels minus w*·x: ρ of the best step, and P and s of the constant's estimate.
  update, bias_update = np.zeros((d, d + 1, d + 1)), np.zeros((d + 1, d + 1))
  if initial_guess is not None or bias:  # else the guess is w*, and needs no correction
    constant = constant_estimate(task_moments(task))
    update += (mean - guess)[:, None, None] * constant
    bias_update -= bias * constant
  update[:, :d, d] = update[:, d, :d] = best_step_matrix(task) / 2
  return LearningRule(
    init=guess,
    update=shift_labels(update, -mean),
    bias=np.asarray(bias),
    bias_update=shift_labels(bias_update, -mean),
  )


def _pool_optimum(
  task: TaskPool, initial_guess: float | ArrayLike | None, initial_bias: float
) -> LearningRule:
  form = pool_risk(task)
  bias = check_number('initial_bias', initial_bias)
  if initial_guess is not None:
    guess = check_vector('initial_guess', initial_guess, task.num_features)
    return best_rule(form, np.append(guess, bias))
  free, start = best_rule(form), np.append(np.zeros(task.num_features), bias)
  return dataclasses.replace(best_rule(form, start), init=free.init, update=free.update)


def constant_estimate(moments: Moments) -> Float[np.ndarray, 'e e']:
  """The matrix U with `⟨U, G⟩` the best estimate of the constant 1 from even moments.

  For labels minus w*·x it is `scale ⟨Σ⁺, S⟩ + slope (q − ⟨Λ, S⟩)`. See docs/theory.md,
  section 4, for the derivation.
  """
  c, mean, prior, _, noise = moments
  d, context = mean.size, context_moments(moments)
  eigenvalues = np.linalg.eigvalsh(context.features)
  rank = int(np.sum(eigenvalues > RANK_TOLERANCE * eigenvalues[-1]))
  # q − ⟨Λ, S⟩ is uncorrelated with S and has the mean σ².
  variance = context.variance_label
  signal = noise / variance if variance > 0 else 0.0
  kappa = 1 / (1 + rank * c / 2 + noise * signal)
  scale, slope = c / 2 * kappa, signal * kappa
  inverse = np.linalg.pinv(context.features, rcond=RANK_TOLERANCE, hermitian=True)
  update = np.zeros((d + 1, d + 1))
  update[:d, :d] = scale * inverse - slope * prior
  update[d, d] = slope
  return update


def shift_labels(
  update: Float[np.ndarray, '*n e e'], mean: Float[np.ndarray, ' d']
) -> Float[np.ndarray, '*n e e']:
  """`Jᵀ U J`, which is for the examples `[x; y + mean·x]` what U is for `[x; y]`."""
  e = update.shape[-1]
  shift = np.eye(e)
  shift[-1, :-1] = mean
  return shift.T @ update @ shift
