"""Heads: how the outputs of a readout become the distribution of a label."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, ArrayLike, Float

from zoo.core.distributions import Bars, Distribution, Gaussian
from zoo.core.errors import UserError, check_count, check_name, check_vector
from zoo.core.protocols import Task
from zoo.models.linear_attention import Constant

HEADS = {
  'point': 'the prediction, without a distribution for labels that are numbers',
  'gaussian': 'the mean and the logarithm of the variance of a normal distribution',
  'bars': 'the logits of the bars of a histogram, whose edges are given',
}
NUM_BARS = 64  # Models that configs name have this many bars.

_NUM_PROMPTS = 2048  # The labels of this many prompts give the quantiles.
_SEED = 0
# The least width of a bar, as a share of the mean width. Without it, labels that repeat
# would give bars of width 0.
_LEAST_WIDTH = 1e-3


class Edges(Constant):
  """The edges of bars, which stay in float32 if a model computes in bfloat16."""


def quantile_edges(task: Task, num_bars: int = NUM_BARS) -> Float[Array, ' m']:
  """Returns edges of bars between which a task's labels are equally likely.

  The inner edges are the quantiles i/n of the labels of 2,048 prompts. An outer bar
  holds half of the labels beyond its inner edge; the other half lies in the tail of
  `zoo.core.distributions.Bars`. The edges are a function of the task, because the key
  of the prompts is fixed. A bar that would be narrower than a thousandth of the mean
  width gets that width, so that the edges increase.

  Args:
    task: A task whose labels are numbers.
    num_bars: The number n of bars, ≥ 2; 64 by default.

  Returns:
    The n + 1 edges, in the units of the labels. Under a trace they are traced values,
    and no prompts are drawn while tracing.

  Raises:
    UserError: If the labels of the task are not numbers, or if `num_bars` is not an
      integer ≥ 2.

  Example:
    >>> task = zoo.create_task('linear_regression', num_features=2, context_length=4)
    >>> print(np.round(zoo.models.quantile_edges(task, 4), 1))
    [-1.4 -0.7  0.   0.7  1.4]
  """
  n = check_count('num_bars', num_bars, minimum=2)
  if task.label_kind != 'numbers':
    raise UserError(
      f'the labels of {type(task).__name__} are {task.label_kind}; bars are for labels '
      'that are numbers'
    )
  if task.num_outputs > 1:
    raise UserError(
      f'the labels of {type(task).__name__} have {task.num_outputs} entries; bars are '
      'for labels that are one number'
    )
  labels = jnp.sort(task.sample(jax.random.key(_SEED), _NUM_PROMPTS).y.ravel())
  edges = labels[(shares_below_edges(n) * len(labels)).astype(int)]
  span = edges[-1] - edges[0]
  least = jnp.where(span > 0, span * (_LEAST_WIDTH / n), 1)
  widths = jnp.diff(edges)
  widened = jnp.cumsum(jnp.maximum(widths, least))
  widened = jnp.append(edges[:1], edges[:1] + widened)
  return jnp.where(jnp.all(widths >= least), edges, widened)


def shares_below_edges(num_bars: int) -> Float[np.ndarray, ' m']:
  """Returns the share i/n of labels below each edge.

  Half of each tail lies beyond its outer bar.
  """
  return np.array([0.5, *range(1, num_bars), num_bars - 0.5]) / num_bars


def check_head(
  head: str, num_outputs: int, edges: ArrayLike | Sequence[float] | None
) -> Edges | None:
  """Checks a head, and returns the edges of its bars.

  Args:
    head: One of HEADS.
    num_outputs: Number of outputs of a prediction.
    edges: The edges of the bars, increasing; None for a head without bars.

  Returns:
    The edges, or None for a head without bars.

  Raises:
    UserError: If the head is unknown, if it is for numbers and there are classes, or if
      edges are missing, not needed, or do not increase.
  """
  check_name('head', head, HEADS)
  if head != 'point' and num_outputs > 1:
    raise UserError(
      f"head is {head!r} and num_outputs {num_outputs}; it must be 'point' for several "
      'outputs, which are the logits of classes'
    )
  if head != 'bars':
    if edges is not None:
      raise UserError(f"edges are only for head = 'bars'; head is {head!r}")
    return None
  if edges is None:
    raise UserError(
      "head is 'bars', and edges is None; it must have the edges of the bars, such as "
      'zoo.models.quantile_edges(task, num_bars=64)'
    )
  if not isinstance(edges, Tracer):
    numbers = check_vector('edges', edges, None)
    if len(numbers) < 3 or not np.all(np.diff(numbers) > 0):
      raise UserError(
        f'edges has {len(numbers)} numbers, the least step is '
        f'{np.diff(numbers).min(initial=np.inf):.3g}; it must have at least three '
        'numbers, which increase'
      )
  return Edges(jnp.asarray(edges, float))


def num_reads(head: str, num_outputs: int, edges: Edges | None) -> int:
  """Returns the number of outputs that a readout has for a head."""
  if head == 'gaussian':
    return 2
  return num_outputs if edges is None else len(edges[...]) - 1


def at_head(
  head: str,
  outputs: Float[Array, '*n r'],
  guess: Float[Array, '*n 1'] | None,
  edges: Edges | None,
) -> Distribution:
  """Returns the distribution of a label that is a number, in float32 at least.

  Args:
    head: 'gaussian' or 'bars'.
    outputs: The outputs of the readout, `[*n, num_reads]`.
    guess: A number that is added to the label that the outputs describe, `[*n, 1]`;
      None adds nothing.
    edges: The edges of bars.
  """
  outputs = outputs.astype(jnp.promote_types(outputs.dtype, jnp.float32))
  if head == 'gaussian':
    mean = outputs[..., 0]
    if guess is not None:
      mean += guess[..., 0].astype(mean.dtype)
    return Gaussian(mean, jnp.exp(outputs[..., 1] / 2))
  assert edges is not None
  at = edges[...].astype(outputs.dtype)
  if guess is not None:
    at = at.reshape((1,) * (outputs.ndim - 1) + at.shape)
    shape = *outputs.shape[:-1], at.shape[-1]
    at = jnp.broadcast_to(at, shape) + jnp.broadcast_to(guess.astype(at.dtype), shape)
  return Bars(outputs, at)
