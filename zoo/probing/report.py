"""All probes of a model at once."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from absl import logging
from flax import nnx
from tqdm import tqdm

from zoo import estimators, theory
from zoo.core.errors import UserError, check_name, in_one_line
from zoo.core.protocols import Layered, Predictor, Task
from zoo.evaluation_sets import EvaluationSet
from zoo.measure.comparison import Comparison, compare
from zoo.measure.intervals import Estimate
from zoo.models.linear_attention import LinearAttention
from zoo.probing.attention_heads import Head, heads
from zoo.probing.guesses import LearnedGuess, learned_guess
from zoo.probing.implicit import ImplicitAlgorithm, implicit_algorithm
from zoo.probing.lens import LayerCurve, Lens, lens
from zoo.probing.nearest import SampledAlgorithm, least_prompts, sampled_algorithm
from zoo.probing.paths import (
  Interpolation,
  constructed_optimum,
  interpolation,
)
from zoo.probing.scores import Risks, Score, risks, score
from zoo.probing.shifts import SHIFTS, Shift, TaskShift, shift, task_shift
from zoo.probing.similarity import Alignment, alignment, has_rule
from zoo.probing.verdicts import judge, judge_by_baselines, judge_by_samples
from zoo.tasks import LinearRegression
from zoo.tasks.base import is_squared
from zoo.tasks.baselines import HostBaseline

# The estimators that a model can be compared with by name on linear regression; other
# tasks define their own.
REFERENCES = {
  'gd': 'one step of gradient descent from the prior mean, with the best step size',
  'gd_beta': 'one step from the prior mean with the best matrix (GD-β)',
  'bayes': 'the posterior mean',
}


_NUM_COMPARED = 4096  # prompts, for the baselines at every number of examples
_NUM_SHIFTED = 1024  # prompts of each shifted task
_NUM_MOVED = 8192  # prompts of each value of a shifted property
_NUM_FITTED = 16384  # prompts, for the nearest algorithms


@dataclasses.dataclass(frozen=True)
class Report:
  """The results of `probe`; None where a predictor or a task has no such result."""

  is_gradient_descent: bool
  verdict: str
  against: str | None  # None: there is no other predictor
  risks: Risks | None = None  # on fresh prompts of the task
  # With the task's baselines, by number of examples.
  comparison: Comparison | None = None
  algorithm: ImplicitAlgorithm | None = None
  # For a model without an exact algorithm: the nearest ones, and its initial guess.
  sampled: SampledAlgorithm | None = None
  guess: LearnedGuess | None = None
  alignment: Alignment | None = None
  heads: list[Head] | None = None
  to_other: Interpolation | None = None
  to_optimum: Interpolation | None = None  # to the constructed optimum
  lens: Lens | None = None  # the loss of what can be read after each layer
  shifts: list[Shift] = dataclasses.field(default_factory=list)
  # On the tasks from `task.shifts()`, at C examples.
  task_shifts: list[TaskShift] = dataclasses.field(default_factory=list)
  score: Score | None = None  # on a frozen set, if one was given
  failures: dict[str, str] = dataclasses.field(default_factory=dict)  # why, by part

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
    for name, baseline in task.baselines().items()
    if not isinstance(baseline, HostBaseline)
  }


def reference(name: str, task: Task) -> Predictor:
  """One of the references of a task; raises UserError for an unknown name."""
  known = references(task)
  return known[check_name('estimator', name, known)]


def default_reference(task: Task) -> str | None:
  """The name of the first reference of a task; None if it has none."""
  return next(iter(references(task)), None)


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
  predictor; for a task without references the subject is probed alone. Both predictors
  are also scored on the prompts of an `evaluation_set`; a reference is still built for
  `task`. The risks of a subject without a learning rule, which costs more, are on 4,096
  prompts at most. A part that fails is None, and `failures` has its error. Raises
  UserError for an unknown reference, and for a predictor that cannot be called on the
  task's prompts.
  """
  if against is None:
    against = default_reference(task)
  other = reference(against, task) if isinstance(against, str) else against
  if against_name is None and other is not None:
    against_name = against if isinstance(against, str) else type(other).__name__
  if other is None and evaluation_set is not None:
    raise UserError(
      f'{type(task).__name__} has no baselines to score on {evaluation_set.name}; '
      'compare with another model'
    )
  parts = _Parts()
  few = min(num_prompts, _NUM_COMPARED)
  many = num_prompts if theory.covers(task) and has_rule(subject) else few
  if other is not None:
    if evaluation_set is not None:
      parts.measure('score', score, subject, other, evaluation_set)
    parts.measure('risks', risks, subject, other, task, many, seed)
    if task.num_outputs == 1:
      parts.measure('alignment', alignment, subject, other, task, many, seed)
  parts.measure('comparison', compare, subject, task, few, seed)
  if 'comparison' in parts.errors and parts.found.get('risks') is None:
    raise parts.errors['comparison']  # the subject itself cannot be measured
  if theory.covers(task) and has_rule(subject):
    _measure_rule(parts, subject, other, task)
  else:
    _measure_samples(parts, subject, task, num_prompts, seed)
  is_descent, verdict = _judge(task, parts.found)
  if isinstance(subject, Layered):
    parts.measure('lens', lens, subject, task, few, seed)
  _measure_shifts(parts, subject, other, task, num_prompts, seed)
  failures = parts.end()
  return Report(is_descent, verdict, against_name, **parts.found, failures=failures)


class _Parts:
  """Measures the parts of a report, shows the progress, and keeps the errors."""

  # What calls both predictors on the prompts first, and so finds a user's mistake.
  _CHECKS = 'score', 'risks', 'comparison'

  def __init__(self) -> None:
    self.found: dict[str, Any] = {}  # by field of the report
    self.errors: dict[str, Exception] = {}
    self._bar = tqdm(desc='probe', leave=False, disable=None, bar_format='{desc}')

  def measure(self, name: str, function: Callable[..., Any], *given: Any) -> None:
    """Keeps the result of a function for the field `name` of the report."""
    self.found[name] = self.attempt(name, function, *given)

  def attempt(self, name: str, function: Callable[..., Any], *given: Any) -> Any:
    """The result of a function; None if it fails, after a warning."""
    if self._bar.disable:  # not in a terminal
      logging.info('probe: %s', name)
    self._bar.set_description_str(f'probe: {name}')
    try:
      return function(*given)
    except Exception as error:  # a user's predictor or task may raise anything
      if isinstance(error, UserError) and name in self._CHECKS:
        raise
      self.errors[name] = error
      logging.warning('%s is left out of the report: %s', name, _in_words(error))
      return None

  def end(self) -> dict[str, str]:
    """Removes the progress from the terminal; returns the errors in words."""
    self._bar.close()
    return {name: _in_words(error) for name, error in self.errors.items()}


def _in_words(error: Exception) -> str:
  kind = '' if isinstance(error, UserError) else f'{type(error).__name__}: '
  return f'{kind}{in_one_line(error, 200)}'


def _measure_rule(
  parts: _Parts, subject: Predictor, other: Predictor | None, task: LinearRegression
) -> None:
  """Measures what requires a learning rule."""
  optimum = parts.attempt('to_optimum', constructed_optimum, subject, task)
  parts.measure('algorithm', implicit_algorithm, subject, task)
  if isinstance(subject, LinearAttention):
    parts.measure('heads', heads, subject, task)
  if other is not None and has_rule(other):
    parts.measure('to_other', interpolation, subject, other, task)
  if optimum is not None:
    parts.measure('to_optimum', interpolation, subject, optimum, task)


def _measure_samples(
  parts: _Parts, subject: Predictor, task: Task, num_prompts: int, seed: int
) -> None:
  """Measures what subjects without a learning rule have."""
  if task.num_outputs == 1 and is_squared(task):
    num_prompts = min(num_prompts, _NUM_FITTED)
    num_prompts = max(num_prompts, least_prompts(task.num_features))
    parts.measure('sampled', sampled_algorithm, subject, task, num_prompts, seed)
  if isinstance(subject, nnx.Module):
    parts.measure('guess', learned_guess, subject, task)


def _judge(task: Task, found: dict[str, Any]) -> tuple[bool, str]:
  """Whether the subject does gradient descent, and the verdict in words."""
  if not theory.covers(task):
    if found['comparison'] is None:
      return False, 'Unknown: no theory covers its task.'
    return False, judge_by_baselines(found['comparison'])
  if (algorithm := found.get('algorithm')) is not None:
    return judge(algorithm, task)
  if (sampled := found.get('sampled')) is not None:
    return judge_by_samples(sampled)
  return False, 'Unknown: its algorithm could not be measured.'


def _measure_shifts(
  parts: _Parts,
  subject: Predictor,
  other: Predictor | None,
  task: Task,
  num_prompts: int,
  seed: int,
) -> None:
  """Measures the losses on shifted tasks."""
  kinds = SHIFTS if theory.covers(task) and other is not None else ()
  shifts = [
    parts.attempt(
      f'shifts, {kind}', shift, subject, other, task, kind, _NUM_MOVED, seed
    )
    for kind in kinds
  ]
  few = min(num_prompts, _NUM_SHIFTED)
  tasks = parts.attempt('task_shifts', task.shifts) or {}
  task_shifts = [
    parts.attempt(
      f'task_shifts, {name}', task_shift, subject, other, name, shifted, few, seed
    )
    for name, shifted in tasks.items()
  ]
  parts.found['shifts'] = [one for one in shifts if one is not None]
  parts.found['task_shifts'] = [one for one in task_shifts if one is not None]


def _plain(value: object) -> object:
  """The value in JSON types; None for a number that is not finite."""
  if isinstance(value, Estimate | Lens | LayerCurve):
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
