"""Prompts in NumPy, where what a test does with their parts compiles nothing."""

from typing import Any

import jax
import numpy as np

import zoo
from zoo.core import trees


def sample(task: Any, seed: int, batch_size: int) -> zoo.Prompt:
  return jax.device_get(task.sample(jax.random.key(seed), batch_size))


def sample_with_latents(task: Any, seed: int, batch_size: int) -> Any:
  """Prompts and what they were drawn from, by one program where `sample` has two."""
  return jax.device_get(_draw(trees.fresh(task), jax.random.key(seed), batch_size))


_draw = jax.jit(lambda task, key, size: task.sample_batch(key, size), static_argnums=2)


def features(prompt: zoo.Prompt) -> np.ndarray:
  """The features of the context examples, then those of the query."""
  return np.concatenate([prompt.x, np.asarray(prompt.x_query)[:, None]], axis=1)


def targets(prompt: zoo.Prompt) -> np.ndarray:
  """The targets of the context examples, then that of the query."""
  context = prompt.y if prompt.context_targets is None else prompt.context_targets
  return np.concatenate([context, np.asarray(prompt.y_query)[:, None]], axis=1)
