"""Observed labels, as a task draws them, given their targets."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from zoo.core.prompt import Prompt
from zoo.core.protocols import Task


def with_drawn_labels(task: Task, key: Key[Array, ''], prompt: Prompt) -> Prompt:
  """The prompts with labels as targets: those of the examples, a new one of the query.

  It is drawn as the task draws labels, given the target.
  """
  # No prompt of a batch has this number, by which the key is folded for each.
  own = jax.random.fold_in(key, 2**32 - 2)
  keys = jax.vmap(jax.random.fold_in, (None, 0))(own, jnp.arange(len(prompt.y_query)))
  of_queries = jax.vmap(task.sample_labels)(keys, prompt.y_query[:, None])
  labels = jnp.concatenate([prompt.y, of_queries], axis=1)
  if task.label_kind == 'signs':
    labels = (1 + labels) / 2  # a target is the probability of the label +1
  return dataclasses.replace(
    prompt, y_query=labels[:, -1], context_targets=labels[:, :-1]
  )
