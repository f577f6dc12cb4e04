"""A model's initial guess: in its tokens, and in its predictions without examples."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from zoo.core.errors import check_count
from zoo.core.losses import ROUNDING
from zoo.core.prompt import Prompt
from zoo.core.protocols import Predictor, Task, require_task
from zoo.measure.predict import BATCH_SIZE, Programs, gather, sample_batches
from zoo.models.initial_guess import InitialGuess
from zoo.models.linear_attention import LinearAttention
from zoo.models.token_model import TokenModel
from zoo.probing.checks import checked_module
from zoo.probing.nearest.context import PER_NUMBER


@dataclasses.dataclass(frozen=True)
class LinearFit:
  """A guess as a linear map, `w·x + b`.

  It is exact, or fitted by least squares to the guesses for half of the queries.

  Attributes:
    weights: The weights w, `[d]`, or `[d, k]` for k outputs.
    bias: The bias b, a number, or `[k]` for k outputs.
    r2: `1 − E |guess − fit|² / E |guess − mean guess|²` on the other half of the
      queries. None if nothing was fitted. NaN if the guesses do not vary beyond
      rounding: there is then nothing to explain, and the denominator is 0.
    prior_mean_distance: `|w − w*|` from the prior mean w*. None for a task without one.
  """

  weights: Float[np.ndarray, ' d *k']
  bias: Float[np.ndarray, ' *k']
  r2: float | None
  prior_mean_distance: float | None


@dataclasses.dataclass(frozen=True)
class LearnedGuess:
  """The guesses of a model before it has seen an example.

  Attributes:
    kind: The kind of the guess in the tokens, one of
      `zoo.models.initial_guess.GUESSES`. None if the model has no such guess.
    token: The guess that stands in the place of a label, or that is added to the
      prediction (`residual`). None if the model has none.
    prediction: The prediction from a query alone.
  """

  kind: str | None
  token: LinearFit | None
  prediction: LinearFit


def least_queries(num_features: int) -> int:
  """Returns the least number of queries for `learned_guess`, 32 (d + 1)."""
  return PER_NUMBER * (num_features + 1)


def learned_guess(
  model: Predictor, task: Task, num_prompts: int = 4096, seed: int = 0
) -> LearnedGuess:
  """Returns the initial guess of a model on the queries of a task.

  The guess in its tokens is exact, except for a guess by a network, which is replaced
  by the linear map nearest to it.

  - Quantity: the weights and the bias of the linear map nearest to the predictions
    without examples, `E |f(x_q) − w·x_q − b|²`, over queries.
  - Null: weights of 0 for a model that predicts a constant without examples.
  - Denominator: `E |f − E f|²`, of `r2`. If predictions do not vary it is 0, and
    `r2` is NaN.

  Args:
    model: An NNX module that can be called on prompts without examples.
    task: The task from which queries are drawn.
    num_prompts: The number of queries, at least 32 (d + 1) for d features. Half of them
      are for the fits of the d + 1 entries of w and b.
    seed: The seed of the queries.

  Returns:
    The guess in the tokens, and the linear map nearest to the predictions.

  Raises:
    UserError: If the model is not an NNX module, or there are too few queries.

  Example:
    >>> task = zoo.create_task('linear_regression', num_features=2, context_length=4)
    >>> model = zoo.models.Transformer(2, 4, num_layers=1, rngs=nnx.Rngs(0))
    >>> guess = zoo.probing.learned_guess(model, task, num_prompts=96)
    >>> guess.kind, guess.token.prior_mean_distance
    ('zero', 0.0)
  """
  require_task(task)
  checked_module(model)
  least = least_queries(task.num_features)
  num_prompts = check_count('num_prompts', num_prompts, minimum=least)
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
  """Fits a linear map to the first half of the guesses, and measures the second."""
  half = len(x) // 2
  inputs = np.column_stack([x, np.ones(len(x))]).astype(np.float64)
  outputs = guesses.astype(np.float64)
  solution = np.linalg.lstsq(inputs[:half], outputs[:half])[0]
  rest = outputs[half:] - inputs[half:] @ solution
  whole = outputs[half:] - outputs[half:].mean(axis=0)
  variation = np.sum(whole**2)
  is_constant = variation <= ROUNDING * np.sum(outputs[half:] ** 2)
  r2 = math.nan if is_constant else 1 - float(np.sum(rest**2) / variation)
  weights, bias = solution[:-1], np.asarray(solution[-1])
  return LinearFit(weights, bias, r2, distance_to_mean(weights, task))


def distance_to_mean(weights: Float[np.ndarray, ' d *k'], task: Task) -> float | None:
  """Returns |w − w*|; None for a task without a prior mean w*."""
  mean = task.mean_weights()
  return None if mean is None else float(np.linalg.norm(weights - mean))
