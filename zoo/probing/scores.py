"""Scores on a frozen evaluation set, beside the exact risks of its task."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from zoo import theory
from zoo.evaluation_sets import EvaluationSet
from zoo.probing.sampling import Answer, Estimate, means
from zoo.probing.similarity import has_rule
from zoo.prompt import Prompt

_BATCH_SIZE = 1024  # divides the sets, so that one program does


@dataclasses.dataclass(frozen=True)
class Score:
  """How a predictor f does on a frozen set, and another one, f', on the same prompts.

  What is exact is of the set's task, and None without a learning rule.
  """

  evaluation_set: str
  version: str
  sha256: str
  same_bits: bool  # whether the set has the recorded bits, or other roundings
  num_prompts: int
  risk: Estimate  # E (f − y)²
  other_risk: Estimate
  risk_difference: Estimate  # of the first from the second
  exact_risk: float | None
  other_exact_risk: float | None
  optimal_risk: float  # the least exact risk of all learning rules


def score(subject: Any, other: Any, evaluation_set: EvaluationSet) -> Score:
  """Scores a model, rule or estimator beside another one on a frozen set.

  Raises UserError for what cannot be called on the set's prompts.
  """
  task, prompt = evaluation_set.task, evaluation_set.prompt
  num_prompts = len(prompt.y_query)

  def batches() -> Iterator[Prompt]:
    for start in range(0, num_prompts, _BATCH_SIZE):
      stop = start + _BATCH_SIZE
      yield jax.tree.map(lambda array: array[start:stop], prompt)  # noqa: B023

  found = means(_squared_errors, [subject, other], task.num_features, batches())
  exact = [
    float(theory.exact_risk(one, task)) if has_rule(one) else None
    for one in (subject, other)
  ]
  return Score(
    evaluation_set=evaluation_set.name,
    version=evaluation_set.version,
    sha256=evaluation_set.sha256,
    same_bits=evaluation_set.same_bits,
    num_prompts=num_prompts,
    **found,
    exact_risk=exact[0],
    other_exact_risk=exact[1],
    optimal_risk=float(theory.exact_risk(theory.optimal_rule(task), task)),
  )


def _squared_errors(
  prompt: Prompt, answers: list[Answer]
) -> dict[str, Float[Array, ' b']]:
  one_b, two_b = (jnp.square(answer.prediction - prompt.y_query) for answer in answers)
  return {'risk': one_b, 'other_risk': two_b, 'risk_difference': one_b - two_b}
