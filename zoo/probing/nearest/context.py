"""The variation over contexts: how much predictions change with the context of a query.

If the predictions f are numbers, the variation is `E Var(f | x_q)`, the variance over
prompts with the same query x_q, averaged over queries. If they are probabilities of
classes, it is `E KL(f ‖ E[f | x_q])`, in nats. It is 0 for a predictor that sees the
query alone. Instruments divide by it what an algorithm does not explain of a predictor.
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
from zoo.measure.intervals import Estimate, estimate
from zoo.measure.ratio import ratio
from zoo.probing.checks import check_finite

# Instruments that fit numbers ask for this many prompts for each of them. With fewer
# the error of the fit matters beside that of the mean over prompts.
PER_NUMBER = 32
# Shares of float32 predictions that differ by less count as equal.
SHARE_ROUNDING = 1e-8
# The mean prediction of a query is taken over prompts with the same query, if there are
# at least this many of them for each query, in the mean.
_LEAST_GROUP = 8
# If predictions are probabilities, a query gets at most this many contexts.
_MOST_CONTEXTS = 32
# Such a function takes a prompt and a number of examples, and returns the means, or
# probabilities, that are predicted after this number of examples.
Predict = Callable[[Prompt, int], Float[np.ndarray, 'p k']]


def distances(
  own: Float[np.ndarray, 'p t k'], mixed: Float[np.ndarray, '#p t k'], squares: bool
) -> Float[np.ndarray, 'p t']:
  """Returns `(own − mixed)²`, or KL(own ‖ mixed) in nats if not `squares`."""
  if squares:
    return np.sum((own - mixed) ** 2, axis=-1)
  return np.sum(own * np.log(own / mixed), axis=-1)


def with_others(
  task: Task, prompts: Iterable[Prompt], seed: int, count: int = 1
) -> Iterator[tuple[Prompt, list[Prompt]]]:
  """Yields each batch of prompts with `count` others that have the same queries.

  Raises UserError for a task that does not define how its prompts are drawn again.
  """
  task, key = task.held_out(), stream_of(seed, REDRAW_STREAM)
  for i, prompt in enumerate(prompts):
    keys = jax.random.split(jax.random.fold_in(key, i), count)
    yield prompt, [task.redraw(key, prompt, 'query') for key in keys]


def variation_of_numbers(
  prediction: Float[np.ndarray, 'p ...'], other: Float[np.ndarray, 'p ...']
) -> Float[np.ndarray, 'p ...']:
  """Returns `(f − f')²/2` for predictions of two prompts with the same query.

  Its mean is the variation over contexts, E Var(f | x_q).
  """
  return np.square(prediction - other) / 2


def share_of_variation(
  part: Float[np.ndarray, ' p'],
  variation: Float[np.ndarray, ' p'],
  prediction: Float[np.ndarray, ' p'],
) -> Estimate | None:
  """Returns the ratio of two means over the same prompts.

  None if the variation over contexts is no larger than rounding.

  Raises:
    UserError: If a prediction is not finite.
  """
  check_finite('the model', prediction, variation)
  return None if ignores_context(variation, prediction) else ratio(part, variation)


def ignores_context(
  variation: Float[np.ndarray, ' p'], prediction: Float[np.ndarray, ' q']
) -> bool:
  """Returns whether the variation over contexts is no larger than rounding.

  Args:
    variation: A number for each prompt, whose mean is the variation over contexts.
    prediction: Predictions, whose mean square says what is rounding.
  """
  return not variation.mean() > ROUNDING * np.mean(prediction**2)


def ignores_labels(
  predict: Callable[[Prompt], Float[np.ndarray, ' b'] | jax.Array], prompt: Prompt
) -> bool:
  """Returns whether predictions are the same, to the bit, with labels of other prompts.

  An algorithm that learns from labels cannot be what such a predictor computes, however
  near its predictions are: if w is large, `w·x_q − η (S w)·x_q`, which is a step of
  gradient descent from w without the labels, is nearly the step itself.
  """
  y, targets = jax.tree.map(
    lambda labels: jnp.roll(labels, 1, axis=0), (prompt.y, prompt.context_targets)
  )
  other = dataclasses.replace(prompt, y=y, context_targets=targets)
  return np.array_equal(predict(prompt), predict(other))


def variation_by_length(
  task: Task,
  prompt: Prompt,
  own: Float[np.ndarray, 'p t k'],
  predict: Predict,
  least: int,
  seed: int,
) -> Float[np.ndarray, 'p t']:
  """Returns the variation over contexts at each prompt, after each number of examples.

  The mean over prompts is the variation for the task. If queries recur, as symbols do,
  the other contexts of a query are those of the prompts that have it. Otherwise
  contexts are drawn. This needs a task that defines how prompts are drawn again and,
  after fewer than C examples, one that is `stationary`.

  Args:
    task: The task of the prompts, as it is measured.
    prompt: p prompts.
    own: The means, or the probabilities of classes, that are predicted for the prompts
      after `least`, …, C examples.
    predict: Predicts the same for other prompts.
    least: The first number of examples.
    seed: The seed of the contexts.

  Returns:
    The variation; NaN after a number of examples for which there are no other contexts.
  """
  features = np.asarray(prompt.features)
  variation = np.full(own.shape[:2], np.nan)
  for i in range(own.shape[1]):
    t = least + i
    grouped = _over_equal_queries(own[:, i], features[:, t], task)
    if grouped is not None:
      variation[:, i] = grouped
    elif t == task.context_length or task.stationary:
      key = jax.random.fold_in(stream_of(seed, REDRAW_STREAM), t)
      asked = dataclasses.replace(prompt, x_query=prompt.features[:, t])
      try:
        variation[:, i] = _over_drawn_contexts(task, asked, own[:, i], predict, t, key)
      except UserError as error:
        logging.log_first_n(logging.WARNING, 'no variation over contexts: %s', 1, error)
  return variation


def _over_equal_queries(
  own: Float[np.ndarray, 'p k'], queries: Float[np.ndarray, 'p d'], task: Task
) -> Float[np.ndarray, ' p'] | None:
  """Returns the variation over prompts with the same query.

  None if there are too few prompts for each query. A query that occurs once has no
  other context; its variation is taken to be the mean of all others.
  """
  _, first, group, counts = np.unique(
    queries, axis=0, return_index=True, return_inverse=True, return_counts=True
  )
  if len(own) < _LEAST_GROUP * len(counts):
    return None
  group = group.ravel()
  # Differences are from the first of a group: equal predictions have the variation 0.
  sums = np.zeros((len(counts), own.shape[1]))
  np.add.at(sums, group, own - own[first][group])
  mean = own[first] + sums / counts[:, None]
  # Without the factor, a variance about the mean of n contexts is too small by 1/n.
  factor = counts / np.maximum(counts - 1, 1)
  is_numbers = task.label_kind == 'numbers'
  variation = factor[group] * distances(own[None], mean[group][None], is_numbers)[0]
  is_alone = counts[group] == 1
  variation[is_alone] = variation[~is_alone].mean()
  return variation


def _over_drawn_contexts(
  task: Task,
  prompt: Prompt,
  own: Float[np.ndarray, 'p k'],
  predict: Predict,
  t: int,
  key: jax.Array,
) -> Float[np.ndarray, ' p']:
  """Returns the variation over other contexts of the same queries, after t examples.

  If predictions are numbers, one other context is enough. If they are probabilities,
  the number of contexts doubles until this changes the mean variation by less than its
  standard error. The bias falls at least as fast as 1/n, so that what remains of it is
  then also below the standard error. A warning says if the largest number of contexts
  was not enough for this.
  """
  c = task.context_length

  def draw(i: int) -> Float[np.ndarray, 'p k']:
    drawn = task.redraw(jax.random.fold_in(key, i), prompt, 'query')
    x = jnp.roll(drawn.features, t - c, axis=1)
    y = jnp.roll(drawn.y, t - c, axis=1)
    # The last t examples are moved to the front, and the query follows them.
    moved = dataclasses.replace(
      drawn, x=x[:, :-1], y=y, x_query=x[:, -1], context_targets=None
    )
    return predict(moved if t < c else drawn, t)

  predictions = [own, draw(1)]
  if task.label_kind == 'numbers':
    return variation_of_numbers(own, predictions[1])[..., 0]
  before = _over_contexts(predictions)
  while True:
    predictions += [draw(i) for i in range(len(predictions), 2 * len(predictions))]
    variation = _over_contexts(predictions)
    found = estimate(variation)
    is_close = abs(found.mean - before.mean()) <= found.stderr
    if is_close:
      return variation
    if len(predictions) >= _MOST_CONTEXTS:
      logging.log_first_n(
        logging.WARNING,
        'the variation over contexts still changes by %.2g with %d contexts, which is '
        'more than its standard error, %.2g',
        1,
        abs(found.mean - before.mean()),
        len(predictions),
        found.stderr,
      )
      return variation
    before = variation


def _over_contexts(predictions: list[np.ndarray]) -> Float[np.ndarray, ' p']:
  """Returns the mean divergence of probabilities from their mean over n contexts."""
  stacked, n = np.stack(predictions), len(predictions)
  mean = stacked[0] + (stacked - stacked[0]).mean(axis=0)
  return distances(stacked, mean[None], False).mean(axis=0) * n / (n - 1)
