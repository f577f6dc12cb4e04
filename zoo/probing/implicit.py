"""The algorithm that a model runs in context, derived from its learning rule.

In labels shifted by the prior mean, `y' = y − w*·x`, the weights learned in context are

    ω(G) = init + (⟨P_i, S⟩ + s_i q)_i + Γ r

with `S = XᵀX/C`, `q = (1/C) Σ_i y_i'²` and `r = (1/C) Σ_i y_i' x_i`: a guess, its
correction by even moments of the context, and a step along r with the matrix Γ. All
expectations here have a closed form and are computed in float64 (docs/probing.md).
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from zoo import theory
from zoo.core.learning_rule import LearningRule, symmetric
from zoo.core.protocols import Predictor, Task
from zoo.tasks import LinearRegression
from zoo.tasks.linear_regression import best_step_matrix, require_covered
from zoo.theory.exact import double_precision, float64_rule
from zoo.theory.moments import ContextMoments, context_moments
from zoo.theory.optimum import constant_estimate, shift_labels
from zoo.theory.search import lowest_point


@dataclasses.dataclass(frozen=True)
class NearestStep:
  """The step of gradient descent nearest to a predictor in the risk metric."""

  step: float | Float[np.ndarray, 'd d']  # η, or a matrix for GD-β
  start: Float[np.ndarray, ' d']  # w_0
  difference: float  # E (f − f_GD)²
  # `difference` divided by E (f − E[ω]·x_q)², the whole effect of the context on the
  # prediction; None for a predictor that ignores its context.
  unexplained: float | None
  risk: float  # of the step itself


@dataclasses.dataclass(frozen=True)
class PseudoConstant:
  """A model's correction of a wrong guess: p tr(Σ⁺S) in place of the constant 1.

  For Σ = I, `tr(Σ⁺S)` is `tr(XᵀX)/C`. The number p is the projection of the guess's
  correction on `(w* − init) tr(Σ⁺S)` in the risk metric.
  """

  value: float
  optimum: float  # C/(Cd + 2) without noise
  unexplained: float | None  # share of the correction's mean square not explained by p


@dataclasses.dataclass(frozen=True)
class ExcessParts:
  """The excess risk over the global optimum, split into parts ≥ 0."""

  guess_mean: float  # the error of the mean guess after correction in context
  guess_spread: float  # the variance of the correction over contexts
  offset: float  # the part b(G) of the prediction, which ignores the query
  step_size: float  # error of Γ along the identity: too long or too short
  step_shape: float  # the rest of the error of Γ


@dataclasses.dataclass(frozen=True)
class ImplicitAlgorithm:
  """A learning rule on a task, compared with the optimum of the linear family."""

  risk: float
  optimal_risk: float
  excess: ExcessParts
  start: Float[np.ndarray, ' d']  # the initial guess, before any example
  start_distance: float  # |init − w*|
  mean_weights: Float[np.ndarray, ' d']  # E ω(G), the guess corrected in context
  step_matrix: Float[np.ndarray, 'd d']  # Γ
  step_size: float  # tr Γ / d, the nearest multiple of the identity
  anisotropy: float  # |Γ − step_size I| / |Γ|, Frobenius; 0 for Γ = 0
  best_step_matrix: Float[np.ndarray, 'd d']  # of the global optimum
  pseudo_constant: PseudoConstant | None  # None if the guess is right: init = w*
  nearest_gd: NearestStep
  nearest_gd_beta: NearestStep  # with Γ as its step


class _Even(NamedTuple):
  """Numbers `c_i + ⟨P_i, S⟩ + s_i q` of a context, even in its labels."""

  constant: Float[np.ndarray, ' n']
  p: Float[np.ndarray, 'n d d']
  s: Float[np.ndarray, ' n']

  def mean(self, context: ContextMoments) -> Float[np.ndarray, ' n']:
    """Their means over contexts."""
    moved = np.einsum('iab,ab->i', self.p, context.features) + self.s * context.mean_q
    return self.constant + moved

  def variance(
    self, context: ContextMoments, c: int, metric: Float[np.ndarray, 'n n']
  ) -> float:
    """Their variance over contexts of c examples, summed in a metric."""
    s, scaled = self.s, self.p @ context.features
    products = np.einsum('iab,jba->ij', scaled, scaled)
    with_q = np.einsum('iab,ab->i', self.p, context.spread @ context.features)
    covariance = 2 / c * products + context.variance_q * np.outer(s, s)
    covariance += 2 / c * (np.outer(s, with_q) + np.outer(with_q, s))
    return float(np.sum(metric * covariance))

  def square(
    self, context: ContextMoments, c: int, metric: Float[np.ndarray, 'n n']
  ) -> float:
    """Their mean square over contexts of c examples, in a metric."""
    mean = self.mean(context)
    return float(mean @ metric @ mean) + self.variance(context, c, metric)


class _Shifted(NamedTuple):
  """A rule in shifted labels, and the moments of its context."""

  guess: _Even  # minus w*, corrected: init − w* + ⟨P_i, S⟩ + s_i q
  step_matrix: Float[np.ndarray, 'd d']  # Γ
  # b(G) = offset + 2 offset_rho·r
  offset: _Even
  offset_rho: Float[np.ndarray, ' d']
  context_length: int
  mean: Float[np.ndarray, ' d']  # w*
  context: ContextMoments


def implicit_algorithm(subject: Predictor, task: Task) -> ImplicitAlgorithm:
  """The algorithm of a model, an estimator or a rule on the prompts of a task.

  Takes O(d⁴) time. Raises UserError as `theory.exact_risk` does.
  """
  task = require_covered(task)
  risk = float(theory.exact_risk(subject, task))
  optimal_risk = float(theory.exact_risk(theory.optimal_rule(task), task))
  with double_precision():
    rule = float64_rule(subject)
  shifted = _shift(rule, task)
  gamma = shifted.step_matrix
  d = len(gamma)
  step_size = float(np.trace(gamma) / d)
  size = float(np.linalg.norm(gamma))
  isotropic = step_size * np.eye(d)
  best_start, best_step = _nearest_step(shifted)
  return ImplicitAlgorithm(
    risk=risk,
    optimal_risk=optimal_risk,
    excess=_excess(shifted, best_step_matrix(task)),
    start=np.asarray(rule.init),
    start_distance=float(np.linalg.norm(shifted.guess.constant)),
    mean_weights=shifted.mean + shifted.guess.mean(shifted.context),
    step_matrix=gamma,
    step_size=step_size,
    anisotropy=float(np.linalg.norm(gamma - isotropic)) / size if size > 0 else 0.0,
    best_step_matrix=best_step_matrix(task),
    pseudo_constant=_pseudo_constant(shifted, task),
    nearest_gd=_measure(rule, shifted, task, best_start, best_step),
    nearest_gd_beta=_measure(
      rule, shifted, task, shifted.mean + _best_start(shifted, gamma), gamma
    ),
  )


def _shift(rule: LearningRule, task: LinearRegression) -> _Shifted:
  """The rule for labels minus w*·x, in float64 on the host."""
  moments = theory.task_moments(task)
  mean = moments.prior_mean
  d = mean.size
  update, offset = (
    shift_labels(symmetric(np.asarray(form)), mean)
    for form in (rule.update, rule.bias_update)
  )
  return _Shifted(
    guess=_Even(np.asarray(rule.init) - mean, update[:, :d, :d], update[:, d, d]),
    step_matrix=2 * update[:, :d, d],
    offset=_Even(np.asarray(rule.bias)[None], offset[None, :d, :d], offset[None, d, d]),
    offset_rho=offset[:d, d],
    context_length=task.context_length,
    mean=mean,
    context=context_moments(moments),
  )


def _excess(rule: _Shifted, best: Float[np.ndarray, 'd d']) -> ExcessParts:
  context, c, rho = rule.context, rule.context_length, rule.offset_rho
  features, second_moment_r = context.features, context.second_moment_r
  guess, offset = rule.guess.mean(context), rule.offset.square(context, c, np.eye(1))
  gap = rule.step_matrix - best
  # An error A of the step matrix costs tr ΣAMAᵀ; first the part along the identity.
  scale = float(np.trace(features @ second_moment_r))
  along = float(np.trace(features @ gap @ second_moment_r)) / scale if scale else 0.0
  rest = gap - along * np.eye(len(gap))
  return ExcessParts(
    guess_mean=float(guess @ features @ guess),
    guess_spread=rule.guess.variance(context, c, features),
    offset=offset + float(4 * rho @ second_moment_r @ rho),
    step_size=along**2 * scale,
    step_shape=float(np.trace(features @ rest @ second_moment_r @ rest.T)),
  )


def _pseudo_constant(rule: _Shifted, task: LinearRegression) -> PseudoConstant | None:
  context, c = rule.context, rule.context_length
  features, missing = context.features, -rule.guess.constant
  size = float(missing @ features @ missing)
  if size == 0:
    return None
  rank = np.linalg.matrix_rank(features, hermitian=True)
  # E ⟨P, S⟩ tr(Σ⁺S) = tr PΣ (r + 2/C), and E q tr(Σ⁺S) = τr + (2/C) tr ΣΛ.
  correction = rule.guess._replace(constant=0 * missing)
  with_constant = np.einsum('iab,ab->i', correction.p, features) * (rank + 2 / c)
  with_q = context.mean_q * rank + 2 / c * np.trace(context.spread)
  with_constant += correction.s * with_q
  product = float(missing @ features @ with_constant)
  square = size * (rank**2 + 2 * rank / c)
  total = correction.square(context, c, features)
  best = constant_estimate(theory.task_moments(task))
  return PseudoConstant(
    value=float(product / square),
    optimum=float(best.scale + best.slope * task.noise_std**2 / (rank + 2 / c)),
    unexplained=float(1 - product**2 / (square * total)) if total > 0 else None,
  )


def _measure(
  rule: LearningRule,
  shifted: _Shifted,
  task: LinearRegression,
  start: Float[np.ndarray, ' d'],
  step: float | Float[np.ndarray, 'd d'],
) -> NearestStep:
  """A step of gradient descent, with the share of a rule that it leaves unexplained."""
  matrix = np.eye(len(start)) * step if np.ndim(step) == 0 else np.asarray(step)
  nearest = LearningRule.gd_beta(start, matrix)
  mean_weights = shifted.mean + shifted.guess.mean(shifted.context)
  without_context = LearningRule.gradient_descent(mean_weights, 0.0)
  difference = float(theory.squared_difference(rule, nearest, task).prediction)
  moved = float(theory.squared_difference(rule, without_context, task).prediction)
  risk = float(theory.exact_risk(nearest, task))
  unexplained = difference / moved if moved > 0 else None
  return NearestStep(step, start, difference, unexplained, risk)


def _nearest_step(rule: _Shifted) -> tuple[Float[np.ndarray, ' d'], float]:
  """`(w_0, η)` of the nearest step of gradient descent.

  For a given η the best start is a linear least-squares problem, so only η must be
  searched. The odd part of the difference exceeds its minimum by `(η − η_Γ)² tr ΣM`,
  which bounds how far from `η_Γ` the search must go.
  """
  features, second_moment_r = rule.context.features, rule.context.second_moment_r
  scale = float(np.trace(features @ second_moment_r))
  identity = np.eye(len(features))
  if scale == 0:  # the query is always 0
    return rule.mean + rule.guess.constant, 0.0
  middle = float(np.trace(features @ rule.step_matrix @ second_moment_r)) / scale

  def excess(step_size: float) -> float:
    odd = scale * (step_size - middle) ** 2
    return odd + _even_difference(rule, step_size * identity)

  reach = np.sqrt(_even_difference(rule, middle * identity) / scale)
  step_size, _ = lowest_point(excess, middle + reach * np.linspace(-1, 1, 101))
  return rule.mean + _best_start(rule, step_size * identity), step_size


def _best_start(
  rule: _Shifted, step_matrix: Float[np.ndarray, 'd d']
) -> Float[np.ndarray, ' d']:
  """`u = w_0 − w*` of the step with a given matrix and the nearest even part.

  It minimises `E |e(G) − (I − ΓS) u|²_Σ`, where e(G) is the corrected guess minus w*.
  """
  features, c = rule.context.features, rule.context_length
  square = step_matrix.T @ features @ step_matrix
  cross = features @ step_matrix @ features
  # E SBS = (1 + 1/C) ΣBΣ + (tr BΣ / C) Σ.
  normal = features - cross - cross.T + (1 + 1 / c) * features @ square @ features
  normal += np.trace(square @ features) / c * features
  weigh = step_matrix.T @ features
  mean = rule.guess.mean(rule.context)
  # E S v(G) for v = ΓᵀΣ e(G), whose row b is ⟨P_b, S⟩ + s_b q plus a constant.
  p = np.tensordot(weigh, rule.guess.p, 1)
  moved = features @ (weigh @ mean)
  moved += 2 / c * np.einsum('ai,bij,jb->a', features, p, features, optimize=True)
  moved += 2 / c * rule.context.spread @ features @ (weigh @ rule.guess.s)
  return np.linalg.lstsq(normal, features @ mean - moved, rcond=None)[0]


def _even_difference(rule: _Shifted, step_matrix: Float[np.ndarray, 'd d']) -> float:
  """The even part of the difference from the nearest step with a given matrix."""
  start = _best_start(rule, step_matrix)
  # The step moves its guess by −ΓSu; coordinate i of ΓSu is ⟨Γ_i uᵀ, S⟩.
  moves = symmetric(step_matrix[:, :, None] * start)
  guess = rule.guess
  gap = guess._replace(constant=guess.constant - start, p=guess.p + moves)
  features = rule.context.features
  return max(gap.square(rule.context, rule.context_length, features), 0.0)
