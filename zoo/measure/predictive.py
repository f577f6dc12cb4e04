"""Predictive distributions of any predictor, and the labels that they are about."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key

from zoo.core.distributions import (
  Classes,
  Distribution,
  GaussianMixture,
  Mixture,
  NumberOrClass,
  has_distribution,
)
from zoo.core.draws import CURVE_STREAM, LABELS_KEY, stream_of
from zoo.core.errors import UserError, check_count
from zoo.core.prompt import Prompt, checked_prompt
from zoo.core.protocols import BaseTask, Predictor, Task, require_task
from zoo.core.trees import fresh
from zoo.measure.predict import (
  LOSS_BATCH_SIZE,
  Programs,
  check_predictor,
  run_once,
  sample_batches,
)


def distribution(
  predictor: Predictor, prompt: Prompt, task: Task
) -> Distribution | Classes | NumberOrClass:
  """Returns a predictor's distribution of the observed label of each query.

  If the predictor has a method `distribution`, the result is
  `predictor.distribution(prompt)`. A predictor of classes has logits, whose softmax are
  the probabilities. For labels ±1 the prediction is the logit of +1, and the two
  classes are −1 and +1, in this order.

  Args:
    predictor: A model, a baseline of a task, or another callable that predicts.
    prompt: Prompts `[b]`.
    task: The task of the prompts, which says whether their labels are numbers.

  Returns:
    A distribution with one entry for each prompt. It is the distribution of the
    observed label, so that the noise of labels is part of it.

  Raises:
    UserError: If `prompt` is not a valid prompt, if the predictor cannot predict, or if
      labels are numbers and the predictor has no distribution of them.

  Example:
    >>> task = zoo.create_task('linear_regression', num_features=2, noise_std=0.5)
    >>> prompt = task.sample(jax.random.key(0), 3)
    >>> label = zoo.distribution(task.baselines()['bayes'], prompt, task)
    >>> print(label.std.round(2))
    [0.59 0.5  0.5 ]
  """
  checked_prompt(prompt)
  check_predictor(predictor)
  require_task(task)
  return run_once(_distribution, [predictor], prompt, fresh(task))


def _distribution(predictors: Sequence[Predictor], prompt: Prompt, task: Task) -> Any:
  (predictor,) = predictors
  return said_by(predictor, prompt, task)


def said_by(predictor: Predictor, prompt: Prompt, task: Task) -> Any:
  """Returns what `distribution` does, as a part of another program.

  The result is a `Distribution` or `Classes`. For labels that are a number or a class
  it is an object that has `log_prob` only.

  Raises:
    UserError: If labels are numbers and the predictor has no distribution of them.
  """
  if has_distribution(predictor):
    return predictor.distribution(prompt)
  if task.label_kind == 'numbers':
    raise UserError(
      f'{type(predictor).__name__} has no distribution of labels that are numbers; it '
      "needs a method distribution(prompt), as models with head='gaussian' or 'bars' "
      'have, and the baselines named bayes'
    )
  logits = predictor(prompt)
  return Classes(logits) if task.label_kind == 'classes' else Classes.of_signs(logits)


def log_prob(distribution: Any, labels: Float[Array, '*b']) -> Float[Array, '*p']:
  """Returns the log probability of labels, in nats.

  Args:
    distribution: The distribution of each label, as `said_by` returns it.
    labels: Numbers or one-hot vectors. For labels ±1 they are the probabilities of +1,
      as the targets of prompts are.
  """
  return distribution.log_prob(labels_for(distribution, labels))


def draws_labels(task: Task, prompt: Prompt) -> bool:
  """Returns whether observed labels can be drawn from the targets of a task.

  A task whose labels have noise draws them by its own `sample_labels`. In other tasks
  the labels are the targets themselves, or follow from their probabilities.
  """
  own = type(task).sample_labels is not BaseTask.sample_labels
  return own or task.label_kind != 'numbers' or prompt.context_targets is None


def with_drawn_labels(task: Task, key: Key[Array, ''], prompt: Prompt) -> Prompt:
  """Returns the prompts with observed labels as targets.

  The examples have the labels that the prompt shows. The query gets a new label, drawn
  by `task.sample_labels` given its target.
  """
  own = jax.random.fold_in(key, LABELS_KEY)
  keys = jax.vmap(jax.random.fold_in, (None, 0))(own, jnp.arange(len(prompt.y_query)))
  of_queries = jax.vmap(task.sample_labels)(keys, prompt.y_query[:, None])
  labels = jnp.concatenate([prompt.y, of_queries], axis=1)
  if task.label_kind == 'signs':
    labels = (1 + labels) / 2  # A target is the probability of the label +1.
  return dataclasses.replace(
    prompt, y_query=labels[:, -1], context_targets=labels[:, :-1]
  )


def batches_with_keys(
  task: Task, seed: int, num_prompts: int, programs: Programs
) -> Iterator[tuple[Prompt, Key[Array, '']]]:
  """Yields the prompts of `sample_batches`, each batch with the key of its draw.

  Anything that is drawn beside the prompts has a key of its own, which follows from
  this one.
  """
  seed = check_count('seed', seed, minimum=0)
  key, start = stream_of(seed, CURVE_STREAM), 0
  for prompt in sample_batches(task, seed, num_prompts, LOSS_BATCH_SIZE, programs):
    yield prompt, jax.random.fold_in(key, start)
    start += len(prompt.x)


def labels_for(distribution: Any, labels: Float[Array, '*b']) -> Float[Array, '*p']:
  """Returns labels in the form that a distribution takes.

  The targets of labels ±1 are probabilities of +1. They become those of two classes.
  """
  if isinstance(distribution, Classes) and labels.ndim < distribution.logits.ndim:
    return jnp.stack([1 - labels, labels], axis=-1)
  return labels


def sample_nll(
  predictors: Mapping[str, Predictor],
  task: Task,
  num_prompts: int,
  seed: int = 0,
  programs: Programs | None = None,
) -> dict[str, Float[np.ndarray, ' p']]:
  """Returns −log p of the observed label of each query, on the same prompts.

  Args:
    predictors: Predictors that have a distribution, by name.
    task: The task from which prompts and labels are drawn.
    num_prompts: The number of prompts p, ≥ 1.
    seed: The seed of the prompts and their labels. The prompts are those of
      `zoo.curve`.
    programs: Programs that are compiled already; None makes new ones.

  Returns:
    For each predictor an array `[p]` in nats, float64.

  Raises:
    UserError: If labels are numbers and a predictor has no distribution of them.
  """
  programs, task = programs or Programs(), task.held_out()
  parts: dict[str, list[np.ndarray]] = {name: [] for name in predictors}
  for prompt, key in batches_with_keys(task, seed, num_prompts, programs):
    for name, predictor in predictors.items():
      nll = programs.run(_nll, [predictor], prompt, fresh(task), key)
      parts[name].append(np.asarray(nll, np.float64))
  return {name: np.concatenate(part) for name, part in parts.items()}


def _nll(
  predictors: Sequence[Predictor], prompt: Prompt, task: Task, key: Key[Array, '']
) -> Float[Array, ' b']:
  (predictor,) = predictors
  labels = with_drawn_labels(task, key, prompt).y_query
  return -log_prob(said_by(predictor, prompt, task), labels)


def described(
  predictor: Predictor, prompt: Prompt, task: Task
) -> Distribution | Classes:
  """Returns what `said_by` does; raises UserError for a number or a class."""
  said: Any = said_by(predictor, prompt, task)
  if not isinstance(said, Distribution | Classes):
    raise UserError(
      f'{type(predictor).__name__} gives labels of {type(task).__name__} a '
      f'{type(said).__name__}; calibration and exchangeability are of numbers or of '
      "classes, so that the task tabular needs kind='numbers' or kind='classes'"
    )
  return said


def is_known(said: Any) -> Bool[Array, ' *b']:
  """Returns whether a number, or a component of a mixture, has standard deviation 0."""
  if isinstance(said, GaussianMixture):
    return jnp.any((said.stds == 0) & (said.weights > 0), axis=-1)
  if isinstance(said, Mixture):
    return jnp.any(jnp.stack([is_known(part) for part in said.parts]), axis=0)
  if isinstance(said, Distribution):
    return said.std == 0
  return jnp.zeros((), bool)  # Classes always have probabilities.


def measure_batches(
  function: Any,
  predictors: Sequence[Predictor],
  task: Task,
  num_prompts: int,
  seed: int,
) -> list[Float[np.ndarray, 'i p']]:
  """Returns what a function measures in all batches, joined along the last axis.

  Raises:
    UserError: If the task does not draw labels.
  """
  programs, task = Programs(), task.held_out()
  parts: list[Any] = []
  for prompt, key in batches_with_keys(task, seed, num_prompts, programs):
    if not draws_labels(task, prompt):
      raise UserError(
        f'{type(task).__name__} has labels that differ from their targets, and no '
        'method sample_labels, which says how they are drawn'
      )
    parts.append(programs.run(function, predictors, prompt, fresh(task), key))
  columns = zip(*jax.device_get(parts), strict=True)
  return [np.concatenate(column, axis=-1).astype(np.float64) for column in columns]


def check_unknown(name: str, task: Task, known: np.ndarray) -> None:
  """Raises UserError if the standard deviation of a label is 0."""
  if known.any():
    raise UserError(
      f'{name} gives {count_of(known, task)} the standard deviation 0; such a label is '
      'known and has no density: where labels have no noise, give the task noise, or '
      'too few examples to determine the label'
    )


def check_not_nan(name: str, task: Task, values: np.ndarray) -> None:
  """Raises UserError if what is measured of a distribution is NaN."""
  if np.isnan(values).any():
    raise UserError(
      f'{name} gives {count_of(np.isnan(values), task)} a distribution that is NaN'
    )


def check_divergence(name: str, task: Task, kl: Float[np.ndarray, ' p']) -> None:
  """Raises UserError if a divergence is NaN or infinite."""
  check_not_nan(name, task, kl)
  if np.isinf(kl).any():
    raise UserError(
      f'the divergence KL from {name} is infinite for {count_of(np.isinf(kl), task)}; '
      f'{name} gives the probability 0 to values that are possible'
    )


def count_of(which: np.ndarray, task: Task) -> str:
  """Says how many labels of a task are meant, in a message."""
  return f'{int(which.sum())} of {len(which)} labels of {type(task).__name__}'
