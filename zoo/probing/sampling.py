"""Means over freshly drawn prompts, with their standard errors."""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Key

from zoo.errors import UserError, check_count
from zoo.learning_rule import LearningRule
from zoo.prompt import Prompt


@dataclasses.dataclass(frozen=True)
class Estimate:
  """A mean over sampled prompts."""

  mean: float
  stderr: float  # standard error of the mean


class Answer(NamedTuple):
  """What a subject answers to a batch of prompts."""

  prediction: Float[Array, ' b']
  gradient: Float[Array, 'b d']  # ∂f/∂x_q


# Prompts drawn at once: a compromise between memory and calls.
_BATCH_SIZE = 4096

Measure = Callable[[Prompt, list[Answer]], dict[str, Float[Array, ' b']]]


def sample_means(
  measure: Measure, subjects: list[Any], task: Any, num_prompts: int, seed: int
) -> dict[str, Estimate]:
  """The mean of every quantity that `measure` gives a prompt, over `num_prompts`.

  It is given the prompts and each subject's answers to them. `seed` chooses the
  prompts; they are the same for all subjects, and whatever is measured. Raises
  UserError for what cannot be called on a prompt.
  """
  num_prompts = check_count('num_prompts', num_prompts, minimum=2)
  key = jax.random.key(check_count('seed', seed, minimum=0))
  # Equal tasks share what is compiled; JAX keeps a copy, lest an attribute that is set
  # anew changes what it has compiled for.
  task = copy.copy(task)

  def batches() -> Iterator[Prompt]:
    for start in range(0, num_prompts, _BATCH_SIZE):
      size = min(_BATCH_SIZE, num_prompts - start)
      yield _draw(task, jax.random.fold_in(key, start), size)

  return means(measure, subjects, task.num_features, batches())


@functools.partial(jax.jit, static_argnums=(0, 2))
def _draw(task: Any, key: Key[Array, ''], batch_size: int) -> Prompt:
  return task.sample(key, batch_size)


def means(
  measure: Measure, subjects: list[Any], num_features: int, batches: Iterable[Prompt]
) -> dict[str, Estimate]:
  """As `sample_means`, over batches of prompts that are there: two prompts or more."""
  for subject in subjects:
    if getattr(subject, 'num_features', num_features) != num_features:
      raise UserError(
        f'{type(subject).__name__} has {subject.num_features} features; the task has '
        f'{num_features}'
      )
  parts = [_split(subject) for subject in subjects]
  statics = tuple(static for static, _ in parts)
  arrays = [array for _, array in parts]
  totals: dict[str, np.ndarray] = {}
  num_prompts = 0
  for prompt in batches:
    num_prompts += len(prompt.y_query)
    # A TPU, and tf32 on a GPU, would otherwise round the products.
    with jax.default_matmul_precision('highest'):
      sums = jax.device_get(_measure(measure, statics, arrays, prompt))
    for name, values in sums.items():
      values = np.asarray(values, np.float64)
      moments = np.array([values.sum(), np.square(values).sum()])
      totals[name] = totals.get(name, 0.0) + moments
  found = {}
  for name, (total, squares) in totals.items():
    mean = total / num_prompts
    variance = max(squares / num_prompts - mean**2, 0.0)
    found[name] = Estimate(float(mean), math.sqrt(variance / (num_prompts - 1)))
  return found


@functools.partial(jax.jit, static_argnums=(0, 1))
def _measure(
  measure: Measure, statics: tuple, arrays: list, prompt: Prompt
) -> dict[str, Array]:
  subjects = [_merge(*part) for part in zip(statics, arrays, strict=True)]
  return measure(prompt, [answer(subject, prompt) for subject in subjects])


def answer(subject: Any, prompt: Prompt) -> Answer:
  """A subject's predictions and their gradients in the query, by differentiation."""

  def total(x_query: Float[Array, 'b d']) -> tuple[Float[Array, ''], Array]:
    prediction = subject(dataclasses.replace(prompt, x_query=x_query))
    # A prompt's prediction depends on its own query alone.
    return jnp.sum(prediction), prediction

  gradient, prediction = jax.grad(total, has_aux=True)(prompt.x_query)
  return Answer(prediction, gradient)


def _split(subject: Any) -> tuple[Any, Any]:
  """What a compiled program may keep of a subject, and the arrays that it is given."""
  if isinstance(subject, nnx.Module):
    return nnx.split(subject)
  if isinstance(subject, LearningRule):
    return None, jax.tree.map(jnp.asarray, subject)
  if not callable(subject):
    raise UserError(
      f'{type(subject).__name__} cannot be probed; it must be a model, an estimator, a '
      'learning rule, or else predict when called with a prompt'
    )
  return subject, None


def _merge(static: Any, arrays: Any) -> Any:
  if isinstance(static, nnx.GraphDef):
    return nnx.merge(static, arrays)
  return arrays if static is None else static
