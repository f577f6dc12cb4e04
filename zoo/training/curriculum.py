"""Stages of a curriculum in the loss: masked features, losses that do not count."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key, PyTree

from zoo.config.curricula import Stage
from zoo.core.values import leaf, value
from zoo.tasks.base import ChangedTask


@value
class FirstFeatures(ChangedTask):
  """A task whose features are 0 but for the first `num_used`; labels follow from these.

  (Garg et al., arXiv 2208.01066, section 4: prompts in a subspace.)
  """

  num_used: Array = leaf()

  def sample_features(self, key: Key[Array, '']) -> Float[Array, 't d']:
    used = jnp.arange(self.num_features) < self.num_used
    return jnp.where(used[None], self.task.sample_features(key), 0)

  def evaluate(self, function: PyTree, x: Float[Array, 't d']) -> Float[Array, ' t *k']:
    return self.task.evaluate(function, x)


def mean_at(stage: Stage | None, losses: Float[Array, '*n']) -> Float[Array, '']:
  """The mean of the losses that count at a stage; None: of all.

  They are `[l, b, t]` of a model with l trained loops, or `[b, t]`, at every example,
  or `[b]`, at the query alone.
  """
  if stage is None:
    return jnp.mean(losses)
  counted: Bool[Array, '*n'] = jnp.ones([1] * losses.ndim, bool)
  if stage.examples is not None:
    at = jnp.arange(losses.shape[-1]) <= stage.examples
    counted &= at.reshape(*[1] * (losses.ndim - 1), -1)
  if stage.loops is not None:
    loops = jnp.arange(len(losses)) < stage.loops
    counted &= loops.reshape(-1, *[1] * (losses.ndim - 1))
  return jnp.mean(losses, where=jnp.broadcast_to(counted, losses.shape))
