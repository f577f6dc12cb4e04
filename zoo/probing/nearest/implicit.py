"""The algorithm that a model runs in context, derived from its learning rule.

In labels shifted by the prior mean, `y' = y − w*·x`, the weights learned in context are

    ω(G) = init + (⟨P_i, S⟩ + s_i q)_i + Γ r

with `S = XᵀX/C`, `q = (1/C) Σ_i y_i'²` and `r = (1/C) Σ_i y_i' x_i`. The first term is
a guess, the second its correction by even moments of the context, and the third a step
along r with the matrix Γ. All expectations here have a closed form, and are computed in
float64 (docs/unexplained.md, "In closed form").
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from zoo import theory
from zoo.core.learning_rule import LearningRule, symmetric
from zoo.core.protocols import Predictor, Task
from zoo.estimators.linear_prior import best_step_matrix
from zoo.tasks import LinearRegression
from zoo.tasks.linear_regression import require_covered
from zoo.theory.exact import double_precision, rule_of
from zoo.theory.optimum import RANK_TOLERANCE, constant_estimate, shift_labels
from zoo.theory.risk import Moments, Parts, context_moments, mean_square
from zoo.theory.search import lowest_point


@dataclasses.dataclass(frozen=True)
class NearestStep:
  """The step of gradient descent nearest to a predictor, by mean squared difference.

  Attributes:
    step: The step size η, or the matrix Γ of GD-β.
    start: The start w_0, `[d]`.
    difference: E (f − g)² for the predictions f of the predictor and g of the step.
    unexplained: `difference` divided by the variation over contexts, E Var(f | x_q).
      None for a predictor that ignores its context.
    unexplained_of_odd_part: The same share of the part of f that changes sign with the
      shifted labels y', ⟨Γ r, x_q⟩. None for a predictor without this part. It leaves
      out the part that is even in y', which `FittedAlgorithm.unexplained_of_labels`
      contains.
    risk: The risk of the step itself.
  """

  step: float | Float[np.ndarray, 'd d']
  start: Float[np.ndarray, ' d']
  difference: float
  unexplained: float | None
  unexplained_of_odd_part: float | None
  risk: float


@dataclasses.dataclass(frozen=True)
class PseudoConstant:
  """A model's correction of a wrong guess: p tr(Σ⁺S) in place of the constant 1.

  For Σ = I, `tr(Σ⁺S)` is `tr(XᵀX)/C`. The number p is the projection of the correction
  of the guess on `(w* − init) tr(Σ⁺S)`, with the mean product of predictions as the
  inner product.

  Attributes:
    value: The number p of the model.
    optimum: The number p of the optimum; without noise C/(Cd + 2).
    unexplained: The share of the mean square of the correction that p does not explain.
      None if there is no correction.
  """

  value: float
  optimum: float
  unexplained: float | None


@dataclasses.dataclass(frozen=True)
class ExcessParts:
  """The excess risk over the global optimum, split into parts that are at least 0.

  Attributes:
    guess_mean: The error of the mean guess, after its correction in context.
    guess_spread: The variance of the correction over contexts.
    offset: The part of the prediction that ignores the query, b(G).
    step_size: The error of Γ along the identity: the step is too long or too short.
    step_shape: The rest of the error of Γ.
  """

  guess_mean: float
  guess_spread: float
  offset: float
  step_size: float
  step_shape: float


@dataclasses.dataclass(frozen=True)
class ImplicitAlgorithm:
  """A learning rule on a task, compared with the optimum of the linear family.

  Attributes:
    risk: The risk of the rule.
    optimal_risk: The risk of the optimum.
    excess: The parts of the excess risk.
    start: The initial guess, before any example, `[d]`.
    start_distance: `|init − w*|`, the distance of the initial guess from the prior
      mean.
    mean_weights: E ω(G), the guess after its correction in context, `[d]`.
    step_matrix: Γ, `[d, d]`.
    step_size: tr Γ / d, the size of the nearest multiple of the identity.
    anisotropy: `|Γ − step_size I| / |Γ|` in the Frobenius norm; 0 for Γ = 0.
    best_step_matrix: Γ of the global optimum, `[d, d]`.
    pseudo_constant: The correction of a wrong guess. None if init = w*.
    nearest_gd: The nearest step of gradient descent.
    nearest_gd_beta: The nearest step with Γ as its matrix.
  """

  risk: float
  optimal_risk: float
  excess: ExcessParts
  start: Float[np.ndarray, ' d']
  start_distance: float
  mean_weights: Float[np.ndarray, ' d']
  step_matrix: Float[np.ndarray, 'd d']
  step_size: float
  anisotropy: float
  best_step_matrix: Float[np.ndarray, 'd d']
  pseudo_constant: PseudoConstant | None
  nearest_gd: NearestStep
  nearest_gd_beta: NearestStep


class _Centred:
  """A rule in shifted labels, whose weights are ω − w*, with the task's moments there.

  The even part of a mean square belongs to the guess and its correction, and the odd
  part to the step.
  """

  def __init__(self, rule: LearningRule, task: LinearRegression):
    """Shifts the rule and the moments of the task.

    Args:
      rule: The rule, in float64 on the host.
      task: The task.
    """
    moments = theory.task_moments(task)
    self.mean = moments.prior_mean  # This is w*.
    update, offset = (
      shift_labels(symmetric(np.asarray(form)), self.mean)
      for form in (rule.update, rule.bias_update)
    )
    init, bias = np.asarray(rule.init) - self.mean, np.asarray(rule.bias)
    self.rule = LearningRule(init, update, bias, offset)
    self.weights = dataclasses.replace(self.rule, bias=0 * bias, bias_update=0 * offset)
    self.moments = moments._replace(prior_mean=0 * self.mean)
    self.context = context_moments(self.moments)
    d = init.size
    self.step_matrix = 2 * update[:, :d, d]  # This is Γ.
    moved = np.einsum('iab,ab->i', update[:, :d, :d], self.context.features)
    # Below are the means of ω − w* and of the offset b.
    self.mean_weights = init + moved + update[:, d, d] * self.context.mean_q
    along = np.sum(offset[:d, :d] * self.context.features)
    self.mean_offset = bias + along + offset[d, d] * self.context.mean_q

  def square(self, rule: LearningRule) -> Parts:
    """Returns the mean square of a rule's prediction, in two parts."""
    return jax.device_get(_square(rule, self.moments))

  def product(self, first: LearningRule, second: LearningRule) -> Parts:
    """Returns the mean product of two rules' predictions, in two parts."""
    plus, minus = self.square(first + second), self.square(first - second)
    return Parts((plus.even - minus.even) / 4, (plus.odd - minus.odd) / 4)


_square = jax.jit(mean_square)


def implicit_algorithm(subject: Predictor, task: Task) -> ImplicitAlgorithm:
  """Returns the algorithm that a model, an estimator or a rule runs on a task.

  Everything is a closed form. For a predictor without a learning rule,
  `sampled_algorithm` fits algorithms to sampled predictions. The time is O(d⁴).

  - Quantity: closed forms of the rule that a model follows: risk, Γ, starts; and
    `unexplained` of the nearest steps, E (f − g)² / E Var(f | x_q).
  - Null: `unexplained` is None for a rule that ignores its context. A rule that ignores
    the labels alone has a share, and a `step_matrix` of 0.
  - Counterfactual: another context of the same query.
  - Denominator: the variation over contexts, E Var(f | x_q).

  Args:
    subject: A model, an estimator or a learning rule of the linear family.
    task: Linear regression.

  Returns:
    The rule's risk, guess and step, and the nearest steps of gradient descent.

  Raises:
    UserError: If exact theory does not cover the task; if the subject has no learning
      rule, or predicts differently from its rule; if the model was edited.

  Example:
    >>> task = zoo.create_task('linear_regression', num_features=2, context_length=4)
    >>> step = zoo.estimators.gradient_descent(task, 0.5, 1)
    >>> found = zoo.probing.implicit_algorithm(step, task)
    >>> round(found.step_size, 3), round(found.nearest_gd.unexplained, 3)
    (0.5, 0.0)
  """
  task = require_covered(task)
  risk = float(theory.exact_risk(subject, task))
  optimal_risk = float(theory.exact_risk(theory.optimal_rule(task), task))
  best = best_step_matrix(task)
  with double_precision():
    centred = _Centred(rule_of(subject), task)
    gamma = centred.step_matrix
    step_size = float(np.trace(gamma) / len(gamma))
    size = float(np.linalg.norm(gamma))
    rest = float(np.linalg.norm(gamma - step_size * np.eye(len(gamma))))
    return ImplicitAlgorithm(
      risk=risk,
      optimal_risk=optimal_risk,
      excess=_excess(centred, best),
      start=centred.mean + centred.rule.init,
      start_distance=float(np.linalg.norm(centred.rule.init)),
      mean_weights=centred.mean + centred.mean_weights,
      step_matrix=gamma,
      step_size=step_size,
      anisotropy=rest / size if size > 0 else 0.0,
      best_step_matrix=best,
      pseudo_constant=_pseudo_constant(centred),
      nearest_gd=_measure(centred, task, *_nearest_step(centred)),
      nearest_gd_beta=_measure(centred, task, _best_start(centred, gamma), gamma),
    )


def _excess(centred: _Centred, best: Float[np.ndarray, 'd d']) -> ExcessParts:
  mean, nothing = centred.mean_weights, 0 * centred.mean
  gap = centred.weights - LearningRule.gd_beta(nothing, best)
  spread = centred.square(dataclasses.replace(gap, init=gap.init - mean))
  # The error of the step matrix has a part along the identity, and a rest.
  identity = LearningRule.gradient_descent(nothing, 1.0)
  scale = centred.square(identity).odd
  along = float(centred.product(gap, identity).odd / scale) if scale else 0.0
  return ExcessParts(
    guess_mean=float(mean @ centred.context.features @ mean),
    guess_spread=float(spread.even),
    offset=float(sum(centred.square(centred.rule - centred.weights))),
    step_size=float(along**2 * scale),
    step_shape=float(centred.square(gap - along * identity).odd),
  )


def _pseudo_constant(centred: _Centred) -> PseudoConstant | None:
  features, missing = centred.context.features, -centred.rule.init
  if missing @ features @ missing == 0:
    return None
  inverse = np.linalg.pinv(features, rcond=RANK_TOLERANCE, hermitian=True)
  nothing = 0.0 * centred.weights

  def correction(estimate: Float[np.ndarray, 'e e']) -> LearningRule:
    """Returns the rule that adds `w* − init` times an estimate of the constant 1."""
    return dataclasses.replace(nothing, update=missing[:, None, None] * estimate)

  along = correction(np.pad(inverse, (0, 1)))  # The estimate is tr(Σ⁺S).
  best = correction(constant_estimate(centred.moments))
  own = dataclasses.replace(centred.weights, init=nothing.init)
  square, total = centred.square(along).even, centred.square(own).even
  product = centred.product(own, along).even
  return PseudoConstant(
    value=float(product / square),
    optimum=float(centred.product(best, along).even / square),
    unexplained=float(1 - product**2 / (square * total)) if total > 0 else None,
  )


def _measure(
  centred: _Centred,
  task: LinearRegression,
  start: Float[np.ndarray, ' d'],
  step: float | Float[np.ndarray, 'd d'],
) -> NearestStep:
  """Returns a step of gradient descent, with what it does not explain of a rule.

  As everywhere in this module, `start` is relative to w*.
  """
  matrix = np.eye(len(start)) * step if np.ndim(step) == 0 else np.asarray(step)
  nearest = LearningRule.gd_beta(start, matrix)
  # This rule is `E[f | x_q]`, since contexts do not depend on the query.
  without_context = dataclasses.replace(
    LearningRule.gradient_descent(centred.mean_weights, 0.0),
    bias=np.asarray(centred.mean_offset),
  )
  apart = centred.square(centred.rule - nearest)
  difference = float(sum(apart))
  moved = float(sum(centred.square(centred.rule - without_context)))
  odd = float(centred.square(centred.rule).odd)
  start = centred.mean + start
  risk = float(theory.exact_risk(LearningRule.gd_beta(start, matrix), task))
  return NearestStep(
    step,
    start,
    difference,
    unexplained=difference / moved if moved > 0 else None,
    unexplained_of_odd_part=float(apart.odd) / odd if odd > 0 else None,
    risk=risk,
  )


def _nearest_step(centred: _Centred) -> tuple[Float[np.ndarray, ' d'], float]:
  """Returns `(w_0 − w*, η)` of the nearest step of gradient descent.

  For a given η the best start is a linear least-squares problem, so that only η must be
  searched. The odd part of the difference exceeds its minimum by `(η − η_Γ)² tr ΣM`,
  which bounds how far from `η_Γ` the search must go.
  """
  nothing, eye = 0 * centred.mean, np.eye(centred.mean.size)
  identity = LearningRule.gradient_descent(nothing, 1.0)
  scale = centred.square(identity).odd  # This is tr ΣM.
  if scale == 0:  # The query is always 0.
    return np.asarray(centred.rule.init), 0.0
  middle = float(centred.product(centred.weights, identity).odd / scale)

  def difference(step_size: float) -> Parts:
    start = _best_start(centred, step_size * eye)
    return centred.square(
      centred.weights - LearningRule.gradient_descent(start, step_size)
    )

  reach = np.sqrt(difference(middle).even / scale)
  step_size = lowest_point(
    lambda step_size: float(sum(difference(step_size))),
    middle + reach * np.linspace(-1, 1, 101),
  )
  return _best_start(centred, step_size * eye), step_size


def _best_start(
  centred: _Centred, step_matrix: Float[np.ndarray, 'd d']
) -> Float[np.ndarray, ' d']:
  """Returns `u = w_0 − w*` of the step with a given matrix and the nearest even part.

  It minimises `E |e(G) − (I − ΓS) u|²_Σ`, where e(G) is the corrected guess minus w*.
  """
  features, c = centred.context.features, centred.moments.context_length
  square = step_matrix.T @ features @ step_matrix
  cross = features @ step_matrix @ features
  # The moment is E SBS = (1 + 1/C) ΣBΣ + (tr BΣ / C) Σ.
  normal = features - cross - cross.T + (1 + 1 / c) * features @ square @ features
  normal += np.trace(square @ features) / c * features
  slope = np.asarray(_slope_at_0(centred.weights, step_matrix, centred.moments))
  return np.linalg.lstsq(normal, -slope / 2, rcond=None)[0]


@jax.jit
def _slope_at_0(
  rule: LearningRule, step_matrix: Float[Array, 'd d'], moments: Moments
) -> Float[Array, ' d']:
  """Returns the slope, at u = 0, of the even part of the difference from a step.

  The slope is in the start u of the step.
  """

  def even(start: Array) -> Array:
    return mean_square(rule - LearningRule.gd_beta(start, step_matrix), moments).even

  return jax.grad(even)(jnp.zeros(rule.num_features))
