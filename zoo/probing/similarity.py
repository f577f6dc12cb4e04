"""Alignment: how close two predictors are on the same prompts."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from zoo import theory
from zoo.core.errors import UserError, check_count
from zoo.core.learning_rule import LearningRule
from zoo.core.prompt import Prompt
from zoo.core.protocols import FollowsRule, Predictor, Task, require_task
from zoo.measure.intervals import Estimate, estimate
from zoo.measure.predict import BATCH_SIZE, Programs, gather, sample_batches


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
  except UserError:  # several steps of gradient descent, for example, have no rule
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
