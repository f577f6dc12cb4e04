"""A model's initial guess: in its tokens, and in its predictions without examples."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, PyTree

from zoo.core.errors import UserError, check_count
from zoo.core.prompt import Prompt
from zoo.core.protocols import Predictor, Task
from zoo.measure.curves import sample_batches
from zoo.models.initial_guess import InitialGuess
from zoo.models.linear_attention import LinearAttention

_BATCH_SIZE = 4096


@dataclasses.dataclass(frozen=True)
class LinearFit:
  """A guess as `w·x + b`: `[d, k]` and `[k]` for k outputs, `[d]` and a number for one.

  It is exact, or fitted by least squares to the guesses of half of the queries.
  """

  weights: Float[np.ndarray, ' d *k']
  bias: Float[np.ndarray, ' *k']
  # 1 − E |guess − fit|² / E |guess − mean guess|² on the other half; None if exact.
  r_squared: float | None
  distance: float | None  # |w − w*|; None for a task without a prior mean w*


@dataclasses.dataclass(frozen=True)
class LearnedGuess:
  """The guesses of a model before it has seen an example."""

  kind: str | None  # one of zoo.models.initial_guess.GUESSES; None if it has no guess
  token: LinearFit | None  # in a label's place, or added outside: residual
  prediction: LinearFit  # the prediction from a query alone


def learned_guess(
  model: Predictor, task: Task, num_prompts: int = 4096, seed: int = 0
) -> LearnedGuess:
  """The initial guess of a model on the queries of a task.

  The guess in its tokens is exact; for a network it is the best linear fit. Raises
  UserError unless the model is an NNX module.
  """
  if not isinstance(model, nnx.Module):
    raise UserError(f'{type(model).__name__} has no guess; it must be an NNX module')
  num_prompts = check_count('num_prompts', num_prompts, minimum=4)
  graph, state = nnx.split(model)
  queries, predictions = [], []
  for prompt in sample_batches(task, seed, num_prompts, _BATCH_SIZE):
    with jax.default_matmul_precision('highest'):
      predictions.append(np.asarray(_without_examples(graph, state, prompt)))
    queries.append(prompt.x_query)
  x, answers = np.concatenate(queries), np.concatenate(predictions)
  guess = getattr(model, 'guess', None)
  kind = token = None
  if isinstance(model, LinearAttention):
    weights, bias = map(np.asarray, model.initial_guess())
    # yq-LSA trains its guess.
    kind = 'linear' if hasattr(model, 'w') else 'fixed'
    token = LinearFit(weights, bias, None, distance_to_mean(weights, task))
  elif isinstance(guess, InitialGuess):
    kind = guess.kind
    token = _of_token(guess, x, task)
  return LearnedGuess(kind, token, _fit(x, answers, task))


@functools.partial(jax.jit, static_argnums=0)
def _without_examples(graph: Any, state: PyTree, prompt: Prompt) -> Array:
  model = nnx.merge(graph, state)
  return model(dataclasses.replace(prompt, x=prompt.x[:, :0], y=prompt.y[:, :0]))


def _of_token(
  guess: InitialGuess, x: Float[np.ndarray, 'p d'], task: Task
) -> LinearFit:
  if not guess.is_affine:
    return _fit(x, np.asarray(guess(jnp.asarray(x))), task)
  weights, bias = (
    np.asarray(getattr(guess, name)[...]) if hasattr(guess, name) else np.zeros(shape)
    for name, shape in (
      ('weights', (x.shape[1], guess.num_outputs)),
      ('bias', guess.num_outputs),
    )
  )
  if guess.num_outputs == 1:
    weights, bias = weights[:, 0], bias[0]
  return LinearFit(weights, np.asarray(bias), None, distance_to_mean(weights, task))


def _fit(
  x: Float[np.ndarray, 'p d'], guesses: Float[np.ndarray, ' p *k'], task: Task
) -> LinearFit:
  """The best linear fit to the first half of the guesses, measured on the second."""
  half = len(x) // 2
  inputs = np.column_stack([x, np.ones(len(x))]).astype(np.float64)
  outputs = guesses.astype(np.float64)
  found = np.linalg.lstsq(inputs[:half], outputs[:half].reshape(half, -1))[0]
  found = found.reshape(-1, *np.shape(outputs)[1:])
  if task.num_outputs == 1:  # the guess may be `[p, 1]`
    found, outputs = found.reshape(-1), outputs.reshape(-1)
  rest = outputs[half:] - inputs[half:] @ found
  whole = outputs[half:] - outputs[half:].mean(axis=0)
  varies = np.sum(whole**2)
  r_squared = 1 - float(np.sum(rest**2) / varies) if varies > 0 else 1.0
  weights, bias = found[:-1], np.asarray(found[-1])
  return LinearFit(weights, bias, r_squared, distance_to_mean(weights, task))


def distance_to_mean(weights: Float[np.ndarray, ' d *k'], task: Task) -> float | None:
  """|w − w*|; None for a task without a prior mean w*."""
  mean = getattr(task, 'prior_mean', None)
  if mean is None or np.shape(mean) != weights.shape:
    return None
  return float(np.linalg.norm(weights - mean))
