"""Whether a predictor is a Bayesian one: exchangeability and martingales."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key

from zoo.core.distributions import Classes
from zoo.core.draws import CONTINUATIONS_KEY, ORDERS_KEY
from zoo.core.errors import UserError, check_count
from zoo.core.prompt import Prompt
from zoo.core.protocols import Predictor, Task, require_task
from zoo.core.trees import fresh
from zoo.measure.comparison import MODEL
from zoo.measure.curve import checked_lengths
from zoo.measure.intervals import Estimate, estimate
from zoo.measure.likelihood import kl_divergence
from zoo.measure.predict import Programs, check_predictor
from zoo.measure.predictive import (
  batches_with_keys,
  check_divergence,
  check_unknown,
  count_of,
  described,
  is_known,
  said_by,
)
from zoo.measure.ratio import ratio
from zoo.measure.table import Rows
from zoo.tasks.base import FunctionClass

_LEAST_PROMPTS = 128
_LEAST_OF_DRIFT = 64


class Spread(NamedTuple):
  """How far a predictive distribution depends on the order of the examples.

  It is a row of what `exchangeability` returns.

  Attributes:
    num_examples: The number of examples before the query.
    kl: The mean of KL(distribution in the given order ‖ distribution in another order),
      in nats.
  """

  num_examples: int
  kl: Estimate


def exchangeability(
  predictor: Predictor,
  task: Task,
  num_prompts: int = 256,
  seed: int = 0,
  *,
  num_orders: int = 4,
  lengths: Sequence[int] | None = None,
) -> Rows[Spread]:
  """Measures how much a predictive distribution depends on the order of the examples.

  Each prompt is given in its own order and in random other orders, and the predictive
  distributions for its query are compared. If the order that is drawn is the given one,
  the first two examples are swapped instead. The distribution of a Bayesian predictor
  is the same in all orders, so that the divergence is 0. This holds only if the order
  says nothing about the label of the query, as a task says by `exchangeable`. It is so
  for every `zoo.tasks.FunctionClass`, and not for a Markov chain.

  Args:
    predictor: A predictor with a distribution (see `zoo.distribution`).
    task: The task from which prompts are drawn, which is `exchangeable`.
    num_prompts: The number of prompts, at least 128. A divergence is skewed: with
      fewer its 95 % intervals contain the truth in less than 93 % of draws.
    seed: The seed of the prompts and of the permutations, ≥ 0.
    num_orders: The number of random permutations of each prompt, ≥ 1.
    lengths: The numbers of examples before the query, each from 2 to the context length
      C of the task. None means C alone.

  Returns:
    A row for each length: the mean over prompts and permutations of KL(distribution in
    the given order ‖ distribution in the permuted order).

  Raises:
    UserError: If the predictor has no distribution of numbers or of classes, if the
      task is not `exchangeable`, if labels are known (their standard deviation is 0),
      or if a number is out of its range.

  Example:
    >>> task = zoo.create_task(
    ...   'linear_regression', num_features=2, context_length=4, noise_std=0.5
    ... )
    >>> rows = zoo.exchangeability(task.baselines()['bayes'], task, num_prompts=128)
    >>> print(f'{abs(rows[0].kl.mean):.4f}')  # Bayes does not depend on the order
    0.0000
  """
  check_predictor(predictor)
  num_prompts = check_count('num_prompts', num_prompts, minimum=_LEAST_PROMPTS)
  require_task(task)
  _check_exchangeable(task)
  num_orders = check_count('num_orders', num_orders)
  programs, task = Programs(), task.held_out()
  check_count('context_length of the task', task.context_length, minimum=2)
  lengths = [task.context_length] if lengths is None else lengths
  lengths = checked_lengths(lengths, 2, task.context_length)
  parts: list[list[Any]] = [[] for _ in lengths]
  for prompt, key in batches_with_keys(task, seed, num_prompts, programs):
    keys = jax.random.split(jax.random.fold_in(key, ORDERS_KEY), num_orders)
    for part, length in zip(parts, lengths, strict=True):
      arguments = prompt.prefix(length), fresh(task), keys
      part.append(jax.device_get(programs.run(_spread, [predictor], *arguments)))
  rows = Rows[Spread]()
  for length, part in zip(lengths, parts, strict=True):
    known, kl = (np.concatenate(column) for column in zip(*part, strict=True))
    check_unknown(MODEL, task, known)
    check_divergence(MODEL, task, kl)
    rows.append(Spread(length, estimate(kl)))
  return rows


def _check_exchangeable(task: Task) -> None:
  """Raises UserError for a task in which the order of the examples matters."""
  if not task.exchangeable:
    raise UserError(
      f'{type(task).__name__} does not say that its examples may be in any order, by '
      'exchangeable = True; if the order matters, a Bayesian predictor depends on it, '
      'too'
    )


def _spread(
  predictors: Sequence[Predictor], prompt: Prompt, task: Task, keys: Key[Array, ' o']
) -> tuple[Bool[Array, ' b'], Float[Array, ' b']]:
  """Returns whether labels are known, and the mean divergence over permutations."""
  (predictor,) = predictors
  given = described(predictor, prompt, task)
  b, c = prompt.x.shape[:2]
  total, known = jnp.zeros(b, prompt.x.dtype), jnp.broadcast_to(is_known(given), (b,))
  for key in keys:
    orders = jax.vmap(lambda key: jax.random.permutation(key, c))(
      jax.random.split(key, b)
    )
    # Of few examples a random order is often the given one, which shows nothing.
    is_given = jnp.all(orders == jnp.arange(c)[None], axis=1)
    swapped = jnp.array([1, 0, *range(2, c)])
    orders = jnp.where(is_given[:, None], swapped[None], orders)
    at = jnp.arange(b)[:, None]
    permuted = Prompt(
      prompt.x[at, orders], prompt.y[at, orders], prompt.x_query, prompt.y_query
    )
    other = described(predictor, permuted, task)
    total, known = total + kl_divergence(given, other), known | is_known(other)
  return known, total / len(keys)


class Drift(NamedTuple):
  """How predictions move when a predictor sees examples that it has drawn itself.

  It is a row of what `martingale` returns.

  Attributes:
    num_drawn: The number of examples that were drawn.
    drift: The mean change of the prediction, in the units of the labels. For classes it
      is the change of the probability of the class that was most probable.
    slope: The slope of that change on the first prediction. It shows predictions that
      all move towards their mean, or away from it, so that the mean change is 0. None
      if all first predictions are equal.
  """

  num_drawn: int
  drift: Estimate
  slope: Estimate | None


def martingale(
  predictor: Predictor,
  task: Task,
  num_prompts: int = 1024,
  seed: int = 0,
  *,
  num_steps: int = 4,
) -> Rows[Drift]:
  """Tests whether predictions are a martingale under a predictor's own distribution.

  The labels of the last examples of each prompt are replaced, one after the other, by
  labels drawn from the predictive distribution given the examples before. The
  prediction of a Bayesian for a fixed query then changes at random, but on average
  stays as it was, whatever the prior (Falck et al., arXiv 2406.00793). A predictor that
  fails this test is the posterior of no prior, so that its uncertainty has no such
  meaning.

  Only means are tested. A predictor with the mean of the posterior and a wrong width
  passes if the mean is linear in the labels, as it is in linear regression;
  `zoo.calibration` finds a wrong width.

  Args:
    predictor: A predictor with a distribution (see `zoo.distribution`).
    task: A `zoo.tasks.FunctionClass`, whose features do not depend on labels, and whose
      examples may be in any order.
    num_prompts: The number of prompts, at least 64. With fewer the 95 % intervals of
      the slope contain the truth in less than 93 % of draws.
    seed: The seed of the prompts and the labels, ≥ 0.
    num_steps: The number of examples that are drawn, from 1 to the context length.

  Returns:
    A row after each drawn example, with standard errors over prompts.

  Raises:
    UserError: If the predictor has no distribution, if the task is not a
      `zoo.tasks.FunctionClass`, or if a number is out of its range.

  Example:
    >>> task = zoo.create_task(
    ...   'linear_regression', num_features=2, context_length=4, noise_std=0.5
    ... )
    >>> rows = zoo.martingale(task.baselines()['bayes'], task, 256, num_steps=2)
    >>> print([f'{row.drift.mean:.2f} ± {row.drift.half:.2f}' for row in rows])
    ['-0.03 ± 0.07', '-0.06 ± 0.09']

  References:
    Falck, Wang and Holmes, arXiv 2406.00793.
  """
  check_predictor(predictor)
  if not isinstance(task, FunctionClass):
    raise UserError(
      f'{type(task).__name__} is no zoo.tasks.FunctionClass; examples can be drawn one '
      'by one only where features do not depend on labels'
    )
  num_prompts = check_count('num_prompts', num_prompts, minimum=_LEAST_OF_DRIFT)
  require_task(task)
  _check_exchangeable(task)
  c = task.context_length
  num_steps = check_count('num_steps', num_steps, maximum=c)
  programs, held_out = Programs(), task.held_out()
  moves: list[np.ndarray] = []
  firsts: list[np.ndarray] = []
  for prompt, key in batches_with_keys(held_out, seed, num_prompts, programs):
    y, predictions = prompt.y[:, : c - num_steps], []
    own = jax.random.fold_in(key, CONTINUATIONS_KEY)
    for length in range(c - num_steps, c + 1):
      seen = Prompt(prompt.x[:, :length], y, prompt.x_query, prompt.y_query)
      said = programs.run(_predicted, [predictor], seen, fresh(held_out))
      predictions.append(np.asarray(said, np.float64))
      if length < c:
        asked = dataclasses.replace(seen, x_query=prompt.x[:, length])
        drawn = programs.run(
          _drawn_label,
          [predictor],
          asked,
          fresh(held_out),
          jax.random.fold_in(own, length),
        )
        y = jnp.concatenate([y, drawn[:, None].astype(y.dtype)], axis=1)
    followed = np.stack(predictions, axis=1)
    if followed.ndim == 3:  # The class that was most probable is followed.
      best = followed[:, 0].argmax(axis=-1)
      followed = followed[np.arange(len(best)), :, best]
    firsts.append(followed[:, 0])
    moves.append(followed[:, 1:] - followed[:, :1])
  first, moved = np.concatenate(firsts), np.concatenate(moves)
  unknown = np.isnan(first) | np.isnan(moved).any(axis=1)
  if unknown.any():
    raise UserError(f'the predictor gives {count_of(unknown, task)} a mean that is NaN')
  return _drifts(first, moved)


def _drifts(
  first: Float[np.ndarray, ' p'], moved: Float[np.ndarray, 'p k']
) -> Rows[Drift]:
  """Returns how first predictions have moved after each of k drawn examples."""
  centred = first - first.mean()
  # Equal predictions may differ by the rounding of float32.
  differ = np.ptp(first) > 1e-6 * np.abs(first).max()
  rows = Rows[Drift]()
  for k, by_step in enumerate(moved.T):
    slope = ratio(centred * (by_step - by_step.mean()), centred**2) if differ else None
    rows.append(Drift(k + 1, estimate(by_step), slope))
  return rows


def _predicted(
  predictors: Sequence[Predictor], prompt: Prompt, task: Task
) -> Float[Array, ' b *k']:
  """Returns the mean of the label, or the probabilities of its classes."""
  (predictor,) = predictors
  said = said_by(predictor, prompt, task)
  return said.probabilities if isinstance(said, Classes) else said.mean


def _drawn_label(
  predictors: Sequence[Predictor], prompt: Prompt, task: Task, key: Key[Array, '']
) -> Float[Array, ' b *k']:
  """Returns a label of each query, drawn from the predictive distribution."""
  (predictor,) = predictors
  drawn = said_by(predictor, prompt, task).sample(key)
  return 2 * drawn[..., 1] - 1 if task.label_kind == 'signs' else drawn
