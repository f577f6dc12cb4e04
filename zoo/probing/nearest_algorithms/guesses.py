"""A model's initial guess: in its tokens, and in its predictions without examples."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, ArrayLike, Float

from zoo.core.errors import UserError, check_count
from zoo.core.prompt import Prompt
from zoo.core.protocols import Predictor, Task
from zoo.measure.predict import BATCH_SIZE, Programs, gather, sample_batches
from zoo.models.initial_guess import InitialGuess
from zoo.models.linear_attention import LinearAttention
from zoo.models.token_model import TokenModel


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

  The guess in its tokens is exact; for a network it is the best linear fit.

  - Quantity: the weights and the bias of the linear map nearest to the predictions
    without examples, E |f(x_q) − w·x_q − b|², over queries.
  - Null: weights of 0 for a model that predicts a constant without examples.
  - Denominator: E |f − E f|², of `r_squared`.

  Raises UserError unless the model is an NNX module.
  """
  if not isinstance(model, nnx.Module):
    raise UserError(f'{type(model).__name__} has no guess; it must be an NNX module')
  num_prompts = check_count('num_prompts', num_prompts, minimum=4)
  programs = Programs()
  x, answers = gather(
    lambda prompt: (prompt.x_query, programs.run(_without_examples, [model], prompt)),
    sample_batches(task, seed, num_prompts, BATCH_SIZE),
  )
  kind = token = None
  if isinstance(model, LinearAttention):
    kind, token = model.guess_kind, _exact(*model.initial_guess(), task)
  elif isinstance(model, TokenModel):
    kind, guess = model.guess.kind, model.guess
    token = _of_token(guess, x, task)
  return LearnedGuess(kind, token, _fit(x, answers, task))


def _without_examples(predictors: Sequence[Predictor], prompt: Prompt) -> Array:
  (model,) = predictors
  return model(dataclasses.replace(prompt, x=prompt.x[:, :0], y=prompt.y[:, :0]))


def _of_token(
  guess: InitialGuess, x: Float[np.ndarray, 'p d'], task: Task
) -> LinearFit:
  is_scalar = guess.num_outputs == 1
  if not guess.is_affine:
    guesses = np.asarray(guess(jnp.asarray(x)))
    return _fit(x, guesses[:, 0] if is_scalar else guesses, task)
  weights, bias = guess.affine()
  return (
    _exact(weights[:, 0], bias[0], task) if is_scalar else _exact(weights, bias, task)
  )


def _exact(weights: ArrayLike, bias: ArrayLike, task: Task) -> LinearFit:
  weights, bias = np.asarray(weights), np.asarray(bias)
  return LinearFit(weights, bias, None, distance_to_mean(weights, task))


def _fit(
  x: Float[np.ndarray, 'p d'], guesses: Float[np.ndarray, ' p *k'], task: Task
) -> LinearFit:
  """The best linear fit to the first half of the guesses, measured on the second."""
  half = len(x) // 2
  inputs = np.column_stack([x, np.ones(len(x))]).astype(np.float64)
  outputs = guesses.astype(np.float64)
  solution = np.linalg.lstsq(inputs[:half], outputs[:half])[0]
  rest = outputs[half:] - inputs[half:] @ solution
  whole = outputs[half:] - outputs[half:].mean(axis=0)
  varies = np.sum(whole**2)
  r_squared = 1 - float(np.sum(rest**2) / varies) if varies > 0 else 1.0
  weights, bias = solution[:-1], np.asarray(solution[-1])
  return LinearFit(weights, bias, r_squared, distance_to_mean(weights, task))


def distance_to_mean(weights: Float[np.ndarray, ' d *k'], task: Task) -> float | None:
  """|w − w*|; None for a task without a prior mean w*."""
  mean = task.mean_weights()
  return None if mean is None else float(np.linalg.norm(weights - mean))
