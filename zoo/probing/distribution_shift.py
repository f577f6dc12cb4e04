"""The risk of a predictor under distribution shift."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from zoo import theory
from zoo.core import values
from zoo.core.errors import check_name, in_one_line
from zoo.core.prompt import Prompt
from zoo.core.protocols import Predictor, Task
from zoo.measure.intervals import Estimate
from zoo.probing.sampling import Answer, sample_means
from zoo.probing.similarity import has_rule
from zoo.tasks import LinearRegression
from zoo.tasks.base import BaseTask
from zoo.tasks.linear_regression import second_moments
from zoo.theory.exact import float64_rule, known_risk


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


def _with_context(task: LinearRegression, length: float) -> LinearRegression:
  return dataclasses.replace(task, context_length=round(length))


def _with_moved_mean(task: LinearRegression, distance: float) -> LinearRegression:
  mean = task.prior_mean
  size = float(np.linalg.norm(mean))
  along = mean / size if size > 0 else np.full(mean.size, mean.size**-0.5)
  return dataclasses.replace(task, prior_mean=mean + distance * along)


def _with_scaled_features(task: LinearRegression, scale: float) -> LinearRegression:
  return dataclasses.replace(
    task, feature_covariance=scale**2 * second_moments(task)[1]
  )


def _with_condition(task: LinearRegression, condition: float) -> LinearRegression:
  eigenvalues, vectors = np.linalg.eigh(second_moments(task)[1])
  stretched = eigenvalues * np.geomspace(1, condition, len(eigenvalues))
  stretched *= eigenvalues.sum() / stretched.sum()
  return dataclasses.replace(task, feature_covariance=(vectors * stretched) @ vectors.T)


def _with_noise(task: LinearRegression, noise_std: float) -> LinearRegression:
  return dataclasses.replace(task, noise_std=noise_std)


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
    _with_context,
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
    _with_scaled_features,
  ),
  'feature_condition': _Kind(
    'factor on the condition number of the features, trace unchanged',
    lambda task: 1.0,
    lambda task: (1.0, 2.0, 4.0, 16.0),
    _with_condition,
  ),
  'noise_std': _Kind(
    'standard deviation of the label noise',
    lambda task: task.noise_std,
    lambda task: [task.noise_std + more for more in (0.0, 0.5, 1.0, 2.0)],
    _with_noise,
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
  check_name('shift', name, SHIFTS)
  theory.task_moments(task)  # raises UserError for other tasks
  assert isinstance(task, LinearRegression)
  kind = _KINDS[name]
  found = []
  for value in kind.values(task) if values is None else values:
    if kind.shift is None:
      found.append(ShiftedTask(value, task, value))
    else:
      # Reuse the unshifted task, whose sampling is already compiled.
      same = value == kind.trained(task)
      found.append(ShiftedTask(value, task if same else kind.shift(task, value)))
  return found


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
    predictors = [subject, other]
    sampled, failures = _attempt(predictors, shifted, num_prompts, seed)
    exact = [
      None if estimate is None else exact_shifted_risk(predictor, shifted)
      for predictor, estimate in zip(predictors, sampled, strict=True)
    ]
    found.append(
      ShiftedRisk(
        *(shifted.value, sampled[0], exact[0], sampled[1], exact[1], optimal),
        failure='; '.join(failures) or None,
      )
    )
  assert isinstance(task, LinearRegression)
  return Shift(name, SHIFTS[name], _KINDS[name].trained(task), found)


def _attempt(
  predictors: list[Predictor], shifted: ShiftedTask, num_prompts: int, seed: int
) -> tuple[list[Estimate | None], list[str]]:
  """The sampled risks, with None for predictors that fail, and the failures' errors."""
  try:
    return [*sampled_shifted_risks(predictors, shifted, num_prompts, seed)], []
  except Exception as error:  # a user's model may raise anything
    if len(predictors) == 1:
      reason = in_one_line(error, 200)
      name = type(predictors[0]).__name__
      return [None], [f'{name}: {type(error).__name__}: {reason}']
  alone = [_attempt([one], shifted, num_prompts, seed) for one in predictors]
  return [risk for risks, _ in alone for risk in risks], [
    failure for _, failures in alone for failure in failures
  ]


def sampled_shifted_risks(
  predictors: Sequence[Predictor],
  shifted: ShiftedTask,
  num_prompts: int = 8192,
  seed: int = 0,
) -> list[Estimate]:
  """The risk of each predictor, on the same prompts of a shifted task."""
  task: Task = shifted.task
  if shifted.query_scale != 1:
    task = _ScaledQuery(shifted.task, shifted.query_scale)
  means = sample_means(_squared_errors, predictors, task, num_prompts, seed)
  return [means[str(count)] for count in range(len(predictors))]


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


@values.value
class _ScaledQuery(BaseTask):
  """A task with scaled queries and targets."""

  task: LinearRegression = values.leaf()
  scale: float = 1.0
  num_features: int = values.derived_size()
  context_length: int = values.derived_size()

  def __post_init__(self):
    values.set_field(self, 'num_features', self.task.num_features)
    values.set_field(self, 'context_length', self.task.context_length)

  def sample_one(self, key: Key[Array, '']) -> Prompt:
    return self._scaled(self.task.sample_one(key))

  def sample_batch(self, key: Key[Array, ''], batch_size: int) -> Prompt:
    return self._scaled(self.task.sample_batch(key, batch_size))

  def _scaled(self, prompt: Prompt) -> Prompt:
    return dataclasses.replace(
      prompt,
      x_query=self.scale * prompt.x_query,
      y_query=self.scale * prompt.y_query,
    )


def _squared_errors(
  prompt: Prompt, answers: list[Answer]
) -> dict[str, Float[Array, ' b']]:
  return {
    str(count): jnp.square(answer.prediction - prompt.y_query)
    for count, answer in enumerate(answers)
  }
