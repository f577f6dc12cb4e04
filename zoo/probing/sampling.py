"""Means over freshly sampled prompts, with their standard errors."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from zoo.core.errors import UserError, check_count
from zoo.core.prompt import Prompt
from zoo.core.protocols import Predictor, Task
from zoo.measure.curves import Static, merge, sample_batches, split
from zoo.measure.intervals import Estimate, estimate_from_moments
from zoo.tasks.baselines import HostBaseline


class Answer(NamedTuple):
  """A predictor's answer to a batch of prompts."""

  prediction: Float[Array, ' b *k']
  gradient: Any  # ∂f/∂x_q, `[b, d]`; None where no gradients are asked for


# Prompts sampled at once: a compromise between memory and the number of calls.
_BATCH_SIZE = 4096

Measure = Callable[[Prompt, list[Answer]], dict[str, Float[Array, ' b']]]


def sample_means(
  measure: Measure,
  predictors: Sequence[Predictor],
  task: Task,
  num_prompts: int,
  seed: int,
  gradients: bool = False,
) -> dict[str, Estimate]:
  """The mean over `num_prompts` prompts of every quantity that `measure` returns.

  `measure` takes the prompts and each predictor's answers to them, with gradients if
  they are asked for. The prompts depend only on `seed`, and are the same for all
  predictors. Raises UserError for a predictor that cannot be called on a prompt.
  """
  num_prompts = check_count('num_prompts', num_prompts, minimum=2)
  batches = sample_batches(task, seed, num_prompts, _BATCH_SIZE)
  return means(measure, predictors, task.num_features, batches, gradients)


def means(
  measure: Measure,
  predictors: Sequence[Predictor],
  num_features: int,
  batches: Iterable[Prompt],
  gradients: bool = False,
) -> dict[str, Estimate]:
  """`sample_means` over given batches, with at least two prompts in total."""
  for predictor in predictors:
    if isinstance(predictor, HostBaseline):
      raise UserError(
        f'{type(predictor).__name__} is fitted to each prompt by another library, so '
        'it cannot be compiled and has no gradient; compare with another predictor'
      )
    found = getattr(predictor, 'num_features', num_features)
    if found != num_features:
      raise UserError(
        f'{type(predictor).__name__} has {found} features; the task has {num_features}'
      )
  parts = [split(predictor) for predictor in predictors]
  statics = tuple(static for static, _ in parts)
  arrays = [array for _, array in parts]
  totals: dict[str, np.ndarray] = {}
  num_prompts = 0
  for prompt in batches:
    num_prompts += len(prompt.y_query)
    # Otherwise a TPU, or a GPU with tf32, would round the products.
    with jax.default_matmul_precision('highest'):
      values_by_name = jax.device_get(
        _measure(measure, gradients, statics, arrays, prompt)
      )
    for name, values in values_by_name.items():
      values = np.asarray(values, np.float64)
      moments = np.array([values.sum(), np.square(values).sum()])
      totals[name] = totals.get(name, 0.0) + moments
  found = {}
  for name, total in totals.items():
    mean, mean_square = (total / num_prompts).tolist()
    found[name] = estimate_from_moments(mean, mean_square, num_prompts)
  return found


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _measure(
  measure: Measure,
  gradients: bool,
  statics: tuple[Static, ...],
  arrays: list[PyTree],
  prompt: Prompt,
) -> dict[str, Array]:
  predictors = map(merge, statics, arrays)
  if gradients:
    return measure(prompt, [answer(predictor, prompt) for predictor in predictors])
  return measure(prompt, [Answer(predictor(prompt), None) for predictor in predictors])


def answers(predictors: Sequence[Predictor], prompt: Prompt) -> list[Answer]:
  """The predictions of predictors and their gradients in the query, in one program."""
  parts = [split(predictor) for predictor in predictors]
  statics = tuple(static for static, _ in parts)
  return _answers(statics, [arrays for _, arrays in parts], prompt)


@functools.partial(jax.jit, static_argnums=0)
def _answers(
  statics: tuple[Static, ...], arrays: list[PyTree], prompt: Prompt
) -> list[Answer]:
  return [answer(predictor, prompt) for predictor in map(merge, statics, arrays)]


def answer(predictor: Predictor, prompt: Prompt) -> Answer:
  """A predictor's predictions, and their gradients in the query."""

  def total(x_query: Float[Array, 'b d']) -> tuple[Float[Array, ''], Array]:
    prediction = predictor(dataclasses.replace(prompt, x_query=x_query))
    # A prompt's prediction depends only on its own query.
    return jnp.sum(prediction), prediction

  gradient, prediction = jax.grad(total, has_aux=True)(prompt.x_query)
  return Answer(prediction, gradient)
