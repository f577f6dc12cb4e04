"""What training minimises."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Key

from zoo.prompt import Prompt

Objective = Callable[[Any, Key[Array, '']], Float[Array, '']]


def draw(task: Any, key: Key[Array, ''], batch_size: int) -> Prompt:
  """A batch of prompts, its positions split over the mesh axis `data`."""
  prompt = jax.lax.with_sharding_constraint(task.sample(key, batch_size), P('data'))
  # Without the barrier XLA:CPU runs the generator again in each fusion that reads it.
  return jax.lax.optimization_barrier(prompt)


def squared_errors(model: Any, prompt: Prompt) -> Float[Array, ' b']:
  """`(f(X, y, x_q) − ŵ·x_q)²`, whose expectation is the in-context risk (eq. 4)."""
  return jnp.square(model(prompt) - prompt.y_query)


def make_objective(task: Any, batch_size: int) -> Objective:
  """The mean squared error over fresh prompts, as a function of a model and a key."""

  def objective(model: Any, key: Key[Array, '']) -> Float[Array, '']:
    return jnp.mean(squared_errors(model, draw(task, key, batch_size)))

  return objective
