"""The effect of a curriculum: masked features, and losses that do not count."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from zoo.core.draws import LENGTHS_KEY
from zoo.objectives.curricula import Stage
from zoo.tasks.base import ChangedTask


@struct.dataclass(eq=False, repr=False)
class FirstFeatures(ChangedTask):
  """A task in which only the first `num_used` features differ from 0.

  Labels follow from these features (Garg et al., arXiv 2208.01066, section 4: prompts
  in a subspace).

  Attributes:
    num_used: The number of features in use, a scalar integer.
  """

  num_used: int | Array

  def sample_features(self, key: Key[Array, '']) -> Float[Array, 't d']:
    used = jnp.arange(self.num_features) < self.num_used
    return jnp.where(used[None], self.task.sample_features(key), 0)

  def evaluate(self, function: PyTree, x: Float[Array, 't d']) -> Float[Array, ' t *k']:
    return self.task.evaluate(function, x)


def draw_lengths(
  key: Key[Array, ''], batch_size: int, least: int, most: int
) -> Int[Array, ' b']:
  """Returns a number of examples for each prompt, uniform from `least` to `most`."""
  own = jax.random.fold_in(key, LENGTHS_KEY)
  return jax.random.randint(own, (batch_size,), least, most + 1)


def mean_at(
  stage: Stage, losses: Float[Array, '*n'], lengths: Int[Array, ' b'] | None
) -> Float[Array, '']:
  """Returns the mean of the losses that count at a stage.

  Args:
    stage: The stage of the curriculum.
    losses: Losses `[l, b, t]` of a model with l trained loops, or `[b, t]`, at every
      example or at the query alone, or `[b]` at the query.
    lengths: The number of examples of each prompt after which its loss counts. It is
      the loss of a prompt that is cut there. None counts all positions.
  """
  counted: Bool[Array, '*n'] = jnp.ones([1] * losses.ndim, bool)
  if lengths is not None:
    at = jnp.arange(losses.shape[-1])[None] == lengths[:, None]
    counted &= at.reshape(*[1] * (losses.ndim - 2), *at.shape)
  if stage.examples is not None:
    at = jnp.arange(losses.shape[-1]) <= stage.examples
    counted &= at.reshape(*[1] * (losses.ndim - 1), -1)
  if stage.loops is not None:
    loops = jnp.arange(len(losses)) < stage.loops
    counted &= loops.reshape(-1, *[1] * (losses.ndim - 1))
  return jnp.mean(losses, where=jnp.broadcast_to(counted, losses.shape))
