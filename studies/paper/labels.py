"""Exact risks and optima for any label function and for pools of tasks.

The labels of a task are replaced by `φ(ŵ·x + σn)`; the rest of the task does not
change. The risk is the mean squared error for the latent value `ŵ·x_q`, or for a new
label of the query.
"""

from typing import NamedTuple

import numpy as np

from studies.paper.label_moments import Label, quadratic_risk
from zoo.core.errors import check_name, check_same
from zoo.core.learning_rule import LearningRule
from zoo.core.protocols import Predictor, Task
from zoo.theory.exact import Scalar, evaluate, risk, rule_of
from zoo.theory.precision import double_precision
from zoo.theory.quadratic_risk import QuadraticRisk, best_rule

OPTIMUM_GUESSES = 'free', 'zero'  # The initial guess is any one, or 0.


class Optimum(NamedTuple):
  """The least risk, and a rule that attains it.

  Attributes:
    risk: The least risk.
    rule: The rule, with float64 leaves on the host.
  """

  risk: float
  rule: LearningRule


def label_risk(
  subject: Predictor, task: Task, label: Label = 'linear', target: str = 'latent'
) -> Scalar:
  """Computes the risk `E (f − t)²` of a learning rule on a task with other labels.

  No prompts are sampled.

  Args:
    subject: A `LearningRule`, or a model or an estimator that has one.
    task: A `linear_regression` with identity covariances, or a `task_pool`; at most 48
      features.
    label: The label function φ: 'linear', 'sign', 'tanh' or 'cubic', or a function of
      NumPy arrays that grows at most as a polynomial.
    target: 'latent' for `t = ŵ·x_q`, or 'label' for `t = φ(ŵ·x_q + σn)`.

  Returns:
    The risk.

  Raises:
    UserError: If the task, the label function or the target is another, if quadrature
      cannot resolve the label function, or if the subject has no learning rule,
      predicts differently from it, or has another number of features.

  Example:
    >>> from studies.paper import labels
    >>> task = zoo.tasks.LinearRegression(num_features=2, context_length=3)
    >>> rule = zoo.LearningRule.gradient_descent(np.zeros(2), step_size=0.5)
    >>> round(labels.label_risk(rule, task, label='sign'), 4)
    1.2728

  References:
    docs/theory_labels.md, section 10.
  """
  known = _known(task, label, target)
  rule = rule_of(subject, task)
  check_same('features', rule.num_features, task.num_features)
  return evaluate(risk, known, rule)


def optimum(
  task: Task, label: Label = 'linear', target: str = 'latent', guess: str = 'free'
) -> Optimum:
  """Returns the least risk of all learning rules, and a rule that attains it.

  Args:
    task: A `linear_regression` with identity covariances, or a `task_pool`; at most 48
      features.
    label: The label function φ: 'linear', 'sign', 'tanh' or 'cubic', or a function of
      NumPy arrays that grows at most as a polynomial.
    target: 'latent' for `t = ŵ·x_q`, or 'label' for `t = φ(ŵ·x_q + σn)`.
    guess: 'free' for any guess. With 'zero' the rule is the optimum of multi-head LSA
      with `y_q = 0` and enough heads, whose `init`, `bias` and V are 0.

  Returns:
    The risk and the rule.

  Raises:
    UserError: If the task, the label function, the target or the guess is another, or
      if quadrature cannot resolve the label function.

  References:
    docs/theory_labels.md, section 10.
  """
  check_name('guess', guess, OPTIMUM_GUESSES)
  known = _known(task, label, target)
  start = None if guess == 'free' else np.zeros(len(known.cross))
  rule = best_rule(known, start)
  return Optimum(float(evaluate(risk, known, rule)), rule)


def _known(task: Task, label: Label, target: str) -> QuadraticRisk:
  with double_precision():  # A label function may use JAX.
    return quadratic_risk(task, label, target)
