"""All probes of a model at once."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import NamedTuple

import numpy as np
from flax import nnx
from tqdm import tqdm

from zoo import estimators, theory
from zoo.comparison import Comparison, compare
from zoo.curves import Curve
from zoo.errors import UserError, check_name
from zoo.estimators.baseline import HostBaseline
from zoo.evaluation_sets import EvaluationSet
from zoo.intervals import Estimate
from zoo.models.linear_attention import LinearAttention
from zoo.probing.attention_heads import Head, heads
from zoo.probing.distribution_shift import SHIFTS, Shift, shift
from zoo.probing.guesses import LearnedGuess, learned_guess
from zoo.probing.implicit import ImplicitAlgorithm, implicit_algorithm
from zoo.probing.lens import Lens, is_squared, lens
from zoo.probing.nearest import SampledAlgorithm, least_prompts, sampled_algorithm
from zoo.probing.paths import (
  Interpolation,
  constructed_optimum,
  interpolation,
)
from zoo.probing.scores import Risks, Score, risks, score
from zoo.probing.similarity import Alignment, alignment, has_rule
from zoo.probing.task_shifts import TaskShift, task_shift
from zoo.probing.verdicts import judge, judge_by_baselines, judge_by_samples
from zoo.protocols import Layered, Predictor, Task
from zoo.tasks import LinearRegression
from zoo.tasks.base import baselines_of, num_outputs_of, shifts_of

# The estimators that a model can be compared with by name on linear regression; other
# tasks define their own.
REFERENCES = {
  'gd': 'one step of gradient descent from the prior mean, with the best step size',
  'gd_beta': 'one step from the prior mean with the best matrix (GD-β)',
  'bayes': 'the posterior mean',
}


_NUM_COMPARED = 4096  # prompts, for the baselines at every number of examples
_NUM_SHIFTED = 1024  # prompts of each shifted task
_NUM_FITTED = 16384  # prompts, for the nearest algorithms


@dataclasses.dataclass(frozen=True)
class Report:
  """The results of `probe`; None where a predictor or a task has no such result."""

  is_gradient_descent: bool
  verdict: str
  against: str
  risks: Risks  # on fresh prompts of the task
  comparison: Comparison | None  # with the task's baselines, by number of examples
  algorithm: ImplicitAlgorithm | None
  # For a model without an exact algorithm: the nearest ones, and its initial guess.
  sampled: SampledAlgorithm | None
  guess: LearnedGuess | None
  alignment: Alignment | None
  heads: list[Head] | None
  to_other: Interpolation | None
  to_optimum: Interpolation | None  # to the constructed optimum
  lens: Lens | None  # the loss of what can be read after each layer
  shifts: list[Shift]
  task_shifts: list[TaskShift]  # on the tasks from `task.shifts()`, at C examples
  score: Score | None = None  # on a frozen set, if one was given

  def to_json(self) -> str:
    """The report as JSON; numbers that are not finite are null."""
    return json.dumps(_plain(dataclasses.asdict(self)), indent=2, allow_nan=False)


def references(task: Task) -> dict[str, Predictor]:
  """The predictors that a model can be compared with by name, the default first.

  For a task that exact theory covers these are REFERENCES; for other tasks they are the
  task's baselines, except those fitted by other libraries.
  """
  if theory.covers(task):
    return {
      'gd': estimators.gradient_descent(task),
      'gd_beta': estimators.gd_beta(task),
      'bayes': estimators.bayes(task),
    }
  return {
    name: baseline
    for name, baseline in baselines_of(task).items()
    if not isinstance(baseline, HostBaseline)
  }


def reference(name: str, task: Task) -> Predictor:
  """One of the references of a task; raises UserError for an unknown name."""
  known = references(task)
  return known[check_name('estimator', name, known)]


def default_reference(task: Task) -> str:
  """The name of the first reference of a task; raises UserError if it has none."""
  for name in references(task):
    return name
  raise UserError(
    f'the task is of type {type(task).__name__}, which has no baselines; compare with '
    'another model'
  )


def probe(
  subject: Predictor,
  task: Task,
  against: str | Predictor | None = None,
  against_name: str | None = None,
  num_prompts: int = 65536,
  seed: int = 0,
  evaluation_set: EvaluationSet | None = None,
) -> Report:
  """Probes a model, an estimator or a rule on a task, next to another predictor.

  `against` is the name of one of the `references` of the task, None for the first, or a
  predictor. Both predictors are also scored on the prompts of an `evaluation_set`; a
  reference is still built for `task`. Raises UserError for an unknown reference, and
  for a predictor that cannot be called on the task's prompts.
  """
  if against is None:
    against = default_reference(task)
  other = reference(against, task) if isinstance(against, str) else against
  if against_name is None:
    against_name = against if isinstance(against, str) else type(against).__name__
  scored = None
  if evaluation_set is not None:
    scored = score(subject, other, evaluation_set)
  aligned = None
  if num_outputs_of(task) == 1:
    aligned = alignment(subject, other, task, num_prompts, seed)
  compared = compare(subject, task, min(num_prompts, _NUM_COMPARED), seed)
  of_rule, sampled = _OfRule(), _OfSamples()
  shifts = []
  if theory.covers(task) and has_rule(subject):
    assert isinstance(task, LinearRegression)
    of_rule = _of_rule(subject, other, task)
  else:
    sampled = _of_samples(subject, task, num_prompts, seed)
  is_descent, verdict = _judge(task, compared, of_rule, sampled)
  if theory.covers(task):
    # Slow, since each shift is compiled; the bar shows only in a terminal.
    kinds = tqdm(SHIFTS, 'shifts', leave=False, disable=None)
    shifts = [shift(subject, other, task, kind, seed=seed) for kind in kinds]
  named = tqdm(shifts_of(task).items(), 'shifts', leave=False, disable=None)
  return Report(
    is_gradient_descent=is_descent,
    verdict=verdict,
    against=against_name,
    risks=risks(subject, other, task, num_prompts, seed),
    comparison=compared,
    alignment=aligned,
    **of_rule._asdict(),
    **sampled._asdict(),
    lens=lens(subject, task, min(num_prompts, _NUM_COMPARED), seed)
    if isinstance(subject, Layered)
    else None,
    shifts=shifts,
    task_shifts=[
      task_shift(subject, other, name, shifted, min(num_prompts, _NUM_SHIFTED), seed)
      for name, shifted in named
    ],
    score=scored,
  )


def _judge(
  task: Task, compared: Comparison | None, of_rule: _OfRule, sampled: _OfSamples
) -> tuple[bool, str]:
  """Whether the subject does gradient descent, and the verdict in words."""
  if theory.covers(task):
    if of_rule.algorithm is not None:
      return judge(of_rule.algorithm, task)
    if sampled.sampled is not None:
      return judge_by_samples(sampled.sampled)
  if compared is not None:
    return False, judge_by_baselines(compared)
  return False, 'Unknown: no theory covers its task.'


class _OfRule(NamedTuple):
  """The results that require a learning rule, by their names in a report."""

  algorithm: ImplicitAlgorithm | None = None
  heads: list[Head] | None = None
  to_other: Interpolation | None = None
  to_optimum: Interpolation | None = None


def _of_rule(subject: Predictor, other: Predictor, task: LinearRegression) -> _OfRule:
  optimum = constructed_optimum(subject, task)
  return _OfRule(
    implicit_algorithm(subject, task),
    heads(subject, task) if isinstance(subject, LinearAttention) else None,
    interpolation(subject, other, task) if has_rule(other) else None,
    None if optimum is None else interpolation(subject, optimum, task),
  )


class _OfSamples(NamedTuple):
  """The results for subjects without a learning rule, by their names in a report."""

  sampled: SampledAlgorithm | None = None
  guess: LearnedGuess | None = None


def _of_samples(
  subject: Predictor, task: Task, num_prompts: int, seed: int
) -> _OfSamples:
  sampled = None
  if num_outputs_of(task) == 1 and is_squared(task):
    least = least_prompts(task.num_features)
    num_prompts = max(min(num_prompts, _NUM_FITTED), least)
    sampled = sampled_algorithm(subject, task, num_prompts, seed)
  guess = learned_guess(subject, task) if isinstance(subject, nnx.Module) else None
  return _OfSamples(sampled, guess)


def _plain(value: object) -> object:
  """The value in JSON types; None for a number that is not finite."""
  if isinstance(value, Estimate | Lens | Curve):
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
