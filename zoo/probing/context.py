"""The effect of the context: how much a prediction changes with it for one query.

For predictions f that are numbers it is `E Var(f | x_q)`, the mean variance over the
prompts with one query x_q, and for probabilities of classes `E KL(f ‖ E[f | x_q])`, in
nats. It is 0 for a predictor that sees the query alone, whatever it makes of it. What
an algorithm leaves unexplained of a predictor is a share of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from jaxtyping import Float

from zoo.core.draws import REDRAW_STREAM, stream_of
from zoo.core.errors import UserError
from zoo.core.losses import ROUNDING
from zoo.core.prompt import Prompt
from zoo.core.protocols import Task
from zoo.measure.statistics import Estimate, estimate, ratio

SHARE_ROUNDING = 1e-8  # shares of float32 predictions that differ by less are equal
# Prompts with one query are enough for its mean prediction.
_LEAST_GROUP = 8
_MOST_CONTEXTS = 32  # of a query, where predictions are probabilities
# From a prompt and a number of examples t to the means, or probabilities, after them.
Predict = Callable[[Prompt, int], Float[np.ndarray, 'p k']]


def distances(
  own: Float[np.ndarray, 'p t k'], mixed: Float[np.ndarray, '#p t k'], squares: bool
) -> Float[np.ndarray, 'p t']:
  """`(own − mixed)²`, or KL(own ‖ mixed) in nats."""
  if squares:
    return np.sum((own - mixed) ** 2, axis=-1)
  return np.sum(own * np.log(own / mixed), axis=-1)


def with_others(
  task: Task, prompts: Iterable[Prompt], seed: int, count: int = 1
) -> Iterator[tuple[Prompt, list[Prompt]]]:
  """Batches of prompts, and `count` others of the same queries for each.

  Raises UserError for a task that does not say how its prompts are drawn again.
  """
  task, key = task.held_out(), stream_of(seed, REDRAW_STREAM)
  for i, prompt in enumerate(prompts):
    keys = jax.random.split(jax.random.fold_in(key, i), count)
    yield prompt, [task.redraw(key, prompt, 'query') for key in keys]


def effect_of_numbers(
  prediction: Float[np.ndarray, 'p ...'], other: Float[np.ndarray, 'p ...']
) -> Float[np.ndarray, 'p ...']:
  """`(f − f')²/2` for predictions of two prompts with the same query."""
  return np.square(prediction - other) / 2


def share_of_effect(
  part: Float[np.ndarray, ' p'],
  effect: Float[np.ndarray, ' p'],
  prediction: Float[np.ndarray, ' p'],
) -> Estimate | None:
  """The ratio of two means over the same prompts; None if the effect is rounding."""
  if not effect.mean() > ROUNDING * np.mean(prediction**2):
    return None
  return ratio(part, effect)


def effects_by_length(
  task: Task,
  prompt: Prompt,
  own: Float[np.ndarray, 'p t k'],
  predict: Predict,
  least: int,
  seed: int,
) -> Float[np.ndarray, 'p t']:
  """The effect of the context of each prompt after `least`, …, C examples.

  Its mean over prompts is that of the task. Where queries recur, as symbols do, the
  other contexts of a query are those of the prompts that have it. Else they are drawn,
  which needs a task that says how, and after fewer than C examples one that is
  `stationary`.

  Args:
    task: The task of the prompts, as it is measured.
    prompt: p prompts.
    own: The means, or probabilities of classes, that are predicted for them.
    predict: Predicts as much for other prompts.
    least: The first number of examples.
    seed: Chooses the contexts.

  Returns:
    The effects; NaN after a number of examples for which there are no other contexts.
  """
  features = np.asarray(prompt.features)
  effects = np.full(own.shape[:2], np.nan)
  for i in range(own.shape[1]):
    t = least + i
    grouped = _over_equal_queries(own[:, i], features[:, t], task)
    if grouped is not None:
      effects[:, i] = grouped
    elif t == task.context_length or task.stationary:
      key = jax.random.fold_in(stream_of(seed, REDRAW_STREAM), t)
      asked = dataclasses.replace(prompt, x_query=prompt.features[:, t])
      try:
        effects[:, i] = _over_drawn_contexts(task, asked, own[:, i], predict, t, key)
      except UserError as error:
        logging.log_first_n(logging.WARNING, 'no effect of the context: %s', 1, error)
  return effects


def _over_equal_queries(
  own: Float[np.ndarray, 'p k'], queries: Float[np.ndarray, 'p d'], task: Task
) -> Float[np.ndarray, ' p'] | None:
  """The effects over prompts with the same query; None if there are too few of them."""
  _, first, group, counts = np.unique(
    queries, axis=0, return_index=True, return_inverse=True, return_counts=True
  )
  if len(own) < _LEAST_GROUP * len(counts):
    return None
  group = group.ravel()
  # From the first of the group, so that equal predictions have the effect 0.
  sums = np.zeros((len(counts), own.shape[1]))
  np.add.at(sums, group, own - own[first][group])
  mean = own[first] + sums / counts[:, None]
  # Without the factor, the mean over n contexts takes a share 1/n of the variance.
  factor = counts / np.maximum(counts - 1, 1)
  is_numbers = task.label_kind == 'numbers'
  return factor[group] * distances(own[None], mean[group][None], is_numbers)[0]


def _over_drawn_contexts(
  task: Task,
  prompt: Prompt,
  own: Float[np.ndarray, 'p k'],
  predict: Predict,
  t: int,
  key: jax.Array,
) -> Float[np.ndarray, ' p']:
  """The effects over other contexts of the same queries, after t examples.

  Of numbers one other context is enough. Of probabilities there are more, until twice
  as many change the mean effect by less than its standard error: what remains of the
  bias is then less than that, too, since it falls at least as fast as 1/n.
  """
  c = task.context_length

  def draw(i: int) -> Float[np.ndarray, 'p k']:
    drawn = task.redraw(jax.random.fold_in(key, i), prompt, 'query')
    x = jnp.roll(drawn.features, t - c, axis=1)
    y = jnp.roll(drawn.y, t - c, axis=1)
    # The last t examples come first, and the query after them.
    moved = dataclasses.replace(
      drawn, x=x[:, :-1], y=y, x_query=x[:, -1], context_targets=None
    )
    return predict(moved if t < c else drawn, t)

  predictions = [own, draw(1)]
  if task.label_kind == 'numbers':
    return effect_of_numbers(own, predictions[1])[..., 0]
  before = _over_contexts(predictions)
  while True:
    predictions += [draw(i) for i in range(len(predictions), 2 * len(predictions))]
    effects = _over_contexts(predictions)
    found = estimate(effects)
    is_close = abs(found.mean - before.mean()) <= found.stderr
    if is_close or len(predictions) >= _MOST_CONTEXTS:
      return effects
    before = effects


def _over_contexts(predictions: list[np.ndarray]) -> Float[np.ndarray, ' p']:
  """The mean divergence of probabilities from their mean over n contexts."""
  stacked, n = np.stack(predictions), len(predictions)
  mean = stacked[0] + (stacked - stacked[0]).mean(axis=0)
  return distances(stacked, mean[None], False).mean(axis=0) * n / (n - 1)
