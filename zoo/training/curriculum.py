"""Parts of prompts in the loss: masked features, losses that do not count."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from zoo.config.curricula import Stage
from zoo.tasks.base import ChangedTask


@struct.dataclass(eq=False, repr=False)
class FirstFeatures(ChangedTask):
  """A task whose features are 0 but for the first `num_used`; labels follow from these.

  (Garg et al., arXiv 2208.01066, section 4: prompts in a subspace.)
  """

  num_used: Array

  def sample_features(self, key: Key[Array, '']) -> Float[Array, 't d']:
    used = jnp.arange(self.num_features) < self.num_used
    return jnp.where(used[None], self.task.sample_features(key), 0)

  def evaluate(self, function: PyTree, x: Float[Array, 't d']) -> Float[Array, ' t *k']:
    return self.task.evaluate(function, x)


def draw_lengths(
  key: Key[Array, ''], batch_size: int, least: int, most: int
) -> Int[Array, ' b']:
  """A number of examples for each prompt of a batch, uniform from least to most."""
  # No prompt of a batch has this number, by which the key is folded for each.
  own = jax.random.fold_in(key, 2**32 - 1)
  return jax.random.randint(own, (batch_size,), least, most + 1)


def mean_at(
  stage: Stage, losses: Float[Array, '*n'], lengths: Int[Array, ' b'] | None
) -> Float[Array, '']:
  """The mean of the losses that count at a stage.

  They are `[l, b, t]` of a model with l trained loops, or `[b, t]`, at every example or
  at the query alone, or `[b]` of statistics of prompts. With `lengths` those count that
  come after so many examples of each prompt, which are what a prompt that is cut there
  has at its query.
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
