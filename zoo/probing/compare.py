"""Two predictors side by side: risks, losses on a shifted task, and alignment."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from absl import logging
from flax import nnx
from jaxtyping import Array, Float, PyTree

from zoo import theory
from zoo.core.errors import UserError, check_count, in_one_line
from zoo.core.learning_rule import LearningRule
from zoo.core.prompt import Prompt
from zoo.core.protocols import FollowsRule, Predictor, Task, require_task
from zoo.core.trees import fresh
from zoo.measure.comparison import affordable
from zoo.measure.curve import sample_losses
from zoo.measure.intervals import Estimate, estimate
from zoo.measure.predict import (
  BATCH_SIZE,
  LOSS_BATCH_SIZE,
  Programs,
  gather,
  loss_of,
  losses_at_query,
  sample_batches,
)
from zoo.theory.exact import known_risk

_FEWEST = 16  # A shift that allows fewer prompts is not measured.


@dataclasses.dataclass(frozen=True)
class PairedRisks:
  """The mean losses of two predictors, f and f', on the same prompts.

  Exact risks are those of the task of the prompts. They are None if there is no closed
  form.

  Attributes:
    risk: The mean loss of f, E ℓ(f, y); in regression, E (f − y)².
    other_risk: The mean loss of f'.
    risk_difference: The first loss minus the second.
    exact_risk: The exact risk of f.
    other_exact_risk: The exact risk of f'.
    optimal_risk: The exact risk of the optimum of the linear family.
  """

  risk: Estimate
  other_risk: Estimate
  risk_difference: Estimate
  exact_risk: float | None
  other_exact_risk: float | None
  optimal_risk: float | None


def risks(
  subject: Predictor,
  other: Predictor,
  task: Task,
  num_prompts: int = 4096,
  seed: int = 0,
) -> PairedRisks:
  """Measures the mean losses of two predictors on the same prompts of any task.

  With equal seeds and numbers of prompts these are the prompts of `zoo.curve`, whose
  loss after C examples is then the same number.

  - Quantity: E ℓ(f, y) of each, and their difference, over the same prompts.
  - Null: a difference of 0, for a predictor beside itself.

  Args:
    subject: A model, an estimator or a learning rule, f.
    other: Another one, f'.
    task: The task whose prompts and loss are used.
    num_prompts: The number of prompts, at least 2.
    seed: The seed of the prompts.

  Returns:
    Both losses and their difference with standard errors, and exact risks where they
    are known.

  Raises:
    UserError: If a predictor cannot be called on the task's prompts, or `num_prompts`
      is below 2.

  Example:
    >>> task = zoo.create_task('linear_regression', num_features=2, context_length=4)
    >>> step = zoo.estimators.gradient_descent(task)
    >>> found = zoo.probing.risks(step, step, task, num_prompts=64)
    >>> found.risk_difference.mean
    0.0
    >>> round(found.exact_risk, 3)
    0.857
  """
  require_task(task)
  num_prompts = check_count('num_prompts', num_prompts, minimum=2)
  batches = sample_batches(task, seed, num_prompts, LOSS_BATCH_SIZE)
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


@dataclasses.dataclass(frozen=True)
class TaskShift:
  """The losses of two predictors on the same prompts of a shifted task.

  Attributes:
    name: The name of the shift in `task.shifts()`.
    num_prompts: The number of prompts; 0 if nothing was measured.
    risk: The mean loss of the first predictor. None if it was not measured.
    other_risk: The mean loss of the other predictor. None if it was not measured.
    exact_risk: The exact risk of the first predictor. None without a closed form.
    other_exact_risk: The exact risk of the other predictor. None without a closed form.
    failure: Why a loss was not measured. None if both were.
  """

  name: str
  num_prompts: int
  risk: Estimate | None
  other_risk: Estimate | None
  exact_risk: float | None = None
  other_exact_risk: float | None = None
  failure: str | None = None


def task_shift(
  subject: Predictor,
  other: Predictor,
  name: str,
  shifted: Task,
  num_prompts: int = 2048,
  seed: int = 0,
  programs: Programs | None = None,
) -> TaskShift:
  """Measures two predictors on a shifted task.

  - Quantity: E ℓ(f, y) of each predictor, over the same prompts of the shifted task.
  - Null: equal losses, for a predictor beside itself.
  - Counterfactual: the prompts of the shifted task.

  Args:
    subject: A model, an estimator or a learning rule.
    other: Another one.
    name: The name of the shift, for the result.
    shifted: The shifted task, such as one of `task.shifts()`.
    num_prompts: The largest number of prompts. Large tasks get fewer. With fewer than
      16 prompts nothing is measured.
    seed: The seed of the prompts.
    programs: Compiled programs of earlier calls, by which tasks that differ in numbers
      alone are compiled once. None compiles anew.

  Returns:
    The losses. An error of a predictor is not raised, but stands in `failure`.

  Example:
    >>> task = zoo.create_task('linear_regression', num_features=2, context_length=4)
    >>> step = zoo.estimators.gradient_descent(task, 0.5, 1)
    >>> noisy = task.shifts()['noise_std=1']
    >>> shift = zoo.probing.task_shift(step, step, 'noise_std=1', noisy, num_prompts=32)
    >>> shift.risk == shift.other_risk
    True
  """
  require_task(shifted)
  if min(num_prompts, affordable(shifted)) < _FEWEST:
    c, d = shifted.context_length, shifted.num_features
    why = (
      f'num_prompts is {num_prompts}; it must be at least {_FEWEST}'
      if num_prompts < _FEWEST
      else f'the task is too large: of prompts with {c:,} examples and {d:,} features '
      f'fewer than {_FEWEST} can be measured in about ten seconds'
    )
    return TaskShift(name, 0, None, None, failure=why)
  num_prompts = min(num_prompts, affordable(shifted))
  at = [shifted.context_length]
  estimates, failures = [], []
  for predictor in (subject, other):
    risk = exact = None
    try:
      losses = sample_losses(
        {'': predictor}, shifted, num_prompts, seed, lengths=at, programs=programs
      )
      risk = estimate(losses[''][:, -1])
      exact = known_risk(predictor, shifted)
    except Exception as error:  # A user's model may raise anything.
      kind, reason = type(predictor).__name__, in_one_line(error, 200)
      failures.append(f'{kind}: {type(error).__name__}: {reason}')
      if not isinstance(error, UserError):  # Only then a traceback is of use.
        logging.warning('%s is not measured on %s', kind, name, exc_info=True)
    estimates.append((risk, exact))
  risks, exact_risks = zip(*estimates, strict=True)
  failure = '; '.join(failures) or None
  return TaskShift(name, num_prompts, *risks, *exact_risks, failure=failure)


def not_taken(
  subject: Predictor, task: Task, shifts: Mapping[str, Task]
) -> dict[str, TaskShift]:
  """Returns the shifts to other numbers of examples whose prompts a model cannot take.

  A model with learned positions, for example, cannot take longer prompts. Nothing is
  computed, because the model is only traced. All these shifts have the same `failure`.
  """
  reasons = {
    name: reason
    for name, shifted in shifts.items()
    if isinstance(subject, nnx.Module)
    and shifted.context_length != task.context_length
    and (reason := _refusal(subject, shifted))
  }
  if not reasons:
    return {}
  first, reason = next(iter(reasons.items()))
  why = f'the model cannot take these prompts (for {first}: {reason})'
  return {name: TaskShift(name, 0, None, None, failure=why) for name in reasons}


def _refusal(model: nnx.Module, task: Task) -> str | None:
  """Returns why a model cannot be called on a task's prompts; None if it can."""
  graph, state = nnx.split(model)

  def predict(state: PyTree, key: jax.Array) -> jax.Array:
    return nnx.merge(graph, state)(fresh(task).sample_batch(key, 2))

  try:
    jax.eval_shape(predict, state, jax.random.key(0))
  except Exception as error:  # A user's model may refuse by any error.
    kind = '' if isinstance(error, UserError) else f'{type(error).__name__}: '
    return f'{kind}{in_one_line(error, 200)}'
  return None


def in_short(names: Sequence[str]) -> str:
  """Returns names of shifts, joined by kind: `scale_x=2, 3 and skewed`."""
  numbers: dict[str, list[str]] = {}
  for name in names:
    kind, equals, number = name.partition('=')
    numbers.setdefault(kind + equals, []).append(number)
  return ' and '.join(kind + ', '.join(values) for kind, values in numbers.items())


@dataclasses.dataclass(frozen=True)
class Alignment:
  """The differences between two predictors, f and f' (arXiv 2512.04268, appendix C.2).

  Gradients ∂f are in the features of the query, ∂f/∂x_q. For a learning rule the
  gradient is the weight vector that it learns in context.

  Attributes:
    num_prompts: The number of prompts.
    prediction_difference: `E |f − f'|`.
    gradient_difference: `E |∂f − ∂f'|`.
    cosine_similarity: E cos(∂f, ∂f'), where the cosine with a gradient of 0 counts as
      0.
    squared_prediction_difference: E (f − f')².
    squared_gradient_difference: `E |∂f − ∂f'|²`.
    gradient_product: E ∂f·∂f'.
    exact: The expectations that have a closed form. None if one of the predictors has
      no learning rule, or if exact theory does not cover the task.
  """

  num_prompts: int
  prediction_difference: Estimate
  gradient_difference: Estimate
  cosine_similarity: Estimate
  squared_prediction_difference: Estimate
  squared_gradient_difference: Estimate
  gradient_product: Estimate
  exact: ExactAlignment | None


@dataclasses.dataclass(frozen=True)
class ExactAlignment:
  """The expectations of `Alignment` that have a closed form.

  Attributes:
    squared_prediction_difference: E (f − f')².
    squared_gradient_difference: `E |∂f − ∂f'|²`.
    gradient_product: E ∂f·∂f'.
    pooled_cosine: `E ∂f·∂f' / √(E |∂f|² E |∂f'|²)`, the cosine over all prompts at
      once. None for 0 / 0.
  """

  squared_prediction_difference: float
  squared_gradient_difference: float
  gradient_product: float
  pooled_cosine: float | None


def alignment(
  subject: Predictor,
  other: Predictor,
  task: Task,
  num_prompts: int = 65536,
  seed: int = 0,
  programs: Programs | None = None,
) -> Alignment:
  """Compares a model, a learning rule or an estimator with another one on a task.

  `studies.paper.asymptotic.task_alignment` compares two tasks instead.

  - Quantity: means over prompts of differences between predictions f and f', and
    between their gradients in x_q; `Alignment` has the formulas.
  - Null: differences of 0 and a cosine of 1, for a predictor beside itself. Where a
    gradient is 0, the cosine of a prompt counts as 0.

  Args:
    subject: A model, a learning rule or an estimator, f.
    other: Another one, f'.
    task: The task from which prompts are drawn, with one output.
    num_prompts: The number of prompts, at least 2.
    seed: The seed of the prompts.
    programs: Compiled programs of earlier calls, by which models that differ in numbers
      alone are compiled once. None compiles anew.

  Returns:
    Means with standard errors over prompts and, for two learning rules on a task that
    exact theory covers, the expectations in closed form.

  Raises:
    UserError: If a predictor cannot be called on the task's prompts or has no gradient,
      or if `num_prompts` is below 2.

  Example:
    >>> task = zoo.create_task('linear_regression', num_features=2, context_length=4)
    >>> step = zoo.estimators.gradient_descent(task, 0.5, 1)
    >>> found = zoo.probing.alignment(step, step, task, num_prompts=64)
    >>> found.prediction_difference.mean
    0.0
    >>> round(found.cosine_similarity.mean, 3)
    1.0

  References:
    arXiv 2512.04268, appendix C.2.
  """
  require_task(task)
  num_prompts = check_count('num_prompts', num_prompts, minimum=2)
  both, exact, programs = [subject, other], None, programs or Programs()
  measures = gather(
    lambda prompt: programs.run(_measure, both, prompt),
    sample_batches(task, seed, num_prompts, BATCH_SIZE, programs),
  )
  if theory.covers(task) and has_rule(subject) and has_rule(other):
    exact = exact_alignment(subject, other, task)
  means = {name: estimate(values) for name, values in measures.items()}
  return Alignment(num_prompts, **means, exact=exact)


def exact_alignment(subject: Predictor, other: Predictor, task: Task) -> ExactAlignment:
  """Returns the exact part of `alignment`.

  Raises UserError if a predictor has no learning rule, or if exact theory does not
  cover the task.
  """
  difference = theory.squared_difference(subject, other, task)
  nothing = LearningRule.gradient_descent(jnp.zeros(task.num_features), 0.0)
  own_square, other_square = (
    float(theory.squared_difference(rule, nothing, task).gradient)
    for rule in (subject, other)
  )
  product = (own_square + other_square - float(difference.gradient)) / 2
  scale = (own_square * other_square) ** 0.5
  return ExactAlignment(
    squared_prediction_difference=float(difference.prediction),
    squared_gradient_difference=float(difference.gradient),
    gradient_product=product,
    pooled_cosine=product / scale if scale > 0 else None,
  )


def has_rule(subject: Predictor) -> bool:
  """Returns whether a predictor is a learning rule or follows one."""
  if isinstance(subject, LearningRule):
    return True
  if not isinstance(subject, FollowsRule):
    return False
  try:
    subject.learning_rule()
  except UserError:  # Several steps of descent have no rule.
    return False
  return True


def answers(
  predictors: Sequence[Predictor], prompt: Prompt
) -> list[tuple[Float[Array, ' b'], Float[Array, 'b d']]]:
  """Returns the predictions of each predictor, and their gradients in the query."""
  return [_answer(predictor, prompt) for predictor in predictors]


def _answer(predictor: Predictor, prompt: Prompt) -> tuple[Array, Array]:
  def total(x_query: Float[Array, 'b d']) -> tuple[Float[Array, ''], Array]:
    # The gradient traces this function anew, and transforms of NNX in the call of a
    # model accept variables of their own trace alone. A copy made here has such ones.
    is_module = isinstance(predictor, nnx.Module)
    here: Any = nnx.clone(predictor) if is_module else predictor
    prediction = here(dataclasses.replace(prompt, x_query=x_query))
    # The gradient of the sum has each prompt's gradient, since the prediction for a
    # prompt depends on no other query.
    return jnp.sum(prediction), prediction

  gradient, prediction = jax.grad(total, has_aux=True)(prompt.x_query)
  return prediction, gradient


def _measure(
  predictors: Sequence[Predictor], prompt: Prompt
) -> dict[str, Float[Array, ' b']]:
  (f, gradient), (other_f, other_gradient) = answers(predictors, prompt)
  gap_b = f - other_f
  square_b = jnp.sum(jnp.square(gradient - other_gradient), axis=1)
  product_b = jnp.sum(gradient * other_gradient, axis=1)
  lengths_b = (jnp.linalg.norm(vector, axis=1) for vector in (gradient, other_gradient))
  scale_b = math.prod(lengths_b)
  return {
    'prediction_difference': jnp.abs(gap_b),
    'gradient_difference': jnp.sqrt(square_b),
    'cosine_similarity': jnp.where(
      scale_b > 0, product_b / jnp.where(scale_b > 0, scale_b, 1), 0
    ),
    'squared_prediction_difference': jnp.square(gap_b),
    'squared_gradient_difference': square_b,
    'gradient_product': product_b,
  }
