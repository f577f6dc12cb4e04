"""Pretraining linear attention on finitely many tasks and prompts, for many features.

The predictor is that of Lu, Letey, Zavatone-Veth, Maiti & Pehlevan (arXiv 2405.11751,
PNAS 2025), `f = ⟨Γ, x_q [r; q]ᵀ⟩` with `r = Xᵀy/C`, `q = Σ_i y_i²/C`: the update of one
layer of linear attention, without its terms in `XᵀX`.
"""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from zoo.core.errors import check_number
from zoo.core.learning_rule import LearningRule
from zoo.tasks.task_pool import TaskPool


class PretrainingRisks(NamedTuple):
  """Mean squared errors of predicted labels, their noise included."""

  icl: float  # on tasks that are new
  idg: float  # on tasks of the pool


def pretraining(
  context_ratio: int | float,
  task_ratio: int | float,
  sample_ratio: int | float,
  noise_variance: int | float,
) -> PretrainingRisks:
  """The errors after ridgeless pretraining on k tasks and n prompts, as d → ∞.

  `context_ratio` is α = C/d, `task_ratio` κ = k/d and `sample_ratio` τ = n/d², all > 0;
  κ and τ may be infinite. Labels have the variance 1 and a noise of `noise_variance` ρ
  ≥ 0. At τ = 1, where there are as many prompts as weights, both are infinite. The
  derivation is in docs/large_dimension.md, section 2. Raises UserError naming the
  argument that is wrong.
  """
  alpha = check_number('context_ratio', context_ratio, above=0.0)
  kappa, tau = (
    math.inf if value == math.inf else check_number(name, value, above=0.0)
    for name, value in (('task_ratio', task_ratio), ('sample_ratio', sample_ratio))
  )
  rho = check_number('noise_variance', noise_variance, minimum=0.0)
  if tau == 1:
    return PretrainingRisks(math.inf, math.inf)
  x, seen = (1 + rho) / alpha, min(tau, 1.0)
  # With x the variance of a context's noise, ξ the ridge that is implied, 0 for τ ≥ 1,
  # and R the pool's covariance, m = tr (R + x + ξ)⁻¹/d solves 1/m = ν + 1/(1 + m/κ)
  # with ν = x + ξ and ξ m = 1 − min(τ, 1).
  b = x + 1 - seen / kappa
  m = 2 * seen / (b + math.sqrt(b * b + 4 * x * seen / kappa))
  ridge = (1 - seen) / m
  nu = x + ridge
  square = m * m / (1 - m * m / kappa / (1 + m / kappa) ** 2)  # tr (R + ν)⁻²/d
  trained = 1 - 2 * nu * m + nu * nu * square  # tr Γ²/d
  bias = rho + nu - nu * nu * m - ridge * trained
  freedom = 1 - 2 * ridge * m + ridge * ridge * square
  idg = bias / (1 - freedom / tau)
  variance = idg / tau * (m - ridge * square)
  icl = 1 + rho - 2 * (1 - nu * m) + (1 + x) * (trained + variance)
  return PretrainingRisks(icl, idg)


class RestrictedOptimum(NamedTuple):
  """The best Γ on a pool, and its risks as `exact_risk` counts them, without noise."""

  icl: float  # on new tasks `N(0, I)`
  idg: float  # on the pool
  rule: LearningRule


def restricted_optimum(task: TaskPool) -> RestrictedOptimum:
  """The best predictor of this form on one pool at finite d: exact, without prompts.

  The noise of the predicted label would add σ² to both risks. It takes O(N d² + d³)
  time for N tasks.
  """
  pool, c, noise = np.asarray(task.pool), task.context_length, task.noise_std**2
  d = pool.shape[1]
  gram, cross = _moments(pool, c, noise)
  # For ŵ ~ N(0, I), whose third moments are 0.
  fresh = np.diag(np.full(d + 1, 1 + 1 / c + (d + noise) / c))
  fresh[d, d] = (1 + 2 / c) * ((d + noise) ** 2 + 2 * d)
  step = np.linalg.lstsq(gram, cross)[0].T  # Γ
  idg = np.mean(np.sum(pool**2, axis=1)) - np.sum(step * cross.T)
  icl = d - 2 * np.trace(step[:, :d]) + np.sum((step @ fresh) * step)
  update = np.zeros((d, d + 1, d + 1))
  update[:, :d, d] = update[:, d, :d] = step[:, :d] / 2
  update[:, d, d] = step[:, d]
  rule = LearningRule(np.zeros(d), update, np.zeros(()), np.zeros((d + 1, d + 1)))
  return RestrictedOptimum(float(icl), float(idg), rule)


def _moments(
  pool: Float[np.ndarray, 'n d'], c: int, noise: float
) -> tuple[Float[np.ndarray, 'e e'], Float[np.ndarray, 'e d']]:
  """`E h hᵀ` and `E h ŵᵀ` of `h = [r; q]` over a pool and its contexts.

  Given ŵ, with `v = |ŵ|² + σ²`: `E rrᵀ = (1 + 1/C) ŵŵᵀ + v I/C`,
  `E q r = (1 + 2/C) v ŵ` and `E q² = (1 + 2/C) v²`.
  """
  count, d = pool.shape
  v = np.sum(pool**2, axis=1) + noise
  second = pool.T @ pool / count
  gram = np.zeros((d + 1, d + 1))
  gram[:d, :d] = (1 + 1 / c) * second + np.mean(v) / c * np.eye(d)
  gram[d, :d] = gram[:d, d] = (1 + 2 / c) * (v @ pool) / count
  gram[d, d] = (1 + 2 / c) * np.mean(v**2)
  return gram, np.vstack([second, v @ pool / count])
