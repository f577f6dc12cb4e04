"""Exact risks of estimators that are not learning rules."""

from zoo.core.errors import UserError
from zoo.core.protocols import Predictor, Task
from zoo.tasks.linear_regression import GradientDescent, Ridge, require_covered
from zoo.theory.ridge import ridge_risk
from zoo.theory.schedules import gradient_descent_risk

# Bounds whose relative difference is below float32 resolution count as equal.
_RESOLVED = 1e-7


def closed_form(subject: Predictor, task: Task) -> float | None:
  """The exact risk of k-step gradient descent and of ridge regression; None for others.

  Raises UserError naming the property of the estimator or task that is not covered.
  """
  if isinstance(subject, GradientDescent) and subject.step_sizes.size > 1:
    regression = require_covered(task)
    return gradient_descent_risk(regression, subject.step_sizes, subject.start)
  if not isinstance(subject, Ridge):
    return None
  lower, upper = ridge_risk(subject, task)
  if lower == upper:  # both may be infinite
    return upper
  if upper - lower > _RESOLVED * upper:
    raise UserError(
      f'the risk is known only to lie between {lower:.9g} and {upper:.9g}, which '
      'theory.ridge_risk returns; the fewer examples and the less noise there are, the '
      'wider apart they are'
    )
  return (lower + upper) / 2
