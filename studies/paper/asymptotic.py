"""Limits of large dimension, beside the exact values for any dimension."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
import scipy.special
from jaxtyping import Array, ArrayLike, Float

from zoo.core.errors import UserError, check_count, check_number, check_vector
from zoo.core.learning_rule import LearningRule
from zoo.core.prompt import Prompt, checked_prompt
from zoo.core.protocols import Task
from zoo.tasks.linear_regression import require_covered
from zoo.tasks.rotated_regression import power_law as power_law
from zoo.tasks.task_pool import TaskPool
from zoo.theory.deep.feature_moments import feature_moments
from zoo.theory.exact import exact_risk
from zoo.theory.optimum import optimal_rule


def task_alignment(train: Task, test: Task) -> float:
  """Returns how well the best rule of one task does on another, as a share.

  The share is of what one layer of linear attention can learn on `test`, and the rule
  is the best one for `train`. It is `(R_0 − R)/(R_0 − R*)`, with exact risks on `test`:
  R of `optimal_rule(train)`, R* of `optimal_rule(test)`, and R_0 of the prior mean of
  `test`. `probing.alignment` compares two predictors instead. R is linear in the
  covariance of the tested tasks, as is the misalignment of Letey et al.

  Args:
    train: A `linear_regression`.
    test: Another one, with the same number of features.

  Returns:
    The share: 1 if the best rule is the same, 0 if the context does not help, and below
    0 if it harms.

  Raises:
    UserError: If the theory does not cover a task, if the tasks have different numbers
      of features, or if there is nothing to learn on `test`.

  Example:
    >>> from studies.paper import asymptotic
    >>> task = zoo.tasks.LinearRegression(num_features=2, context_length=3)
    >>> round(asymptotic.task_alignment(task, task), 4)
    1.0

  References:
    Letey, Zavatone-Veth, Lu & Pehlevan, arXiv 2509.26551.
  """
  train, test = require_covered(train), require_covered(test)
  d = test.num_features
  known = LearningRule.gd_beta(test.mean_weights(), np.zeros((d, d)))
  used, best = optimal_rule(train), optimal_rule(test)
  nothing, reached, least = (
    float(exact_risk(rule, test)) for rule in (known, used, best)
  )
  if nothing <= least:
    raise UserError(
      'feature_covariance times prior_covariance is 0, so nothing can be learned; '
      'alignment needs another task for testing'
    )
  return (nothing - reached) / (nothing - least)


def depth_limit(ratio: int | float, num_steps: int, shared: bool = False) -> float:
  """Returns the share of the risk that L steps of gradient descent leave, as d → ∞.

  Features and weights are isotropic, there is no noise, and C = αd. With the best size
  for each step, the share is `1 / (1 + α + … + α^L)`. With one size for all steps, of
  which `α/(1 + α)` is the best for every L, it is

      1 − α/(1 + α) Σ_{j<L} Cat_j (α/(1 + α)²)ʲ

  with the Catalan numbers. The first share, with `theory.deep.degree(L)` for L, bounds
  every polynomial in S that L layers of linear attention can compute.

  Args:
    ratio: α > 0.
    num_steps: L ≥ 0.
    shared: Whether all steps have one size.

  Returns:
    The share, from 0 to 1.

  Raises:
    UserError: If an argument is out of its range.

  Example:
    >>> from studies.paper import asymptotic
    >>> round(asymptotic.depth_limit(ratio=1.0, num_steps=2), 4)
    0.3333

  References:
    docs/large_dimension.md, section 1.
  """
  alpha = check_number('ratio', ratio, above=0.0)
  steps = check_count('num_steps', num_steps, minimum=0)
  if not shared:
    # The two forms are equal, and the one that is used does not overflow.
    low = min(alpha, 1 / alpha)
    total = math.fsum(low**k for k in range(steps + 1))
    return (1.0 if alpha <= 1 else low**steps) / total
  # The Catalan series sums to what all steps remove, so its tail is what is left: the
  # mass at 0, and positive terms.
  x = alpha / (1 + alpha) ** 2
  log_catalan = (
    scipy.special.gammaln(2 * steps + 1)
    - 2 * scipy.special.gammaln(steps + 1)
    - math.log(steps + 1)
  )
  first = math.exp(log_catalan + steps * math.log(x))
  tail = first * scipy.special.hyp2f1(1, steps + 0.5, steps + 2, 4 * x)
  return float(max(0.0, 1 - alpha) + alpha / (1 + alpha) * tail)


class PretrainingRisks(NamedTuple):
  """Mean squared errors of predicted labels, whose noise is included.

  Attributes:
    icl: The error on tasks that are new.
    idg: The error on tasks of the pool.
  """

  icl: float
  idg: float


def pretraining(
  context_ratio: int | float,
  task_ratio: int | float,
  sample_ratio: int | float,
  noise_variance: int | float,
) -> PretrainingRisks:
  """Returns the errors after ridgeless pretraining on k tasks and n prompts, as d → ∞.

  The predictor is `f = ⟨Γ, x_q [r; q]ᵀ⟩` with `r = Xᵀy/C` and `q = Σ_i y_i²/C`: the
  update of one layer of linear attention, without its terms in `XᵀX`. Labels have the
  variance 1 and noise.

  Args:
    context_ratio: α = C/d > 0.
    task_ratio: κ = k/d > 0; it may be infinite.
    sample_ratio: τ = n/d² > 0; it may be infinite. At τ = 1, where there are as many
      prompts as weights, both errors are infinite.
    noise_variance: ρ ≥ 0, the variance of the label noise.

  Returns:
    The errors on new tasks and on tasks of the pool.

  Raises:
    UserError: If an argument is out of its range.

  Example:
    >>> from studies.paper import asymptotic
    >>> risks = asymptotic.pretraining(
    ...   context_ratio=10.0, task_ratio=0.5, sample_ratio=0.5, noise_variance=0.01
    ... )
    >>> round(risks.icl, 6), round(risks.idg, 6)
    (0.820849, 0.246343)

  References:
    Lu, Letey, Zavatone-Veth, Maiti & Pehlevan, arXiv 2405.11751, PNAS 2025.
    docs/large_dimension.md, section 2, has the derivation.
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
  # Let x be the variance of a context's noise, ξ the implied ridge (0 for τ ≥ 1), and
  # R the pool's covariance. Then m = tr (R + x + ξ)⁻¹/d solves
  # 1/m = ν + 1/(1 + m/κ) with ν = x + ξ and ξ m = 1 − min(τ, 1).
  b = x + 1 - seen / kappa
  root = math.sqrt(b * b + 4 * x * seen / kappa)
  # Of two equal forms this is the one that does not subtract nearly equal numbers.
  m = 2 * seen / (b + root) if b > 0 else (root - b) / (2 * x / kappa)
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
  """The best Γ on a pool, and its risks as `exact_risk` counts them, without noise.

  Attributes:
    icl: The risk on new tasks, `ŵ ~ N(0, I)`.
    idg: The risk on the pool.
    rule: The learning rule of Γ.
  """

  icl: float
  idg: float
  rule: LearningRule


def restricted_optimum(task: TaskPool) -> RestrictedOptimum:
  """Returns the best predictor of the form of `pretraining`, and its risks.

  They are for one pool at finite d: exact, without prompts. It takes O(N d² + d³) time
  for N tasks.

  Args:
    task: The pool.

  Returns:
    The rule and its risks. The noise of predicted labels would add σ² to both risks.

  Raises:
    UserError: If the task is not a `task_pool`.

  Example:
    >>> from studies.paper import asymptotic
    >>> pool = zoo.tasks.TaskPool(num_features=2, context_length=3, num_tasks=4)
    >>> best = asymptotic.restricted_optimum(pool)
    >>> round(zoo.theory.exact_risk(best.rule, pool) - best.idg, 6)
    0.0

  References:
    docs/large_dimension.md, section 2.
  """
  if type(task) is not TaskPool:
    raise UserError(
      f'the task is of type {type(task).__name__}; this function needs a TaskPool'
    )
  pool, c, noise = np.asarray(task.pool), task.context_length, task.noise_std**2
  d = pool.shape[1]
  gram, cross = _pool_moments(pool, c, noise)
  # These moments are those of ŵ ~ N(0, I), whose third moments are 0.
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


def _pool_moments(
  pool: Float[np.ndarray, 'n d'], c: int, noise: float
) -> tuple[Float[np.ndarray, 'e e'], Float[np.ndarray, 'e d']]:
  """Returns `E h hᵀ` and `E h ŵᵀ` of `h = [r; q]` over a pool and its contexts.

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


_MOST_STEPS = 4  # More steps would need too many moments.
_RESOLVED = 1e-8  # The unit is the risk without examples; rounding errors are 1e-13.


def rotated_optimum(
  variances: ArrayLike | Sequence[Any],
  context_length: int,
  num_steps: int,
  noise_std: int | float = 0.0,
) -> float:
  """Returns the least risk of k steps if each prompt has its own frame.

  The task is `rotated_regression`: the features of a prompt are
  `N(0, Q diag(variances) Qᵀ)` with a uniformly random orthogonal Q, and `ŵ ~ N(0, I)`.
  No fixed matrix step can then use the spectrum, so that more steps always help.
  Weights `Q(S) Xᵀy/C` rotate with the frame, so that their risk is that of one fixed
  frame, `E tr Σ P(S)² + (σ²/C) E tr Σ Q(S)² S` with `P = 1 − sQ`. The least over
  polynomials Q of degree k − 1 is exact at any d; for k = 1 no learning rule is better.

  Args:
    variances: The eigenvalues of the feature covariance, ≥ 0, `[d]`.
    context_length: C ≥ 1.
    num_steps: k, from 1 to 4.
    noise_std: σ ≥ 0.

  Returns:
    The risk.

  Raises:
    UserError: If an argument is out of its range, or if the steps leave less of the
      risk than float64 resolves.

  Example:
    >>> from studies.paper import asymptotic
    >>> round(asymptotic.rotated_optimum([1.0, 2.0], context_length=3, num_steps=1), 4)
    1.5294

  References:
    Bordelon, Letey & Pehlevan, arXiv 2510.01098. docs/large_dimension.md, section 3.
  """
  values = _checked(variances)
  c = check_count('context_length', context_length)
  steps = check_count('num_steps', num_steps, maximum=_MOST_STEPS)
  noise = check_number('noise_std', noise_std, minimum=0.0) ** 2
  _, traces = feature_moments(values, c, steps + 1)  # E tr Σ Sⁱ, i ≤ 2k
  return _least(traces, noise / c)


def rotated_limit(
  variances: ArrayLike | Sequence[Any],
  ratio: int | float,
  num_steps: int,
  noise_ratio: int | float = 0.0,
) -> float:
  """Returns `rotated_optimum/d` as d → ∞, with C = αd and σ² proportional to d.

  The eigenvalues of the feature covariance Σ have the distribution of `variances`,
  whose k-th moment is `h_k`. With X the features of the C examples and S = XᵀX/C, the
  least risk follows from the limits of `E tr ΣSⁱ/d`. As coefficients of zⁱ they make up
  the series T(z), which solves

      T = Σ_k h_(k+1) (zg)^k,   g = 1/(1 − zT/α).

  Args:
    variances: Eigenvalues of the feature covariance, ≥ 0, all equally likely.
    ratio: α = C/d > 0.
    num_steps: The number of steps, from 1 to 4.
    noise_ratio: σ²/d ≥ 0.

  Returns:
    The limit of the risk over d.

  Raises:
    UserError: If an argument is out of its range, or if the steps leave less of the
      risk than float64 resolves.

  Example:
    >>> from studies.paper import asymptotic
    >>> round(asymptotic.rotated_limit([1.0], ratio=1.0, num_steps=1), 4)
    0.5

  References:
    docs/large_dimension.md, section 3.
  """
  values = _checked(variances)
  alpha = check_number('ratio', ratio, above=0.0)
  steps = check_count('num_steps', num_steps, maximum=_MOST_STEPS)
  noise = check_number('noise_ratio', noise_ratio, minimum=0.0)
  size = 2 * steps + 1
  moments = [np.mean(values ** (k + 1)) for k in range(size)]
  unit = np.eye(size)[0]
  traces, moved = 0 * unit, np.eye(size, k=-1)  # `moved` multiplies a series by z
  for _ in range(size):  # Each pass makes one more coefficient right.
    g = scipy.linalg.solve_triangular(
      scipy.linalg.toeplitz(unit - moved @ traces / alpha, 0 * unit), unit, lower=True
    )
    term, traces = unit, 0 * unit
    for moment in moments:
      traces = traces + moment * term
      term = moved @ np.convolve(term, g)[:size]
  return _least(traces, noise / alpha)


def _checked(variances: ArrayLike | Sequence[Any]) -> Float[np.ndarray, ' d']:
  values = check_vector('variances', variances, None)
  if np.any(values < 0):
    raise UserError(f'variances has {values.min():g}; all of them must be ≥ 0')
  return values


def _least(traces: Float[np.ndarray, ' m'], noise: float) -> float:
  """Returns the least risk over polynomials, from `E tr ΣSⁱ`, i ≤ 2k, and σ²/C."""
  i = np.arange(1, (len(traces) + 1) // 2)
  order = i[:, None] + i
  if traces[0] == 0:  # There are no features.
    return 0.0
  gram = traces[order] + noise * traces[order - 1]
  scale = 1 / np.sqrt(np.diag(gram))  # High powers are much larger than low ones.
  solved = np.linalg.lstsq(gram * scale[:, None] * scale, traces[i] * scale)[0]
  risk = float(traces[0] - traces[i] * scale @ solved)
  if risk < _RESOLVED * traces[0]:
    raise UserError(
      f'num_steps is {len(i)}; so many steps leave less than {_RESOLVED:g} of the risk '
      'without examples, which float64 does not resolve here; ask for fewer'
    )
  return risk


def softmax_pair(
  prompt: Prompt, step_size: float, sharpness: float
) -> Float[Array, ' b']:
  """Predicts with two heads of softmax attention whose scores have opposite signs.

  The prediction is `f = (η/2τ) Σ_i [softmax_i(τ x_i·x_q) − softmax_i(−τ x_i·x_q)] y_i`,
  a pattern that is found in trained heads. For τ → 0 it is `η (1/C) Σ_i (y_i − ȳ)(x_i −
  x̄)·x_q`, one step of gradient descent from 0 on centred examples. For C → ∞ it is `η
  ŵ·x_q` at every τ if features are `N(0, I)`.

  Args:
    prompt: The prompts.
    step_size: η.
    sharpness: τ > 0, the factor of the scores (an inverse temperature).

  Returns:
    The prediction for each prompt's query, `[b]`.

  Raises:
    UserError: If a factor is not a finite number, if `sharpness` is not above 0, if the
      prompt is not a `zoo.Prompt`, or if its labels have several entries.

  Example:
    >>> from studies.paper import asymptotic
    >>> task = zoo.tasks.LinearRegression(num_features=2, context_length=3)
    >>> prompt = task.sample(jax.random.key(0), 4)
    >>> asymptotic.softmax_pair(prompt, step_size=1.0, sharpness=0.5).shape
    (4,)

  References:
    He et al., arXiv 2503.12734. docs/large_dimension.md, section 4.
  """
  prompt = checked_prompt(prompt, user='softmax_pair', of_numbers=True)
  step_size = check_number('step_size', step_size)
  tau = check_number('sharpness', sharpness, above=0.0)
  scores_bc = tau * jnp.einsum('bcd,bd->bc', prompt.x, prompt.x_query)
  weights_bc = jax.nn.softmax(scores_bc) - jax.nn.softmax(-scores_bc)
  return step_size / (2 * tau) * jnp.sum(weights_bc * prompt.y, axis=1)


def softmax_risk(task: Task) -> float:
  """Returns the least risk of `softmax_pair` with a matrix step, for τ → 0 and w* = 0.

  Centring C normal examples leaves the moments of C − 1. So the risk is that of
  `optimal_rule` with one example fewer: softmax costs one example. For `Σ = Λ = I` it
  is `d (d + 1 + σ²)/(C + d + σ²)`.

  Args:
    task: A `linear_regression` with two examples or more and the prior mean 0.

  Returns:
    The risk.

  Raises:
    UserError: If the theory does not cover the task, it has one example, or its prior
      mean is not 0.

  Example:
    >>> from studies.paper import asymptotic
    >>> task = zoo.tasks.LinearRegression(num_features=2, context_length=3)
    >>> round(asymptotic.softmax_risk(task), 4)
    1.2

  References:
    docs/large_dimension.md, section 4.
  """
  task = require_covered(task)
  if task.mean_weights().any():
    raise UserError('prior_mean is not 0; these heads have no guess')
  if task.context_length < 2:
    raise UserError('context_length is 1; centred examples need two or more')
  shorter = dataclasses.replace(task, context_length=task.context_length - 1)
  return float(exact_risk(optimal_rule(shorter), shorter))
