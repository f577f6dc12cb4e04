"""The effect of the context: how much a prediction changes with it for one query.

For predictions f that are numbers it is `E Var(f | x_q)`, the mean variance over the
prompts with one query x_q, and for probabilities of classes `E KL(f ‖ E[f | x_q])`, in
nats. It is 0 for a predictor that sees the query alone, whatever it makes of it. What
an algorithm leaves unexplained of a predictor is a share of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import jax
import numpy as np
from jaxtyping import Float

from zoo.core.draws import REDRAW_STREAM, stream_of
from zoo.core.prompt import Prompt
from zoo.core.protocols import Task
from zoo.measure.statistics import Estimate, ratio

# An effect below this share of the predictions' mean square is float32 rounding.
LEAST_EFFECT = 1e-10


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
  if not effect.mean() > LEAST_EFFECT * np.mean(prediction**2):
    return None
  return ratio(part, effect)
