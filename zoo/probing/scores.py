"""Risks of two predictors on the same prompts, either fresh or from a frozen set."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import jax
from jaxtyping import Array, Float

from zoo import theory
from zoo.core.prompt import Prompt
from zoo.core.protocols import Predictor, Task
from zoo.evaluation_sets import EvaluationSet
from zoo.measure.intervals import Estimate
from zoo.probing.sampling import Answer, means, sample_means
from zoo.theory.exact import known_risk

_BATCH_SIZE = 1024  # divides the sizes of the sets, so that one program is enough


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
  losses = Losses(task)
  sampled = sample_means(losses, [subject, other], task, num_prompts, seed)
  return _risks(subject, other, task, sampled)


def score(subject: Predictor, other: Predictor, evaluation_set: EvaluationSet) -> Score:
  """The risks of two predictors on a frozen set.

  Raises UserError for a predictor that cannot be called on the set's prompts.
  """
  task, prompt = evaluation_set.task, evaluation_set.prompt
  num_prompts = len(prompt.y_query)

  def batches() -> Iterator[Prompt]:
    for start in range(0, num_prompts, _BATCH_SIZE):
      stop = start + _BATCH_SIZE
      yield jax.tree.map(lambda array: array[start:stop], prompt)  # noqa: B023

  sampled = means(Losses(task), [subject, other], task.num_features, batches())
  return Score(
    **vars(_risks(subject, other, task, sampled)),
    evaluation_set=evaluation_set.name,
    version=evaluation_set.version,
    sha256=evaluation_set.sha256,
    same_bits=evaluation_set.same_bits,
    num_prompts=num_prompts,
  )


@dataclasses.dataclass(frozen=True)
class Losses:
  """Measures the losses of two predictors on a task, and their differences."""

  task: Task

  def __call__(
    self, prompt: Prompt, answers: list[Answer]
  ) -> dict[str, Float[Array, ' b']]:
    loss = self.task.loss
    one_b, two_b = (loss(answer.prediction, prompt.y_query) for answer in answers)
    return {'risk': one_b, 'other_risk': two_b, 'risk_difference': one_b - two_b}


def _risks(
  subject: Predictor, other: Predictor, task: Task, sampled: dict[str, Estimate]
) -> Risks:
  optimal_risk = None
  if theory.covers(task):
    optimal_risk = float(theory.exact_risk(theory.optimal_rule(task), task))
  return Risks(
    **sampled,
    exact_risk=known_risk(subject, task),
    other_exact_risk=known_risk(other, task),
    optimal_risk=optimal_risk,
  )
