"""One layer of softmax attention at small weights: debiased gradient descent."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from zoo.core.errors import UserError, check_number
from zoo.core.prompt import Prompt
from zoo.core.protocols import Task
from zoo.tasks.linear_regression import require_covered
from zoo.theory.exact import exact_risk
from zoo.theory.optimum import optimal_rule


def softmax_pair(
  prompt: Prompt, step_size: float, temperature: float
) -> Float[Array, ' b']:
  """Two heads of softmax attention whose scores have opposite signs.

  `f = (η/2τ) Σ_i [softmax_i(τ x_i·x_q) − softmax_i(−τ x_i·x_q)] y_i`, with η the
  `step_size` and τ the `temperature` > 0 (the pattern that He et al., arXiv 2503.12734,
  find in trained heads). For τ → 0 it is `η (1/C) Σ_i (y_i − ȳ)(x_i − x̄)·x_q`, one step
  of gradient descent from 0 on centred examples; for C → ∞ it is `η ŵ·x_q` at every τ
  if features are `N(0, I)`.
  """
  tau = check_number('temperature', temperature, above=0.0)
  scores_bc = tau * jnp.einsum('bcd,bd->bc', prompt.x, prompt.x_query)
  weights_bc = jax.nn.softmax(scores_bc) - jax.nn.softmax(-scores_bc)
  return step_size / (2 * tau) * jnp.sum(weights_bc * prompt.y, axis=1)


def softmax_risk(task: Task) -> float:
  """The least risk of `softmax_pair` with a matrix step, for τ → 0 and w* = 0.

  Centring C normal examples leaves the moments of C − 1, so it is exactly that of
  `optimal_rule` with one example fewer: softmax costs one example. For `Σ = Λ = I` it
  is `d (d + 1 + σ²)/(C + d + σ²)`. Raises UserError unless exact theory covers the
  task, it has two examples or more, and its prior mean is 0.
  """
  task = require_covered(task)
  if task.prior_mean.any():
    raise UserError('prior_mean is not 0; these heads have no guess')
  if task.context_length < 2:
    raise UserError('context_length is 1; centred examples need two or more')
  shorter = dataclasses.replace(task, context_length=task.context_length - 1)
  return float(exact_risk(optimal_rule(shorter), shorter))
