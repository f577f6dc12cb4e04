"""The global optimum of the exact risk over all learning rules."""

from typing import Any

import numpy as np
from jaxtyping import ArrayLike, Float

from zoo.errors import check_number, check_vector
from zoo.learning_rule import LearningRule
from zoo.theory.risk import moments
from zoo.tuning import best_step_matrix


def optimal_rule(
  task: Any,
  initial_guess: float | ArrayLike | None = None,
  initial_bias: float = 0.0,
) -> LearningRule:
  """The rule of least risk on a task; its leaves are float64 on the host.

  It is GD-β from the prior mean, which is one step of gradient descent when all
  covariances are multiples of the identity. With `initial_guess` g, a number or `[d]`,
  and `initial_bias` β, both fixed, it is the optimum of multi-head LSA with enough
  heads: the same step, and an estimate of the constant 1 from the context that moves
  the guess (docs/theory.md, section 4).

  Raises UserError naming the argument that is wrong.
  """
  _, mean, prior, features, _ = moments(task)
  d = task.num_features
  guess = mean if initial_guess is None else initial_guess
  guess = check_vector('initial_guess', guess, d)
  bias = check_number('initial_bias', initial_bias)
  _, scale, slope = constant_estimate(task)
  # The blocks of the constant's estimate ⟨P, S⟩ + s q, and the best step's r.
  inverse = np.eye(d) if features is None else np.linalg.pinv(features, hermitian=True)
  constant = np.zeros((d + 1, d + 1))
  constant[:d, :d], constant[d, d] = scale * inverse - slope * prior, slope
  step_matrix = best_step_matrix(task)
  update = (mean - guess)[:, None, None] * constant
  update[:, :d, d] = update[:, d, :d] = step_matrix / 2
  return LearningRule(
    init=guess,
    update=shift_labels(update, -mean),
    bias=np.asarray(bias),
    bias_update=shift_labels(-bias * constant, -mean),
  )


def constant_estimate(task: Any) -> tuple[float, float, float]:
  """How well the context's even moments estimate the constant 1: `κ, a, s`.

  The best estimate is `a ⟨Σ⁺, S⟩ + s (q − ⟨Λ, S⟩)`, and κ is its mean squared error.
  """
  c, mean, prior, features, noise = moments(task)
  rank = mean.size
  if features is not None:
    rank = int(np.linalg.matrix_rank(features, hermitian=True))
  spread = prior if features is None else features @ prior
  tau = np.trace(spread) + noise
  # The variance of q − ⟨Λ, S⟩, which is uncorrelated with S and has the mean σ².
  variance = 2 * (1 + 1 / c) * np.sum(spread * spread.T) + 2 * tau * tau / c
  signal = noise / variance if variance > 0 else 0.0
  kappa = 1 / (1 + rank * c / 2 + noise * signal)
  return kappa, c / 2 * kappa, signal * kappa


def shift_labels(
  update: Float[np.ndarray, '*n e e'], mean: Float[np.ndarray, ' d']
) -> Float[np.ndarray, '*n e e']:
  """`Jᵀ U J`: the same form for the examples `[x; y + mean·x]` as U for `[x; y]`."""
  e = update.shape[-1]
  shift = np.eye(e)
  shift[-1, :-1] = mean
  return shift.T @ update @ shift
