"""How a predictor fares on prompts that it was not trained for."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from zoo import theory
from zoo.errors import UserError
from zoo.probing.sampling import Answer, Estimate, sample_means
from zoo.probing.similarity import has_rule
from zoo.prompt import Prompt
from zoo.tasks import LinearRegression
from zoo.theory.exact import float64_rule


@dataclasses.dataclass(frozen=True)
class ShiftedRisk:
  """The risk on one shifted task; None for what has no exact risk there."""

  value: float  # of what is shifted
  sampled: Estimate  # E (f − ŵ·x_q)²
  exact: float | None
  other_sampled: Estimate  # of the predictor compared with, on the same prompts
  other_exact: float | None
  optimal: float  # exact, of the best learning rule for the shifted task


@dataclasses.dataclass(frozen=True)
class Shift:
  """One way to leave the training task, and the risks along it."""

  name: str  # key of SHIFTS
  description: str  # with the unit of the values
  trained: float  # the value at which the task is the one given
  risks: list[ShiftedRisk]


# What is shifted, and how its value is to be read.
SHIFTS = {
  'context_length': 'context length C',
  'prior_mean': 'distance by which the prior mean is moved, along w*',
  'feature_scale': 'factor on all features',
  'feature_condition': 'condition number put on the feature covariance, trace kept',
  'noise_std': 'standard deviation of the label noise',
  'query_scale': 'factor on the query alone, out of distribution',
}


def shift(
  subject: Any,
  other: Any,
  task: Any,
  name: str,
  num_prompts: int = 8192,
  seed: int = 0,
) -> Shift:
  """The risk of two predictors as the task moves away from the one given.

  `name` is one of SHIFTS. Neither predictor is changed; the optimum is that of the
  shifted task. Raises UserError for another name, and for a task that exact theory does
  not cover.
  """
  if name not in SHIFTS:
    raise UserError(f'unknown shift {name!r}; known: {", ".join(SHIFTS)}')
  theory.task_moments(task)  # refuses what is no linear regression
  risks = []
  for value, shifted, query_scale in _shifted(task, name):
    drawn = _ScaledQuery(shifted, query_scale) if query_scale != 1 else shifted
    means = sample_means(_squared_errors, [subject, other], drawn, num_prompts, seed)
    optimum = theory.optimal_rule(shifted)
    exact, other_exact, optimal = (
      _exact(predictor, shifted, query_scale) for predictor in (subject, other, optimum)
    )
    assert optimal is not None  # a rule on a task that is covered
    risks.append(
      ShiftedRisk(value, means['0'], exact, means['1'], other_exact, optimal)
    )
  trained = {
    'context_length': float(task.context_length),
    'prior_mean': 0.0,
    'noise_std': task.noise_std,
  }
  return Shift(name, SHIFTS[name], trained.get(name, 1.0), risks)


def _shifted(
  task: LinearRegression, name: str
) -> Iterator[tuple[float, LinearRegression, float]]:
  """Values of what is shifted, the task at each, and the factor on its query."""
  arguments = {
    'num_features': task.num_features,
    'context_length': task.context_length,
    'prior_mean': task.prior_mean,
    'prior_covariance': task.prior_covariance,
    'feature_covariance': task.feature_covariance,
    'noise_std': task.noise_std,
  }
  d, c, mean = task.num_features, task.context_length, task.prior_mean
  features = np.eye(d) if task.feature_covariance is None else task.feature_covariance

  def changed(**change: Any) -> LinearRegression:
    return type(task)(**{**arguments, **change})

  # At the training task it is the task itself, whose draws are compiled once.
  if name == 'context_length':
    for length in sorted({max(1, round(c * scale)) for scale in (0.25, 0.5, 1, 2, 4)}):
      yield float(length), task if length == c else changed(context_length=length), 1.0
  elif name == 'prior_mean':
    size = float(np.linalg.norm(mean))
    along = mean / size if size > 0 else np.full(d, d**-0.5)
    for distance in (-4.0, -2.0, 0.0, 2.0, 4.0):
      moved = mean + distance * along
      yield distance, changed(prior_mean=moved) if distance else task, 1.0
  elif name == 'feature_scale':
    for scale in (0.5, 0.75, 1.0, 1.25, 1.5):
      scaled = scale**2 * features
      yield scale, task if scale == 1 else changed(feature_covariance=scaled), 1.0
  elif name == 'feature_condition':
    eigenvalues, vectors = np.linalg.eigh(features)
    for condition in (1.0, 2.0, 4.0, 16.0):
      stretched = eigenvalues * np.geomspace(1, condition, d)
      stretched *= eigenvalues.sum() / stretched.sum()
      covariance = (vectors * stretched) @ vectors.T
      same = condition == 1
      yield condition, task if same else changed(feature_covariance=covariance), 1.0
  elif name == 'noise_std':
    for more in (0.0, 0.5, 1.0, 2.0):
      noise = task.noise_std + more
      yield noise, changed(noise_std=noise) if more else task, 1.0
  else:
    for scale in (0.5, 1.0, 2.0):
      yield scale, task, scale


class _ScaledQuery:
  """A task whose queries, and with them the targets, are scaled."""

  def __init__(self, task: LinearRegression, scale: float):
    self.num_features = task.num_features
    self._task, self._scale = task, scale

  def sample(self, key: Key[Array, ''], batch_size: int) -> Prompt:
    prompt = jax.jit(self._task.sample, static_argnums=1)(key, batch_size)
    return dataclasses.replace(
      prompt,
      x_query=self._scale * prompt.x_query,
      y_query=self._scale * prompt.y_query,
    )


def _exact(predictor: Any, task: LinearRegression, query_scale: float) -> float | None:
  """The exact risk with scaled queries, or None where there is no closed form."""
  if not has_rule(predictor):
    try:
      return query_scale**2 * float(theory.exact_risk(predictor, task))
    except UserError:
      return None
  risk = float(theory.exact_risk(predictor, task))
  if query_scale == 1:
    return risk
  # The query has mean 0: the offset b(G) adds its mean square, which is not scaled.
  with jax.enable_x64(True):
    rule = float64_rule(predictor)
    offset = dataclasses.replace(rule, init=0 * rule.init, update=0 * rule.update)
    constant = float(theory.squared_difference(offset, rule * 0.0, task).prediction)
  return query_scale**2 * (risk - constant) + constant


def _squared_errors(
  prompt: Prompt, answers: list[Answer]
) -> dict[str, Float[Array, ' b']]:
  return {
    str(count): jnp.square(answer.prediction - prompt.y_query)
    for count, answer in enumerate(answers)
  }
