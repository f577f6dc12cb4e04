"""Builds the optax optimizer that a config names."""

from typing import TYPE_CHECKING, Any

import jax
import optax
from jaxtyping import PyTree

if TYPE_CHECKING:  # it imports this module
  from zoo.config.schema import Optimizer as OptimizerConfig
else:
  from ml_collections import ConfigDict as OptimizerConfig

OPTIMIZERS = {'adam': optax.adam, 'adamw': optax.adamw, 'sgd': optax.sgd}
SCHEDULES = ('constant', 'cosine')


def build_optimizer(
  config: OptimizerConfig,
  num_steps: int,
  in_shape: bool = False,
  learning_rate: float | jax.Array | None = None,
) -> optax.GradientTransformation:
  """The optimizer of a section `optimizer`, with its schedule and, if asked, clipping.

  All other options have optax's defaults, which for Adam are the paper's. `in_shape`
  keeps the arrays in shape, so that they can be sharded along any axis. A
  `learning_rate`, which may be traced, replaces that of the config.
  """
  optimizer = OPTIMIZERS[config.name](build_schedule(config, num_steps, learning_rate))
  if config.clip_norm is not None:
    clip = optax.clip_by_global_norm(config.clip_norm)
    optimizer = optax.chain(clip, optimizer)
  if in_shape:
    return optimizer

  def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
    flat = optimizer.update(flattened(updates), flattened(state), flattened(params))
    return with_shapes_of((updates, state), flat)

  return optax.GradientTransformation(optimizer.init, update)


def flattened(tree: PyTree) -> PyTree:
  """The tree with each array flat, as the compiled steps store them."""
  return jax.tree.map(lambda leaf: leaf.ravel() if leaf.ndim > 1 else leaf, tree)


def with_shapes_of(tree: PyTree, flat: PyTree) -> PyTree:
  """A flattened tree, in the shapes that `tree` has."""
  return jax.tree.map(lambda leaf, shaped: leaf.reshape(shaped.shape), flat, tree)


def build_schedule(
  config: OptimizerConfig,
  num_steps: int,
  learning_rate: float | jax.Array | None = None,
) -> optax.Schedule:
  """The learning rate by step: a linear warm-up, then constant or a cosine to 0."""
  peak = config.learning_rate if learning_rate is None else learning_rate
  warmup = config.warmup_steps
  if config.schedule == 'cosine':
    rest = optax.cosine_decay_schedule(peak, max(num_steps - warmup, 1))
  else:
    rest = optax.constant_schedule(peak)
  if warmup == 0:
    return rest
  return optax.join_schedules(
    [optax.linear_schedule(0.0, peak, warmup), rest], [warmup]
  )
