"""The risks of predictors on tasks other than the training task.

These are the tasks of `task.shifts()`, and, for linear regression, the values of one of
its properties, where risks also have an exact value.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from zoo import theory
from zoo.core.errors import check_name, in_one_line
from zoo.core.prompt import Prompt
from zoo.core.protocols import Predictor, Task
from zoo.measure.comparison import affordable
from zoo.measure.curves import sample_losses
from zoo.measure.intervals import Estimate, estimate
from zoo.measure.predict import (
  BATCH_SIZE,
  gather,
  loss_of,
  losses_at_query,
  run,
  sample_batches,
)
from zoo.probing.similarity import has_rule
from zoo.tasks import LinearRegression
from zoo.tasks.linear_regression import require_covered, second_moments
from zoo.theory.exact import float64_rule, known_risk

_FEWEST = 16  # prompts; a shift that allows fewer is not measured


class ShiftedTask(NamedTuple):
  """A task with one property changed to a value, and the factor on its queries."""

  value: float
  task: LinearRegression
  query_scale: float = 1.0


@dataclasses.dataclass(frozen=True)
class ShiftedRisk:
  """The risks on one shifted task.

  An exact risk is None if it has no closed form. Both risks are None for a predictor
  that fails on the task, such as one with learned positions on a longer context;
  `failure` then holds the error.
  """

  value: float  # of the shifted property
  sampled: Estimate | None  # E (f − ŵ·x_q)²
  exact: float | None
  other_sampled: Estimate | None  # of the other predictor, on the same prompts
  other_exact: float | None
  optimal: float  # exact, for the linear family's optimum on the shifted task
  failure: str | None = None


@dataclasses.dataclass(frozen=True)
class Shift:
  """One property of the training task, and the risks as the property is shifted."""

  name: str  # key of SHIFTS
  description: str  # with the unit of the values
  trained: float  # the value in the training task
  risks: list[ShiftedRisk]


@dataclasses.dataclass(frozen=True)
class TaskShift:
  """The losses of two predictors on the same prompts of a shifted task.

  A loss is None for a predictor that fails on the task; `failure` then holds the error.
  The other loss is also None if there is no other predictor.
  """

  name: str  # in `task.shifts()`
  num_prompts: int
  risk: Estimate | None
  other_risk: Estimate | None
  failure: str | None = None


def _with_moved_mean(task: LinearRegression, distance: float) -> LinearRegression:
  mean = task.prior_mean
  size = float(np.linalg.norm(mean))
  along = mean / size if size > 0 else np.full(mean.size, mean.size**-0.5)
  return dataclasses.replace(task, prior_mean=mean + distance * along)


def _with_features(
  task: LinearRegression, change: Callable[[np.ndarray], np.ndarray]
) -> LinearRegression:
  return dataclasses.replace(task, feature_covariance=change(second_moments(task)[1]))


def _stretched(covariance: np.ndarray, condition: float) -> np.ndarray:
  eigenvalues, vectors = np.linalg.eigh(covariance)
  stretched = eigenvalues * np.geomspace(1, condition, len(eigenvalues))
  stretched *= eigenvalues.sum() / stretched.sum()
  return (vectors * stretched) @ vectors.T


class _Kind(NamedTuple):
  """A property that can be shifted: its value, other values near it, and the shift."""

  description: str
  trained: Callable[[LinearRegression], float]
  values: Callable[[LinearRegression], Sequence[float]]
  shift: Callable[[LinearRegression, float], LinearRegression] | None  # None: the query


_KINDS = {
  'context_length': _Kind(
    'context length C',
    lambda task: float(task.context_length),
    lambda task: sorted(
      {float(max(1, round(task.context_length * f))) for f in (0.25, 0.5, 1, 2, 4)}
    ),
    lambda task, length: dataclasses.replace(task, context_length=round(length)),
  ),
  'prior_mean': _Kind(
    'distance that the prior mean is moved along w*',
    lambda task: 0.0,
    lambda task: (-4.0, -2.0, 0.0, 2.0, 4.0),
    _with_moved_mean,
  ),
  'feature_scale': _Kind(
    'factor on all features',
    lambda task: 1.0,
    lambda task: (0.5, 0.75, 1.0, 1.25, 1.5),
    lambda task, scale: _with_features(task, lambda one: scale**2 * one),
  ),
  'feature_condition': _Kind(
    'factor on the condition number of the features, trace unchanged',
    lambda task: 1.0,
    lambda task: (1.0, 2.0, 4.0, 16.0),
    lambda task, factor: _with_features(task, lambda one: _stretched(one, factor)),
  ),
  'noise_std': _Kind(
    'standard deviation of the label noise',
    lambda task: task.noise_std,
    lambda task: [task.noise_std + more for more in (0.0, 0.5, 1.0, 2.0)],
    lambda task, noise_std: dataclasses.replace(task, noise_std=noise_std),
  ),
  'query_scale': _Kind(
    'factor on the query alone, out of distribution',
    lambda task: 1.0,
    lambda task: (0.5, 1.0, 2.0),
    None,
  ),
}

# The properties that can be shifted, and the meaning of their values.
SHIFTS = {name: kind.description for name, kind in _KINDS.items()}


def shifted_tasks(
  task: Task, name: str, values: Sequence[float] | None = None
) -> list[ShiftedTask]:
  """The task with one property changed to each of the given values.

  `name` is one of SHIFTS; the default `values` are around the task's own. Raises
  UserError for an unknown name, and for a task that exact theory does not cover.
  """
  kind = _KINDS[check_name('shift', name, SHIFTS)]
  task = require_covered(task)
  values = kind.values(task) if values is None else values
  if kind.shift is None:
    return [ShiftedTask(value, task, value) for value in values]
  trained = kind.trained(task)
  # Where it is the same the task is, so that its sampling is already compiled.
  return [
    ShiftedTask(value, task if value == trained else kind.shift(task, value))
    for value in values
  ]


def shift(
  subject: Predictor,
  other: Predictor,
  task: Task,
  name: str,
  num_prompts: int = 8192,
  seed: int = 0,
) -> Shift:
  """The risks of two predictors as the task is shifted away from the given one.

  `name` is one of SHIFTS. The predictors do not change; the optimum is that of the
  shifted task. Raises UserError as `shifted_tasks` does.
  """
  found = []
  for shifted in shifted_tasks(task, name):
    optimal = exact_shifted_risk(theory.optimal_rule(shifted.task), shifted)
    assert optimal is not None  # every rule has an exact risk on a covered task

    def measure(
      predictor: Predictor, shifted: ShiftedTask = shifted
    ) -> tuple[Estimate, float | None]:
      (sampled,) = sampled_shifted_risks([predictor], shifted, num_prompts, seed)
      return sampled, exact_shifted_risk(predictor, shifted)

    (own, others), failure = _attempt(measure, (subject, other))
    (sampled, exact), (other_sampled, other_exact) = (
      one or (None, None) for one in (own, others)
    )
    risks = sampled, exact, other_sampled, other_exact
    found.append(ShiftedRisk(shifted.value, *risks, optimal, failure))
  return Shift(name, SHIFTS[name], _KINDS[name].trained(require_covered(task)), found)


def task_shift(
  subject: Predictor,
  other: Predictor | None,
  name: str,
  shifted: Task,
  num_prompts: int = 2048,
  seed: int = 0,
) -> TaskShift:
  """Measures two predictors on a shifted task; large tasks get fewer prompts."""
  num_prompts = min(num_prompts, affordable(shifted))
  if num_prompts < _FEWEST:
    return TaskShift(name, 0, None, None, 'the task is too large to be measured here')
  at = [shifted.context_length]

  def measure(predictor: Predictor) -> Estimate:
    losses = sample_losses({'': predictor}, shifted, num_prompts, seed, lengths=at)
    return estimate(losses[''][:, -1])

  found, failure = _attempt(measure, (subject, other))
  return TaskShift(name, num_prompts, *found, failure=failure)


def _attempt(
  measure: Callable[[Predictor], Any], predictors: Sequence[Predictor | None]
) -> tuple[list[Any], str | None]:
  """What is measured of each predictor, or None, and the errors of those that fail."""
  found, failures = [], []
  for predictor in predictors:
    try:
      found.append(None if predictor is None else measure(predictor))
    except Exception as error:  # a user's model may raise anything
      kind, reason = type(predictor).__name__, in_one_line(error, 200)
      failures.append(f'{kind}: {type(error).__name__}: {reason}')
      found.append(None)
  return found, '; '.join(failures) or None


def sampled_shifted_risks(
  predictors: Sequence[Predictor],
  shifted: ShiftedTask,
  num_prompts: int = 8192,
  seed: int = 0,
) -> list[Estimate]:
  """The risk of each predictor, on the same prompts of a shifted task."""
  loss = loss_of(shifted.task)
  found = gather(
    lambda prompt: run(losses_at_query, predictors, prompt, loss),
    _sample(shifted, num_prompts, seed),
  )
  return [estimate(losses) for losses in found]


def _sample(shifted: ShiftedTask, num_prompts: int, seed: int) -> Iterator[Prompt]:
  _, task, scale = shifted
  for prompt in sample_batches(task, seed, num_prompts, BATCH_SIZE):
    if scale == 1:
      yield prompt
    else:
      query, target = scale * prompt.x_query, scale * prompt.y_query
      yield dataclasses.replace(prompt, x_query=query, y_query=target)


def exact_shifted_risk(predictor: Predictor, shifted: ShiftedTask) -> float | None:
  """The exact risk on a shifted task; None if it has no closed form."""
  _, task, query_scale = shifted
  risk = known_risk(predictor, task)
  if risk is None or query_scale == 1:
    return risk
  constant = 0.0
  if has_rule(predictor):
    # The query has mean 0, so the offset b(G) adds its own mean square, not scaled.
    with jax.enable_x64(True):
      rule = float64_rule(predictor)
      offset = dataclasses.replace(rule, init=0 * rule.init, update=0 * rule.update)
      constant = float(theory.squared_difference(offset, rule * 0.0, task).prediction)
  return query_scale**2 * (risk - constant) + constant
