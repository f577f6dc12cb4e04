"""The optimizer that a config names, from optax."""

from typing import Any

import jax
import optax

OPTIMIZERS = {'adam': optax.adam, 'adamw': optax.adamw, 'sgd': optax.sgd}
SCHEDULES = ('constant', 'cosine')


def build_optimizer(config: Any) -> optax.GradientTransformation:
  """The config's optimizer, with its schedule and, where asked for, clipping.

  All else stands at optax's defaults, which for Adam are the paper's.
  """
  optimizer = OPTIMIZERS[config.optimizer.name](build_schedule(config))
  if config.optimizer.clip_norm is not None:
    clip = optax.clip_by_global_norm(config.optimizer.clip_norm)
    optimizer = optax.chain(clip, optimizer)
  if config.mesh.fsdp:  # flat, an array could not be split along any of its axes
    return optimizer

  def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
    flat = optimizer.update(flattened(updates), flattened(state), flattened(params))
    return with_shapes_of((updates, state), flat)

  return optax.GradientTransformation(optimizer.init, update)


def flattened(tree: Any) -> Any:
  """The tree with each array flat, as the compiled steps keep them."""
  return jax.tree.map(lambda leaf: leaf.ravel() if leaf.ndim > 1 else leaf, tree)


def with_shapes_of(tree: Any, flat: Any) -> Any:
  """What was flattened, in the shapes that it has in `tree`."""
  return jax.tree.map(lambda leaf, shaped: leaf.reshape(shaped.shape), flat, tree)


def build_schedule(config: Any) -> optax.Schedule:
  """The learning rate by step: a linear warm-up, then constant or a cosine to 0."""
  peak, warmup = config.optimizer.learning_rate, config.optimizer.warmup_steps
  if config.optimizer.schedule == 'cosine':
    rest = optax.cosine_decay_schedule(peak, max(config.train.num_steps - warmup, 1))
  else:
    rest = optax.constant_schedule(peak)
  if warmup == 0:
    return rest
  return optax.join_schedules(
    [optax.linear_schedule(0.0, peak, warmup), rest], [warmup]
  )
