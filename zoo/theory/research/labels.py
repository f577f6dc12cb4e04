"""Exact risks and optima for any label function and for pools of tasks.

The labels of a task are replaced by `φ(ŵ·x + σn)`; the rest of the task does not
change. The risk is the mean squared error for the latent value `ŵ·x_q`, or for a new
label of the query.
"""

from typing import NamedTuple

import numpy as np

from zoo.core.errors import check_name, check_same
from zoo.core.learning_rule import LearningRule
from zoo.core.protocols import Predictor, Task
from zoo.theory.exact import Scalar, evaluate, risk, rule_of
from zoo.theory.precision import double_precision
from zoo.theory.quadratic_risk import QuadraticRisk, best_rule
from zoo.theory.research.label_moments import Label, quadratic_risk

OPTIMUM_GUESSES = 'free', 'zero'  # the initial guess of an optimum: any, or 0


class Optimum(NamedTuple):
  """The least risk, and a rule that attains it, with float64 leaves on the host."""

  risk: float
  rule: LearningRule


def label_risk(
  subject: Predictor, task: Task, label: Label = 'linear', target: str = 'latent'
) -> Scalar:
  """`E (f − t)²` of any predictor with a learning rule, without sampling.

  `task` is `linear_regression` with identity covariances, or `task_pool`. `label` is φ:
  one of `label_moments.LABELS` beside this module, or a function of NumPy arrays that
  grows at most as a polynomial. `target` is `latent` (`t = ŵ·x_q`) or `label`
  (`t = φ(ŵ·x_q + σn)`). Raises UserError for other tasks, labels, targets and
  predictors.
  """
  known = _known(task, label, target)
  rule = rule_of(subject, task)
  check_same('features', rule.num_features, task.num_features)
  return evaluate(risk, known, rule)


def optimum(
  task: Task, label: Label = 'linear', target: str = 'latent', guess: str = 'free'
) -> Optimum:
  """The least risk of all learning rules, and a rule that attains it.

  With the guess `zero` the rule is the optimum of multi-head LSA with `y_q = 0` and
  enough heads, whose `init`, `bias` and V are 0. Raises UserError as `label_risk` does.
  """
  check_name('guess', guess, OPTIMUM_GUESSES)
  known = _known(task, label, target)
  start = None if guess == 'free' else np.zeros(len(known.cross))
  rule = best_rule(known, start)
  return Optimum(float(evaluate(risk, known, rule)), rule)


def _known(task: Task, label: Label, target: str) -> QuadraticRisk:
  with double_precision():  # a label function may use JAX
    return quadratic_risk(task, label, target)
