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
  """Returns the learning rule of least risk on a task.

  The optimal rule is GD-β from the prior mean: `w* − Γ* (1/C) Xᵀ(X w* − y)`, with the
  step matrix

      Γ* = Λ ((1 + 1/C) ΣΛ + (τ/C) I)⁻¹,   τ = tr ΣΛ + σ².

  If Λ and Σ are multiples of the identity, this is one step of gradient descent. With a
  fixed guess, the rule is the optimum of multi-head LSA with this guess and enough
  heads: the same step, and a correction of the guess by an estimate of the constant 1
  from the context. On a `task_pool` the rule solves a linear system.

  Args:
    task: A `linear_regression` or a `task_pool`.
    initial_guess: The fixed guess g of the query's label, as weights of `g·x_q`: a
      number for all features, or `[d]`. None leaves the guess free, as in yq-LSA.
    initial_bias: The fixed offset β of the guess `g·x_q + β`.

  Returns:
    The rule, whose leaves are float64 on the host.

  Raises:
    UserError: If the theory does not cover the task, if `initial_guess` is neither a
      number nor `[d]`, or if it or `initial_bias` is not finite.

  Example:
    >>> task = zoo.tasks.LinearRegression(
    ...   num_features=2, context_length=3, prior_mean=1.0
    ... )
    >>> free = zoo.theory.optimal_rule(task)
    >>> fixed = zoo.theory.optimal_rule(task, initial_guess=0.0)
    >>> [round(zoo.theory.exact_risk(rule, task), 6) for rule in (free, fixed)]
    [1.0, 1.5]

  References:
    docs/theory_one_layer.md, sections 3 and 4. GD-β: arXiv 2402.14951.
  """
  if type(task) is TaskPool:
    return _pool_optimum(task, initial_guess, initial_bias)
  task = require_covered(task)
  mean, d = task.mean_weights(), task.num_features
  guess = mean if initial_guess is None else initial_guess
  guess = check_vector('initial_guess', guess, d)
  bias = check_number('initial_bias', initial_bias)
  # These parts are for labels minus w*·x: ρ is that of the best step; P and s are those
  # of the estimate of the constant 1.
  update, bias_update = np.zeros((d, d + 1, d + 1)), np.zeros((d + 1, d + 1))
  # Without both, the guess is w*, which needs no correction.
  if initial_guess is not None or bias:
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
  """Returns the U whose `⟨U, G⟩` is the best estimate of the constant 1.

  Only even moments of the labels minus w*·x are used. The estimate is
  `scale ⟨Σ⁺, S⟩ + slope (q − ⟨Λ, S⟩)`; docs/theory_one_layer.md, section 4, derives it.
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
  """Returns `Jᵀ U J`, which adds `mean·x` to the labels that U is for.

  For the examples `[x; y]` it gives what U gives for `[x; y + mean·x]`.
  """
  e = update.shape[-1]
  shift = np.eye(e)
  shift[-1, :-1] = mean
  return shift.T @ update @ shift
