"""All probes of a model at once."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
from tqdm import tqdm

from zoo import estimators, theory
from zoo.errors import UserError
from zoo.evaluation_sets import EvaluationSet
from zoo.intervals import Estimate
from zoo.models.linear_attention import LinearAttention
from zoo.probing.attention_heads import Head, heads
from zoo.probing.distribution_shift import SHIFTS, Shift, shift
from zoo.probing.implicit import ImplicitAlgorithm, implicit_algorithm
from zoo.probing.paths import (
  Interpolation,
  constructed_optimum,
  interpolation,
)
from zoo.probing.scores import Risks, Score, risks, score
from zoo.probing.similarity import Alignment, alignment, has_rule
from zoo.probing.verdicts import judge, judge_by_samples
from zoo.protocols import Predictor, Task
from zoo.tasks import LinearRegression

# The estimators that a model can be compared with by name.
REFERENCES = {
  'gd': 'one step of gradient descent from the prior mean, with the best step size',
  'gd_beta': 'one step from the prior mean with the best matrix (GD-β)',
  'bayes': 'the posterior mean',
}


@dataclasses.dataclass(frozen=True)
class Report:
  """The results of `probe`; None if a predictor or a task has no such result."""

  is_gradient_descent: bool
  verdict: str
  against: str
  risks: Risks  # on fresh prompts of the task
  algorithm: ImplicitAlgorithm | None
  alignment: Alignment
  heads: list[Head] | None
  to_other: Interpolation | None
  to_optimum: Interpolation | None  # to the constructed optimum, also through weights
  shifts: list[Shift]
  score: Score | None = None  # on a frozen set, if one was given

  def to_json(self) -> str:
    """The report as JSON; numbers that are not finite are null."""
    return json.dumps(_plain(dataclasses.asdict(self)), indent=2, allow_nan=False)


def reference(name: str, task: Task) -> Predictor:
  """One of REFERENCES for a task; UserError for another name or task."""
  if name not in REFERENCES:
    raise UserError(f'unknown estimator {name!r}; known: {", ".join(REFERENCES)}')
  try:
    theory.task_moments(task)
  except UserError as error:
    raise UserError(
      f'{name} is not known for the task; compare with another model: {error}'
    ) from error
  make = {
    'gd': estimators.gradient_descent,
    'gd_beta': estimators.gd_beta,
    'bayes': estimators.bayes,
  }
  return make[name](task)


def probe(
  subject: Predictor,
  task: Task,
  against: str | Predictor = 'gd',
  against_name: str | None = None,
  num_prompts: int = 65536,
  seed: int = 0,
  evaluation_set: EvaluationSet | None = None,
) -> Report:
  """Probes a model, an estimator or a rule on a task, next to another predictor.

  `against` is one of REFERENCES, or a predictor. Both are also scored on the prompts of
  an `evaluation_set`; a reference is still made for `task`. Raises UserError for an
  unknown reference, and for a predictor that cannot be called on the task's prompts.
  """
  other = reference(against, task) if isinstance(against, str) else against
  if against_name is None:
    against_name = against if isinstance(against, str) else type(against).__name__
  scored = None
  if evaluation_set is not None:
    scored = score(subject, other, evaluation_set)
  aligned = alignment(subject, other, task, num_prompts, seed)
  is_descent, verdict = False, 'Unknown: no theory covers its task.'
  algorithm = found_heads = to_other = to_optimum = None
  shifts = []
  if theory.covers(task):
    assert isinstance(task, LinearRegression)
    if has_rule(subject):
      algorithm = implicit_algorithm(subject, task)
      is_descent, verdict = judge(algorithm, task)
      if isinstance(subject, LinearAttention):
        found_heads = heads(subject, task)
      if has_rule(other):
        to_other = interpolation(subject, other, task)
      if (optimum := constructed_optimum(subject, task)) is not None:
        to_optimum = interpolation(subject, optimum, task)
    else:
      is_descent, verdict = judge_by_samples(subject, task, num_prompts, seed)
    # Slow, since each shift is compiled; only a terminal shows the bar.
    kinds = tqdm(SHIFTS, 'shifts', leave=False, disable=None)
    shifts = [shift(subject, other, task, kind, seed=seed) for kind in kinds]
  return Report(
    is_gradient_descent=is_descent,
    verdict=verdict,
    against=against_name,
    risks=risks(subject, other, task, num_prompts, seed),
    algorithm=algorithm,
    alignment=aligned,
    heads=found_heads,
    to_other=to_other,
    to_optimum=to_optimum,
    shifts=shifts,
    score=scored,
  )


def _plain(value: object) -> object:
  """The value in JSON types; None for a number that is not finite."""
  if isinstance(value, Estimate):
    value = value._asdict()
  if isinstance(value, dict):
    return {name: _plain(part) for name, part in value.items()}
  if isinstance(value, list | tuple):
    return [_plain(part) for part in value]
  if isinstance(value, np.ndarray | np.generic):
    return _plain(value.tolist())
  if isinstance(value, float) and not math.isfinite(value):
    return None
  return value
