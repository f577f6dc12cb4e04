"""The losses of two predictors on the same prompts."""

import dataclasses

from zoo import theory
from zoo.core.errors import check_count
from zoo.core.protocols import Predictor, Task, require_task
from zoo.measure.intervals import Estimate, estimate
from zoo.measure.predict import (
  LOSS_BATCH_SIZE,
  Programs,
  gather,
  loss_of,
  losses_at_query,
  sample_batches,
)
from zoo.theory.exact import known_risk


@dataclasses.dataclass(frozen=True)
class PairedRisks:
  """The mean losses of two predictors, f and f', on the same prompts.

  Exact risks are those of the task of the prompts. They are None if there is no closed
  form.

  Attributes:
    risk: The mean loss of f, E ℓ(f, y); in regression, E (f − y)².
    other_risk: The mean loss of f'.
    risk_difference: The first loss minus the second.
    exact_risk: The exact risk of f.
    other_exact_risk: The exact risk of f'.
    optimal_risk: The exact risk of the optimum of the linear family.
  """

  risk: Estimate
  other_risk: Estimate
  risk_difference: Estimate
  exact_risk: float | None
  other_exact_risk: float | None
  optimal_risk: float | None


def risks(
  subject: Predictor,
  other: Predictor,
  task: Task,
  num_prompts: int = 4096,
  seed: int = 0,
) -> PairedRisks:
  """Measures the mean losses of two predictors on the same prompts of any task.

  With equal seeds and numbers of prompts these are the prompts of `zoo.curve`, whose
  loss after C examples is then the same number.

  - Quantity: E ℓ(f, y) of each, and their difference, over the same prompts.
  - Null: a difference of 0, for a predictor beside itself.

  Args:
    subject: A model, an estimator or a learning rule, f.
    other: Another one, f'.
    task: The task whose prompts and loss are used.
    num_prompts: The number of prompts, at least 2.
    seed: The seed of the prompts.

  Returns:
    Both losses and their difference with standard errors, and exact risks where they
    are known.

  Raises:
    UserError: If a predictor cannot be called on the task's prompts, or `num_prompts`
      is below 2.

  Example:
    >>> task = zoo.create_task('linear_regression', num_features=2, context_length=4)
    >>> step = zoo.estimators.gradient_descent(task)
    >>> found = zoo.probing.risks(step, step, task, num_prompts=64)
    >>> found.risk_difference.mean
    0.0
    >>> round(found.exact_risk, 3)
    0.857
  """
  require_task(task)
  num_prompts = check_count('num_prompts', num_prompts, minimum=2)
  batches = sample_batches(task, seed, num_prompts, LOSS_BATCH_SIZE)
  both, loss, programs = [subject, other], loss_of(task), Programs()
  own_losses, other_losses = gather(
    lambda prompt: programs.run(losses_at_query, both, prompt, loss), batches
  )
  optimal_risk = None
  if theory.covers(task):
    optimal_risk = float(theory.exact_risk(theory.optimal_rule(task), task))
  return PairedRisks(
    risk=estimate(own_losses),
    other_risk=estimate(other_losses),
    risk_difference=estimate(own_losses - other_losses),
    exact_risk=known_risk(subject, task),
    other_exact_risk=known_risk(other, task),
    optimal_risk=optimal_risk,
  )
