"""Exact risks of linear recurrences that see one example at a time.

For the notation see docs/theory.md, section 9.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from zoo.core.errors import (
  UserError,
  check_array,
  check_number,
  check_same,
  check_vector,
)
from zoo.core.exact_forms import Recurrence
from zoo.core.protocols import Task
from zoo.estimators.linear_prior import feature_variance, second_moments
from zoo.tasks.linear_regression import require_covered
from zoo.theory.precision import double_precision
from zoo.theory.risk import Moments, task_moments

Numbers = ArrayLike | Sequence[Any]  # nested lists are accepted too


class OptimalDeltaRule(NamedTuple):
  """The delta rule of least risk, after every number of examples."""

  curve: Float[np.ndarray, ' n']  # the risks after 0, …, C examples
  steps: Float[np.ndarray, 'c d d']  # H_i, both `erase` and `write` of `risk_curve`


def risk_curve(
  task: Task,
  decay: Numbers = 1.0,
  erase: Numbers = 0.0,
  write: Numbers = 1.0,
  start: Numbers | None = None,
) -> Float[np.ndarray, ' n']:
  """The exact risks of `w_i·x_q` after i = 0, …, C examples, in float64.

  `w_i = α w_{i−1} − H x_i x_iᵀ w_{i−1} + K x_i y_i` with α the `decay`, H the `erase`
  and K the `write`, from `start` (None: the prior mean). Each of α, H and K is a number
  or a `[d, d]` matrix, either one for all examples or one for each: `[C]` or
  `[C, d, d]`.

  Linear attention (arXiv 2006.16236) has α = 1 and H = 0, RetNet (arXiv 2307.08621) α <
  1 and H = 0, the delta rule (arXiv 2102.11174) α = 1 and H = K, and gated DeltaNet
  (arXiv 2412.06464) `H = αK`. Here α, H and K do not depend on the prompt.

  It takes O(C d³) time. Raises UserError for a task that exact theory does not cover,
  for an argument of the wrong shape, and if a risk is too large for float64.
  """
  moments = task_moments(task)
  c, d = int(moments.context_length), moments.prior_mean.size
  numbers = {'decay': decay, 'erase': erase, 'write': write}
  coefficients = {}
  for name, value in numbers.items():
    array = check_array(name, value, [(), (c,), (d, d), (c, d, d)])
    is_for_all = array.ndim in (0, 2)
    coefficients[name] = (
      np.broadcast_to(array, (c, *array.shape)) if is_for_all else array
    )
  first = moments.prior_mean if start is None else check_vector('start', start, d)
  with double_precision():
    risks = np.array(_curve(Recurrence(first, **coefficients), moments))
  known = np.isfinite(risks)
  if not known.all():
    raise UserError(
      f'the risk is too large for float64 after {int(np.argmin(known))} of {c} '
      'examples; decay, erase and write must be smaller'
    )
  return risks


def recurrence_moments(form: Recurrence, task: Task) -> Moments:
  """The moments of a task for a form; only the form's shapes are read.

  Raises UserError for a task that exact theory does not cover, or of other sizes.
  """
  moments = task_moments(task)
  check_same('features', np.shape(form.start)[-1], np.size(moments.prior_mean))
  length = int(moments.context_length)
  check_same('examples at most', np.shape(form.write)[-1], length)
  return moments


def recurrence_curve(form: Recurrence, moments: Moments) -> Float[Array, ' n']:
  """`risk_curve` of a Recurrence, in its precision; for use under jit, grad and vmap.

  Its coefficients may also be matrices.
  """
  dtype = jnp.result_type(form.write)
  _, mean, prior, features, noise = jax.tree.map(
    lambda leaf: jnp.asarray(leaf, dtype), moments
  )
  identity = jnp.eye(mean.size, dtype=dtype)
  if features is None:
    features = identity
  shift = jnp.asarray(form.start) - mean
  truth = prior + jnp.outer(mean, mean)  # E ŵ ŵᵀ
  error = prior + jnp.outer(shift, shift)  # E e eᵀ of the error e = w − ŵ
  cross = jnp.outer(shift, mean) - prior  # E e ŵᵀ

  def spread(moment: Array) -> Array:
    """`E xxᵀMxxᵀ − ΣMΣ`."""
    return features @ moment.T @ features + jnp.sum(features * moment) * features

  def learn(
    errors: tuple[Array, Array], numbers: tuple[Array, ...]
  ) -> tuple[tuple[Array, Array], Array]:
    """The moments after one more example, and the risk.

    `e' = (α − Hxxᵀ) e + (α − 1 − (H − K)xxᵀ) ŵ + σ Kxn`: the factors of e and ŵ have
    the means `on_error` and `on_truth`; the others come from the variance of `xxᵀ`.
    """
    error, cross = errors
    alpha, h, k = (number if number.ndim else number * identity for number in numbers)
    excess = h - k
    on_error = alpha - h @ features
    on_truth = alpha - identity - excess @ features
    mixed = on_error @ cross @ on_truth.T + h @ spread(cross) @ excess.T
    error = (
      on_error @ error @ on_error.T
      + h @ spread(error) @ h.T
      + mixed
      + mixed.T
      + on_truth @ truth @ on_truth.T
      + excess @ spread(truth) @ excess.T
      + noise * k @ features @ k.T
    )
    error = (error + error.T) / 2
    return (error, on_error @ cross + on_truth @ truth), jnp.sum(features * error)

  coefficients = (
    jnp.asarray(form.decay),
    jnp.asarray(form.erase),
    jnp.asarray(form.write),
  )
  _, risks = jax.lax.scan(learn, (error, cross), coefficients)
  return jnp.append(jnp.sum(features * error), risks)


_curve = jax.jit(recurrence_curve)


def optimal_delta_rule(task: Task) -> OptimalDeltaRule:
  """The delta rule with the best matrix step for every example, from the prior mean.

  `H_i = M (2 ΣM + (tr ΣM + σ²) I)⁻¹` with `M = E e eᵀ` before example i. No other steps
  lead to a lower risk after any number of examples. It takes O(C d³) time. Raises
  UserError for a task that exact theory does not cover.
  """
  task = require_covered(task)
  m, features = second_moments(task)
  identity = np.eye(len(m))
  risks, steps = [np.sum(features * m)], []
  for _ in range(task.context_length):
    size = risks[-1] + task.noise_std**2
    step = np.zeros_like(m)
    if size > 0:  # otherwise there is nothing left to learn
      step = np.linalg.solve(2 * m @ features + size * identity, m).T
    m = m - step @ features @ m
    m = (m + m.T) / 2
    risks.append(np.sum(features * m))
    steps.append(step)
  return OptimalDeltaRule(np.array(risks), np.array(steps))


def normalised_delta_rule(task: Task, step: float = 1.0) -> Float[np.ndarray, ' n']:
  """The exact risks of the delta rule with keys `x/|x|`, for isotropic features.

  `w_i = w_{i−1} − step x_i (x_iᵀ w_{i−1} − y_i)/|x_i|²` from the prior mean, after
  i = 0, …, C examples; without noise and with step 1 they are `tr ΣΛ (1 − 1/d)ⁱ`.

  Raises UserError unless exact theory covers the task and its feature covariance is a
  positive multiple of the identity, and for label noise with fewer than 3 features,
  where the risk is infinite.
  """
  task = require_covered(task)
  step = check_number('step', step)
  prior, features = second_moments(task)
  d, noise = task.num_features, task.noise_std**2
  feature_variance(task, 'the risk with normalised keys')
  if noise > 0 and d < 3:
    raise UserError(
      f'num_features is {d}; with label noise the risk with normalised keys is finite '
      'only for 3 features or more'
    )
  factor = 1 - step * (2 - step) / d
  risks = [np.sum(features * prior)]
  for _ in range(task.context_length):
    risks.append(factor * risks[-1] + (step**2 * noise / (d - 2) if noise else 0.0))
  return np.array(risks)
