"""Risks of two predictors on the same prompts, either fresh or from a frozen set."""

import dataclasses
from collections.abc import Iterable

import jax

from zoo import theory
from zoo.core.errors import check_count
from zoo.core.prompt import Prompt
from zoo.core.protocols import Predictor, Task
from zoo.evaluation_sets import EvaluationSet
from zoo.measure.intervals import Estimate, estimate
from zoo.measure.predict import (
  BATCH_SIZE,
  Programs,
  gather,
  loss_of,
  losses_at_query,
  sample_batches,
)
from zoo.theory.exact import known_risk

_OF_SETS = 1024  # divides the sizes of the sets, so that one program is enough


@dataclasses.dataclass(frozen=True)
class Risks:
  """The mean losses of two predictors, f and f', on the same prompts.

  Exact risks are for the prompts' task, and None if there is no closed form.
  """

  risk: Estimate  # E loss(f, target), for regression E (f − target)²
  other_risk: Estimate
  risk_difference: Estimate  # the first minus the second
  exact_risk: float | None
  other_exact_risk: float | None
  optimal_risk: float | None  # of the optimum of the linear family


@dataclasses.dataclass(frozen=True)
class Score(Risks):
  """Risks on a frozen evaluation set."""

  evaluation_set: str
  version: str
  sha256: str
  same_bits: bool  # whether the set has the recorded bits; else it is rounded otherwise
  num_prompts: int


def risks(
  subject: Predictor,
  other: Predictor,
  task: Task,
  num_prompts: int = 65536,
  seed: int = 0,
) -> Risks:
  """The risks of two predictors on fresh prompts of any task.

  Raises UserError for a predictor that cannot be called on the task's prompts.
  """
  num_prompts = check_count('num_prompts', num_prompts, minimum=2)
  batches = sample_batches(task, seed, num_prompts, BATCH_SIZE)
  return _risks(subject, other, task, batches)


def score(subject: Predictor, other: Predictor, evaluation_set: EvaluationSet) -> Score:
  """The risks of two predictors on a frozen set.

  Raises UserError for a predictor that cannot be called on the set's prompts.
  """
  task, whole = evaluation_set.task, evaluation_set.prompt
  num_prompts = len(whole.y_query)
  batches = (
    jax.tree.map(lambda array, start=start: array[start : start + _OF_SETS], whole)
    for start in range(0, num_prompts, _OF_SETS)
  )
  return Score(
    **vars(_risks(subject, other, task, batches)),
    evaluation_set=evaluation_set.name,
    version=evaluation_set.version,
    sha256=evaluation_set.sha256,
    same_bits=evaluation_set.same_bits,
    num_prompts=num_prompts,
  )


def _risks(
  subject: Predictor, other: Predictor, task: Task, batches: Iterable[Prompt]
) -> Risks:
  both, loss, programs = [subject, other], loss_of(task), Programs()
  one, two = gather(
    lambda prompt: programs.run(losses_at_query, both, prompt, loss), batches
  )
  optimal_risk = None
  if theory.covers(task):
    optimal_risk = float(theory.exact_risk(theory.optimal_rule(task), task))
  return Risks(
    risk=estimate(one),
    other_risk=estimate(two),
    risk_difference=estimate(one - two),
    exact_risk=known_risk(subject, task),
    other_exact_risk=known_risk(other, task),
    optimal_risk=optimal_risk,
  )
