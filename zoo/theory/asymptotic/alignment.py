"""How well pretraining on one distribution of tasks serves another."""

import numpy as np

from zoo.core.errors import UserError
from zoo.core.learning_rule import LearningRule
from zoo.core.protocols import Task
from zoo.tasks.linear_regression import require_covered
from zoo.theory.exact import exact_risk
from zoo.theory.optimum import optimal_rule


def alignment(train: Task, test: Task) -> float:
  """How much of what one layer can learn on `test` the best rule of `train` learns.

  `(R_0 − R)/(R_0 − R*)` with, on `test`, the exact risks R of `optimal_rule(train)`, R*
  of `optimal_rule(test)` and R_0 of its prior mean: 1 if the best rule is the same, 0
  if the context helps nothing, and below 0 if it harms. R, like the misalignment of
  Letey, Zavatone-Veth, Lu & Pehlevan (arXiv 2509.26551), is linear in the covariance of
  the tested tasks. Raises UserError for a task that exact theory does not cover, for
  tasks of different numbers of features, and if there is nothing to learn on `test`.
  """
  train, test = require_covered(train), require_covered(test)
  d = test.num_features
  known = LearningRule.gd_beta(test.prior_mean, np.zeros((d, d)))
  used, best = optimal_rule(train), optimal_rule(test)
  nothing, found, least = (
    float(exact_risk(rule, test)) for rule in (known, used, best)
  )
  if nothing <= least:
    raise UserError(
      'prior_covariance is 0; alignment needs a task with weights to learn'
    )
  return (nothing - found) / (nothing - least)
