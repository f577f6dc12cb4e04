"""Risks of two predictors on the same prompts."""

import dataclasses

from zoo import theory
from zoo.core.errors import check_count
from zoo.core.protocols import Predictor, Task
from zoo.measure.predict import (
  BATCH_SIZE,
  Programs,
  gather,
  loss_of,
  losses_at_query,
  sample_batches,
)
from zoo.measure.statistics import Estimate, estimate
from zoo.theory.exact import known_risk


@dataclasses.dataclass(frozen=True)
class PairedRisks:
  """The mean losses of two predictors, f and f', on the same prompts.

  Exact risks are for the prompts' task, and None if there is no closed form.
  """

  risk: Estimate  # E loss(f, target), for regression E (f − target)²
  other_risk: Estimate
  risk_difference: Estimate  # the first minus the second
  exact_risk: float | None
  other_exact_risk: float | None
  optimal_risk: float | None  # of the optimum of the linear family


def risks(
  subject: Predictor,
  other: Predictor,
  task: Task,
  num_prompts: int = 65536,
  seed: int = 0,
) -> PairedRisks:
  """The risks of two predictors on fresh prompts of any task.

  - Quantity: E ℓ(f, y) of each, and their difference, over the same prompts.
  - Null: a difference of 0, for a predictor beside itself.

  Raises UserError for a predictor that cannot be called on the task's prompts.
  """
  num_prompts = check_count('num_prompts', num_prompts, minimum=2)
  batches = sample_batches(task, seed, num_prompts, BATCH_SIZE)
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
