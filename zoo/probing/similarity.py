"""Alignment: how close two predictors are on the same prompts."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float

from zoo import theory
from zoo.core.errors import UserError
from zoo.core.learning_rule import LearningRule
from zoo.core.prompt import Prompt
from zoo.core.protocols import FollowsRule, Predictor, Task
from zoo.measure.intervals import Estimate
from zoo.probing.sampling import Answer, sample_means


@dataclasses.dataclass(frozen=True)
class Alignment:
  """The differences between two predictors, f and f' (arXiv 2512.04268, appendix C.2).

  Gradients are in the query; that of a learning rule is the weights learned in context.
  """

  num_prompts: int
  prediction_difference: Estimate  # E |f − f'|
  gradient_difference: Estimate  # E |∂f/∂x_q − ∂f'/∂x_q|
  cosine_similarity: Estimate  # E cos(∂f/∂x_q, ∂f'/∂x_q); a gradient of 0 counts as 0
  squared_prediction_difference: Estimate  # E (f − f')²
  squared_gradient_difference: Estimate  # E |∂f/∂x_q − ∂f'/∂x_q|²
  gradient_product: Estimate  # E ∂f/∂x_q·∂f'/∂x_q
  exact: ExactAlignment | None  # None if either has no learning rule


@dataclasses.dataclass(frozen=True)
class ExactAlignment:
  """The expectations of Alignment that have a closed form, and a cosine from them."""

  squared_prediction_difference: float
  squared_gradient_difference: float
  gradient_product: float
  # E ∂f·∂f' / √(E |∂f|² E |∂f'|²), the cosine over all prompts at once; None for 0 / 0.
  pooled_cosine: float | None


def alignment(
  subject: Predictor,
  other: Predictor,
  task: Task,
  num_prompts: int = 65536,
  seed: int = 0,
) -> Alignment:
  """Compares a model, rule or estimator with another one on the prompts of a task.

  The prompts are those of `sampling.sample_means`. The exact part needs two learning
  rules and a task that exact theory covers. Raises UserError for a predictor that
  cannot be called on the task's prompts, or that another library fits to each prompt.
  """
  means = sample_means(_measure, [subject, other], task, num_prompts, seed, True)
  exact = None
  if theory.covers(task) and has_rule(subject) and has_rule(other):
    exact = exact_alignment(subject, other, task)
  return Alignment(num_prompts, **means, exact=exact)


def exact_alignment(subject: Predictor, other: Predictor, task: Task) -> ExactAlignment:
  """The exact part of `alignment`; raises UserError as `theory.exact_risk` does."""
  difference = theory.squared_difference(subject, other, task)
  nothing = LearningRule.gradient_descent(jnp.zeros(task.num_features), 0.0)
  one, two = (
    float(theory.squared_difference(rule, nothing, task).gradient)
    for rule in (subject, other)
  )
  product = (one + two - float(difference.gradient)) / 2
  scale = (one * two) ** 0.5
  return ExactAlignment(
    squared_prediction_difference=float(difference.prediction),
    squared_gradient_difference=float(difference.gradient),
    gradient_product=product,
    pooled_cosine=product / scale if scale > 0 else None,
  )


def has_rule(subject: Predictor) -> bool:
  """Whether a predictor is a learning rule or follows one."""
  if isinstance(subject, LearningRule):
    return True
  if not isinstance(subject, FollowsRule):
    return False
  try:
    subject.learning_rule()
  except UserError:  # for example, several steps of gradient descent have none
    return False
  return True


def _measure(prompt: Prompt, answers: list[Answer]) -> dict[str, Float[Array, ' b']]:
  one, two = answers
  prediction_b = one.prediction - two.prediction
  square_b = jnp.sum(jnp.square(one.gradient - two.gradient), axis=1)
  product_b = jnp.sum(one.gradient * two.gradient, axis=1)
  scale_b = jnp.linalg.norm(one.gradient, axis=1) * jnp.linalg.norm(
    two.gradient, axis=1
  )
  return {
    'prediction_difference': jnp.abs(prediction_b),
    'gradient_difference': jnp.sqrt(square_b),
    'cosine_similarity': jnp.where(
      scale_b > 0, product_b / jnp.where(scale_b > 0, scale_b, 1), 0
    ),
    'squared_prediction_difference': jnp.square(prediction_b),
    'squared_gradient_difference': square_b,
    'gradient_product': product_b,
  }
