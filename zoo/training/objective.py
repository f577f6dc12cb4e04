"""What training minimises."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Key

from zoo import theory
from zoo.prompt import Prompt
from zoo.training.config import Config

Objective = Callable[[Any, Key[Array, '']], Float[Array, '']]


def draw(task: Any, key: Key[Array, ''], batch_size: int) -> Prompt:
  """A batch of prompts, its positions split over the mesh axis `data`."""
  prompt = jax.lax.with_sharding_constraint(task.sample(key, batch_size), P('data'))
  # Without the barrier XLA:CPU runs the generator again in each fusion that reads it.
  return jax.lax.optimization_barrier(prompt)


def squared_errors(model: Any, prompt: Prompt) -> Float[Array, ' b']:
  """`(f(X, y, x_q) − ŵ·x_q)²`, whose expectation is the in-context risk (eq. 4)."""
  return jnp.square(model(prompt) - prompt.y_query)


def make_objective(config: Config, task: Any) -> Objective:
  """The config's objective, as a function of a model and of the step's key.

  `sampled` is the mean squared error over fresh prompts, `exact` its expectation, the
  exact risk: the gradient is then that of the whole population, and the key is unused.
  """
  if config.objective.name == 'exact':
    moments = theory.moments(task)
    return lambda model, key: theory.population_risk(model.learning_rule(), moments)

  def sampled(model: Any, key: Key[Array, '']) -> Float[Array, '']:
    return jnp.mean(squared_errors(model, draw(task, key, config.train.batch_size)))

  return sampled
